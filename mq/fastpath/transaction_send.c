/* TransactionProducer.send and begin of the usual message, and the end of what was begun.
 *
 *   class TransactionProducer(TransactionSender)
 *       ._start(transactor) called once, by __init__
 *       .send, .begin       see objects.c
 *   Transactor(half, end, slow_path, made, commit, rollback)
 *       .begun(result)      what begin returns for a half message that was stored
 *   TransactionFields       the base of the class `made`: an undecided half message, a context manager
 *
 * `half` stores a half message and `end` ends its transaction: see transactions.c. `slow_path` has as methods
 * what is done with all else: decide(result, message, execute, arg) and begun(result) for a half message that
 * may not be stored safely, executed(result, state, error) for what execute raised, or returned that is no
 * word, finish(result, state) for a result that is not from here, and unended(result, state, error) for an
 * end that failed.
 */
#include "objects.h"

static mq_known *const known = &mq_objects_known;

typedef struct {
    PyObject_HEAD PyObject *half;
    PyObject *end;
    PyObject *slow_path;
    PyObject *made;
    PyObject *commit;
    PyObject *rollback;
} transactor;

enum { FIELD_COUNT = 6 };

typedef struct {
    PyObject_HEAD PyObject *result;
    PyObject *state; /* NULL: not decided */
    PyObject *by;    /* the transactor */
} transaction;

typedef struct {
    PyObject_HEAD transactor *usual; /* NULL: __init__ was not called, or it is being cleared */
} transaction_sender;

static PyObject **fields_of(PyObject *self) { return &((transactor *)self)->half; }

static int transactor_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < FIELD_COUNT; i++) Py_VISIT(fields_of(self)[i]);
    return 0;
}

static int transactor_clear(PyObject *self) {
    for (int i = 0; i < FIELD_COUNT; i++) Py_CLEAR(fields_of(self)[i]);
    return 0;
}

static void transactor_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    transactor_clear(self);
    mq_objects_free(self);
}

static PyObject *pass_on(const transactor *of, const char *name, PyObject *const *args, Py_ssize_t count,
                         PyObject *names) {
    PyObject *function = of->slow_path ? PyObject_GetAttrString(of->slow_path, name) : NULL;
    if (of->slow_path && !function) return NULL;
    PyObject *result = mq_objects_pass_on(function, args, count, names);
    Py_XDECREF(function);
    return result;
}

/* The same, where the error alone matters: 0 or -1. */
static int tell(const transactor *of, const char *name, PyObject *result, PyObject *state, PyObject *error) {
    PyObject *args[] = {result, state, error};
    PyObject *told = pass_on(of, name, args, error ? 3 : 2, NULL);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

/* The error that is set is told, unless it ends more than this. 0, or -1 with the error to raise. */
static int tell_error(const transactor *of, const char *name, PyObject *result, PyObject *state) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace) PyException_SetTraceback(error, trace);
    int told = tell(of, name, result, state, error);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return told;
}

static int is_usual(PyObject *message) {
    return (PyObject *)Py_TYPE(message) == known->message && ((mq_sent *)message)->plain == Py_True;
}

/* Whether transactions.c has made it, whose half message may be decided about. */
static int is_ours(PyObject *result) {
    return (PyObject *)Py_TYPE(result) == known->send_result &&
           ((mq_sent_where *)result)->status == known->send_ok && !((mq_sent_where *)result)->queue_offset;
}

/* 0, or -1 with the error to raise. */
static int finish(const transactor *of, PyObject *result, PyObject *state) {
    if (!is_ours(result)) return tell(of, "finish", result, state, NULL);
    const mq_receipt *receipt = &((mq_sent_where *)result)->receipt;
    PyObject *log_offset = PyLong_FromLongLong(receipt->log_offset);
    PyObject *queue_offset = PyLong_FromLongLong(receipt->queue_offset);
    PyObject *ended = NULL;
    if (log_offset && queue_offset && of->end)
        ended = PyObject_CallFunctionObjArgs(of->end, log_offset, queue_offset, state, NULL);
    else if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "this producer is gone");
    Py_XDECREF(log_offset);
    Py_XDECREF(queue_offset);
    Py_XDECREF(ended);
    return ended ? 0 : tell_error(of, "unended", result, state);
}

