/* The module: what its parts share, and how Python tells it what it needs to know.
 *
 * Python makes, or touches, these once a message: a Python function of its own would cost more than the whole
 * append. Each type is the least that speed asks for, and the base of a class in Python that has the rest:
 *
 *   messages.c  SentFields    of mq.Message     topic, body, flag, plain, encoded
 *               StoredFields  of mq.MessageExt  a record and the broker's name
 *   results.c   SendFields    of SendResult     the receipt of an append, taken apart on demand; or values
 *               PullFields    of PullResult     what one pull gave
 *   append_pull.c       LogHandle, and the functions bound to a queue, which make most of the others
 *   delayed_append.c    DelayedRecords: how a delayed message is stored
 *   sender.c            Sender of mq.Producer, which sends the usual message
 *   batch.c             passes over the messages of a batch
 *   transactions.c      HalfMessages, and the functions that store a half message or end its transaction
 *   transaction_send.c  TransactionSender of mq.TransactionProducer; Transactor, its usual transaction;
 *                       TransactionFields of mq.Transaction
 *   guards.c            locks that are given back whatever Python raises
 *   waits.c             how long a thread waits for them, and for whom
 *   held.c              messages for a listener, as long as its consumer owns their queue
 *
 * Whatever is not the usual case is left to Python, which also raises all errors but those of memory and of
 * types.
 *
 * Fields are filled once, by `__init__` (so that a subclass may take other arguments) or by `restored` (of
 * copy and pickle, which know the fields and not the arguments), and never change: a call may read them
 * without the GIL. What was made by `__new__` alone has none, and says so when it is asked.
 *
 * Garbage collection. SentFields and StoredFields refer to values of exactly Python's own types, which lead
 * nowhere, so no cycle leads through them. PullFields has a list, which its owner may change: it is
 * collected. SendFields is not, since one is made with every send, and an object that the collector knows
 * makes it run more often: a cycle could lead through the functions that make the ids and places of a batch,
 * and those of the store know nothing but their numbers.
 */
#include "objects.h"

#include <string.h>

enum { ARGUMENTS_MAX = 4 }; /* of an append */

mq_known mq_objects_known;
static mq_known *const known = &mq_objects_known;

PyObject *mq_objects_make(PyObject *type) { return PyType_GenericAlloc((PyTypeObject *)type, 0); }

PyObject *mq_objects_shared(PyObject *value) {
    Py_INCREF(value);
    return value;
}

int mq_objects_int64(PyObject *value, int64_t *number) {
    int overflow = 1;
    if (PyLong_CheckExact(value)) *number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return !overflow;
}

int mq_objects_int32(PyObject *value, int32_t *number) {
    int64_t wide;
    if (!mq_objects_int64(value, &wide) || wide < INT32_MIN || wide > INT32_MAX) return 0;
    *number = (int32_t)wide;
    return 1;
}

int mq_objects_take_int32(PyObject *value, const char *name, int32_t *number) {
    if (mq_objects_int32(value, number)) return 1;
    PyErr_Format(PyLong_CheckExact(value) ? PyExc_OverflowError : PyExc_TypeError,
                 "%s is an int of 32 bits, not %R", name, value);
    return 0;
}

PyObject *mq_objects_pass_on(PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    PyObject *all = function ? PyTuple_New(count) : NULL;
    PyObject *options = named ? PyDict_New() : NULL;
    PyObject *result = NULL;
    if (!function) PyErr_SetString(PyExc_RuntimeError, "whose function this is is gone");
    if (all && (options || !named)) {
        int wrong = 0;
        for (Py_ssize_t i = 0; i < count; i++) PyTuple_SetItem(all, i, mq_objects_shared(args[i]));
        for (Py_ssize_t i = 0; i < named && !wrong; i++)
            wrong = PyDict_SetItem(options, PyTuple_GetItem(names, i), args[count + i]);
        if (!wrong) {
            Py_INCREF(function); /* its owner may be cleared meanwhile */
            result = PyObject_Call(function, all, options);
            Py_DECREF(function);
        }
    }
    Py_XDECREF(all);
    Py_XDECREF(options);
    return result;
}

PyObject *mq_objects_pass_on_behind(PyObject *function, PyObject *first, PyObject *const *args,
                                    Py_ssize_t count) {
    PyObject *all[ARGUMENTS_MAX + 1] = {first};
    PyObject *result = NULL;
    if (count > ARGUMENTS_MAX)
        PyErr_Format(PyExc_TypeError, "at most %d arguments are taken, not %zd", ARGUMENTS_MAX, count);
    else if (first) {
        for (Py_ssize_t i = 0; i < count; i++) all[1 + i] = args[i];
        result = mq_objects_pass_on(function, all, 1 + count, NULL);
    }
    Py_XDECREF(first);
    return result;
}

void mq_objects_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int mq_objects_refuse_again(void) {
    PyErr_SetString(PyExc_TypeError, "this value is made, and never changes");
    return -1;
}

PyObject *mq_objects_restored(PyObject *type, PyObject *fields, mq_filler fill) {
    PyObject *self = mq_objects_make(type);
    if (self && fill(self, fields, NULL)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

int mq_objects_add_type(PyObject *module, PyType_Spec *spec) {
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
    Py_XDECREF(type);
    return result;
}

static PyObject *bind(PyObject *module, PyObject *args) {
    const char *name;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "sO:bind", &name, &value)) return NULL;
    const struct {
        const char *name;
        PyObject **at;
    } places[] = {
        {"topics", &known->topics},     {"prefixes", &known->prefixes},
        {"build", &known->build},       {"message", &known->message},
        {"stored", &known->stored},     {"send_result", &known->send_result},
        {"send_ok", &known->send_ok},   {"pull_result", &known->pull_result},
        {"statuses", &known->statuses},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (strcmp(places[i].name, name) != 0) continue;
        PyObject *old = *places[i].at;
        *places[i].at = mq_objects_shared(value);
        Py_XDECREF(old);
        Py_RETURN_NONE;
    }
    return PyErr_Format(PyExc_ValueError, "nothing is called %s here", name);
}

