/* Messages of a queue for a listener, as long as its consumer owns the queue: while_unchanged(messages, keep, address,
 * value) gives what an iterator gives, and ends once the word at an address has another value.
 *
 * The word is looked at before each message, since this process may have been stopped after the one before, and others
 * may have taken its queue over. `keep` has the memory there stay where it is. */
#include "objects.h"

#include <stdatomic.h>

typedef struct {
    PyObject_HEAD PyObject *messages;
    PyObject *keep;
    const _Atomic int64_t *word;
    int64_t value;
} while_held;

static PyObject *held_type;

static void held_dealloc(PyObject *self) {
    while_held *of = (while_held *)self;
    Py_CLEAR(of->messages);
    Py_CLEAR(of->keep);
    mq_objects_free(self);
}

static PyObject *held_next(PyObject *self) {
    while_held *of = (while_held *)self;
    return atomic_load(of->word) == of->value ? PyIter_Next(of->messages) : NULL;
}

static PyObject *while_unchanged(PyObject *module, PyObject *args) {
    PyObject *messages, *keep;
    unsigned long long address;
    long long value;
    if (!PyArg_ParseTuple(args, "OOKL:while_unchanged", &messages, &keep, &address, &value)) return NULL;
    if (!PyIter_Check(messages)) return PyErr_Format(PyExc_TypeError, "messages are an iterator");
    while_held *made = (while_held *)mq_objects_make(held_type);
    if (!made) return NULL;
    made->messages = mq_objects_shared(messages);
    made->keep = mq_objects_shared(keep);
    made->word = (const _Atomic int64_t *)(uintptr_t)address;
    made->value = value;
    return (PyObject *)made;
}

static PyType_Slot held_slots[] = {
    {Py_tp_dealloc, held_dealloc}, {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, held_next}, {0, NULL},
};
static PyType_Spec held_spec = {"mq.objects.WhileUnchanged", sizeof(while_held), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, held_slots};
static PyMethodDef functions[] = {
    {"while_unchanged", while_unchanged, METH_VARARGS, "while_unchanged(messages, keep, address, value)"},
    {NULL, NULL, 0, NULL},
};

int mq_objects_add_held(PyObject *module) {
    held_type = PyType_FromModuleAndSpec(module, &held_spec, NULL);
    if (!held_type || PyModule_AddType(module, (PyTypeObject *)held_type)) return -1;
    return PyModule_AddFunctions(module, functions);
}