/* Have it executed, and do what that says. 0, or -1 with the error to raise. */
static int decide(const transactor *of, PyObject *result, PyObject *message, PyObject *execute,
                  PyObject *arg) {
    PyObject *state = PyObject_CallFunctionObjArgs(execute, message, arg, NULL);
    if (!state) return tell_error(of, "executed", result, Py_None);
    int wrong = state == of->commit || state == of->rollback ? finish(of, result, state)
                                                             : tell(of, "executed", result, state, Py_None);
    Py_DECREF(state);
    return wrong;
}

static PyObject *send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const transactor *of = ((const transaction_sender *)self)->usual;
    if ((names && PyTuple_Size(names)) || count < 2 || count > 3 || !is_usual(args[0]) ||
        !PyCallable_Check(args[1]) || !of || !of->half)
        return mq_objects_call_slow_path(&mq_transaction_send, self, args, count, names);
    PyObject *result = PyObject_CallFunctionObjArgs(of->half, args[0], NULL);
    if (!result) return NULL;
    PyObject *arg = count == 3 ? args[2] : Py_None;
    if (!is_ours(result)) {
        PyObject *all[] = {result, args[0], args[1], arg};
        PyObject *decided = pass_on(of, "decide", all, 4, NULL);
        Py_DECREF(result);
        return decided;
    }
    if (decide(of, result, args[0], args[1], arg)) Py_CLEAR(result);
    return result;
}

static PyObject *begun(PyObject *self, PyObject *result) {
    const transactor *of = (const transactor *)self;
    if (!of->made) {
        PyErr_SetString(PyExc_RuntimeError, "this producer is gone");
        return NULL;
    }
    transaction *made = (transaction *)mq_objects_make(of->made);
    if (!made) return NULL;
    made->result = mq_objects_shared(result);
    made->by = mq_objects_shared(self);
    return (PyObject *)made;
}

static PyObject *begin(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    transactor *of = ((const transaction_sender *)self)->usual;
    if ((names && PyTuple_Size(names)) || count != 1 || !is_usual(args[0]) || !of || !of->half)
        return mq_objects_call_slow_path(&mq_transaction_begin, self, args, count, names);
    PyObject *result = PyObject_CallFunctionObjArgs(of->half, args[0], NULL);
    if (!result) return NULL;
    PyObject *made = is_ours(result) ? begun((PyObject *)of, result) : pass_on(of, "begun", &result, 1, NULL);
    Py_DECREF(result);
    return made;
}

mq_fast_method mq_transaction_send = {"transaction_send", "send", send, NULL, NULL};
mq_fast_method mq_transaction_begin = {"transaction_begin", "begin", begin, NULL, NULL};

static PyObject *transactor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *given[FIELD_COUNT];
    if (!PyArg_ParseTuple(args, "OOOO!OO:Transactor", &given[0], &given[1], &given[2], &PyType_Type,
                          &given[3], &given[4], &given[5]))
        return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    for (int i = 0; self && i < FIELD_COUNT; i++) fields_of(self)[i] = mq_objects_shared(given[i]);
    return self;
}

static PyMethodDef transactor_methods[] = {
    {"begun", begun, METH_O, "The transaction of a half message that was stored."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot transactor_slots[] = {
    {Py_tp_new, transactor_new},           {Py_tp_dealloc, transactor_dealloc},
    {Py_tp_traverse, transactor_traverse}, {Py_tp_clear, transactor_clear},
    {Py_tp_methods, transactor_methods},   {0, NULL},
};
static PyType_Spec transactor_spec = {"mq.fastpath.Transactor", sizeof(transactor), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, transactor_slots};

/* TransactionSender. */

static int sender_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((transaction_sender *)self)->usual);
    return 0;
}

static int sender_clear(PyObject *self) {
    Py_CLEAR(((transaction_sender *)self)->usual);
    return 0;
}

static void sender_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    sender_clear(self);
    mq_objects_free(self);
}

static PyObject *sender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return PyType_GenericAlloc(type, 0); /* the arguments are for __init__ */
}