static char *copy_of(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = PyMem_Malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

/* fast_method(name, owner, text, slow_path): a method in C that takes the place of one in Python.
 *
 * The method of this name (see mq_fast_method) as a descriptor of `owner`, a class in Python whose base is
 * that of the method. It is what CPython's own types have: help(), signatures, subclasses and mock find a
 * method like any other, and a call of it makes no bound function. `text` is its __text_signature__ and
 * documentation in the form of ml_doc. With what the method is not for it calls `slow_path`, the function in
 * Python, as it was called itself. */
static PyObject *fast_method(PyObject *module, PyObject *args) {
    const char *name, *text;
    PyObject *owner, *slow_path;
    if (!PyArg_ParseTuple(args, "sO!sO:fast_method", &name, &PyType_Type, &owner, &text, &slow_path))
        return NULL;
    mq_fast_method *const methods[] = {&mq_producer_send, &mq_transaction_send, &mq_transaction_begin};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        mq_fast_method *method = methods[i];
        if (strcmp(method->name, name) != 0) continue;
        if (!PyType_IsSubtype((PyTypeObject *)owner, (PyTypeObject *)method->base))
            return PyErr_Format(PyExc_TypeError, "%R is no class that has %s", owner, name);
        PyMethodDef *definition = PyMem_Malloc(sizeof *definition); /* never given back, as types are not */
        char *doc = copy_of(text);
        if (!definition || !doc) {
            PyMem_Free(definition);
            PyMem_Free(doc);
            return PyErr_NoMemory();
        }
        PyObject *old = method->slow_path;
        method->slow_path = mq_objects_shared(slow_path);
        Py_XDECREF(old);
        *definition = (PyMethodDef){method->attribute, (PyCFunction)(void (*)(void))method->function,
                                    METH_FASTCALL | METH_KEYWORDS, doc};
        return PyDescr_NewMethod((PyTypeObject *)owner, definition);
    }
    return PyErr_Format(PyExc_ValueError, "no method is called %s here", name);
}

PyObject *mq_objects_call_slow_path(const mq_fast_method *method, PyObject *self, PyObject *const *args,
                                    Py_ssize_t count, PyObject *names) {
    descrgetfunc get = (descrgetfunc)PyType_GetSlot(Py_TYPE(method->slow_path), Py_tp_descr_get);
    PyObject *bound = get(method->slow_path, self, (PyObject *)Py_TYPE(self));
    if (!bound) return NULL;
    PyObject *result = mq_objects_pass_on(bound, args, count, names);
    Py_DECREF(bound);
    return result;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "bind(name, value): tell what stands behind a name of mq_known"},
    {"fast_method", fast_method, METH_VARARGS, "fast_method(name, owner, text, slow_path)"},
    {"due_ms", mq_objects_due_ms, METH_VARARGS,
     "due_ms(message, now_ns, delay_max_ms): see delayed_append.c; 0: due, below 0: beyond the limit"},
    {"slot_ms", mq_objects_slot_ms, METH_VARARGS, "slot_ms(due_ms, precision_ms): TIMER_OUT_MS"},
    {"survey", mq_objects_survey, METH_O, "survey(messages): see batch.c"},
    {"pack", mq_objects_pack, METH_O, "pack(messages): see batch.c"},
    {"unpack", mq_objects_unpack, METH_VARARGS, "unpack(topic, batch, rules): see batch.c"},
    {"bind_calls", mq_objects_bind_calls, METH_VARARGS,
     "bind_calls(append, pull): the addresses of mq_append and mq_pull"},
    {"bind_transactions", mq_objects_bind_transactions, METH_VARARGS,
     "bind_transactions(prepare, end): the addresses of mq_transaction_prepare and mq_transaction_end"},
    {NULL, NULL, 0, NULL},
};

/* What mq_objects_known holds is of one interpreter: the values that a second one put there would go with it,
 * and the first would be left with what is freed. So another one is refused. A module that is imported again
 * by the first interpreter, after somebody took it out of sys.modules, has the types of before. */
static int run(PyObject *module) {
    static PyObject *first; /* never given back, as the types are not */
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(
            PyExc_ImportError,
            "mq works in the main interpreter of a process only, and this is a subinterpreter: "
            "under mod_wsgi set WSGIApplicationGroup %{GLOBAL}; elsewhere use threads or processes");
        return -1;
    }
    if (first) return PyDict_Merge(PyModule_GetDict(module), PyModule_GetDict(first), 0);
    if (mq_objects_add_messages(module) || mq_objects_add_results(module) || mq_objects_add_calls(module) ||
        mq_objects_add_delayed(module) || mq_objects_add_sender(module) ||
        mq_objects_add_transactions(module) || mq_objects_add_transactor(module) ||
        mq_objects_add_guards(module) || mq_objects_add_waits(module) || mq_objects_add_held(module) ||
        mq_objects_add_hand_over(module) || mq_objects_add_keyed(module))
        return -1;
    first = mq_objects_shared(module);
    return 0;
}

/* In two phases, since a module in one is not run by a second interpreter: that just gets a copy. */
static PyModuleDef_Slot slots[] = {{Py_mod_exec, run}, {0, NULL}};
static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                 .m_name = "mq.fastpath._objects",
                                 .m_methods = functions,
                                 .m_slots = slots};

PyMODINIT_FUNC PyInit__objects(void) { return PyModuleDef_Init(&definition); }