static PyObject *transactor_type;

static PyObject *sender_start(PyObject *self, PyObject *usual) {
    transaction_sender *of = (transaction_sender *)self;
    if (of->usual || (PyObject *)Py_TYPE(usual) != transactor_type) {
        PyErr_SetString(PyExc_TypeError, "a producer is started once, with a Transactor");
        return NULL;
    }
    of->usual = (transactor *)mq_objects_shared(usual);
    Py_RETURN_NONE;
}

static PyMethodDef sender_methods[] = {{"_start", sender_start, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot sender_slots[] = {
    {Py_tp_new, sender_new},     {Py_tp_dealloc, sender_dealloc}, {Py_tp_traverse, sender_traverse},
    {Py_tp_clear, sender_clear}, {Py_tp_methods, sender_methods}, {0, NULL},
};
static PyType_Spec sender_spec = {"mq.fastpath.TransactionSender", sizeof(transaction_sender), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                  sender_slots};

/* TransactionFields. */

static int transaction_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((transaction *)self)->result);
    Py_VISIT(((transaction *)self)->state);
    Py_VISIT(((transaction *)self)->by);
    return 0;
}

static int transaction_clear(PyObject *self) {
    Py_CLEAR(((transaction *)self)->result);
    Py_CLEAR(((transaction *)self)->state);
    Py_CLEAR(((transaction *)self)->by);
    return 0;
}

static void transaction_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    transaction_clear(self);
    mq_objects_free(self);
}

/* The state first: whatever becomes of the end, this word was given. */
static int decide_now(transaction *of, PyObject *state) {
    if (!of->by || !of->result) {
        PyErr_SetString(PyExc_TypeError, "a transaction is begun by a TransactionProducer");
        return -1;
    }
    PyObject *old = of->state;
    of->state = mq_objects_shared(state);
    Py_XDECREF(old);
    const transactor *by = (const transactor *)of->by;
    return state == by->commit || state == by->rollback ? finish(by, of->result, state) : 0;
}

static PyObject *transaction_decide(PyObject *self, PyObject *state) {
    return decide_now((transaction *)self, state) ? NULL : mq_objects_shared(Py_None);
}

static PyObject *transaction_enter(PyObject *self, PyObject *unused) { return mq_objects_shared(self); }

static PyObject *transaction_exit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    transaction *of = (transaction *)self;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "__exit__ takes the kind, the error and its trace");
        return NULL;
    }
    if (of->state) Py_RETURN_NONE;
    if (args[0] != Py_None || !of->by) return PyObject_CallMethod(self, "_abandon", "O", args[0]);
    PyObject *commit = ((const transactor *)of->by)->commit;
    return commit && decide_now(of, commit) ? NULL : mq_objects_shared(Py_None);
}

static PyMemberDef transaction_members[] = {
    {"result", T_OBJECT_EX, offsetof(transaction, result), READONLY, "Of the half message."},
    {"state", T_OBJECT, offsetof(transaction, state), READONLY, "How it was decided; None: not yet."},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef transaction_methods[] = {
    {"_decide", transaction_decide, METH_O, NULL},
    {"__enter__", transaction_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))transaction_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot transaction_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, transaction_dealloc},
    {Py_tp_members, transaction_members},
    {Py_tp_methods, transaction_methods},
    {Py_tp_traverse, transaction_traverse},
    {Py_tp_clear, transaction_clear},
    {0, NULL},
};
static PyType_Spec transaction_spec = {"mq.fastpath.TransactionFields", sizeof(transaction), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                       transaction_slots};

int mq_objects_add_transactor(PyObject *module) {
    /* Both are kept: they are never given back. */
    transactor_type = PyType_FromModuleAndSpec(module, &transactor_spec, NULL);
    PyObject *sender_type = PyType_FromModuleAndSpec(module, &sender_spec, NULL);
    mq_transaction_send.base = mq_transaction_begin.base = sender_type;
    if (!transactor_type || !sender_type || PyModule_AddType(module, (PyTypeObject *)transactor_type) ||
        PyModule_AddType(module, (PyTypeObject *)sender_type))
        return -1;
    return mq_objects_add_type(module, &transaction_spec);
}
