/* What a consumer does with a queue as long as it owns it. commit_slot(address, turn, resets, offset) is
 * mq_slot_commit: a few instructions, for which the GIL is not given up.
 *
 * Messages for a listener: while_unchanged(messages, keep, address, value) gives what an iterator gives, and
 * ends once the word at an address has another value.
 *
 * The word is looked at before each message, since this process may have been stopped after the one before,
 * and others may have taken its queue over. `keep` has the memory there stay where it is. */
#include "objects.h"

#include <stdatomic.h>

#include "control/group_slots.h"

typedef struct {
    PyObject_HEAD PyObject *messages;
    PyObject *keep;
    const _Atomic int64_t *word;
    int64_t value;
} while_held;

static PyObject *held_type;
static __typeof__(mq_slot_commit) *commit_at;

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

static PyObject *commit_slot(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    int64_t numbers[4];
    if (count != 4 || !commit_at) return PyErr_Format(PyExc_TypeError, "commit_slot takes 4 numbers");
    for (int i = 0; i < 4; i++)
        if (!mq_objects_int64(args[i], &numbers[i]))
            return PyErr_Format(PyExc_TypeError, "commit_slot takes 4 numbers");
    return PyBool_FromLong(commit_at((int64_t *)(uintptr_t)numbers[0], numbers[1], numbers[2], numbers[3]));
}

static PyObject *bind_slots(PyObject *module, PyObject *args) {
    unsigned long long commit;
    if (!PyArg_ParseTuple(args, "K:bind_slots", &commit)) return NULL;
    commit_at = (__typeof__(mq_slot_commit) *)(uintptr_t)commit;
    Py_RETURN_NONE;
}

static PyType_Slot held_slots[] = {
    {Py_tp_dealloc, held_dealloc},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, held_next},
    {0, NULL},
};
static PyType_Spec held_spec = {"mq.fastpath.WhileUnchanged", sizeof(while_held), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, held_slots};
static PyMethodDef functions[] = {
    {"commit_slot", (PyCFunction)(void (*)(void))commit_slot, METH_FASTCALL,
     "commit_slot(address, turn, resets, offset)"},
    {"bind_slots", bind_slots, METH_VARARGS, "bind_slots(commit): the address of mq_slot_commit"},
    {"while_unchanged", while_unchanged, METH_VARARGS, "while_unchanged(messages, keep, address, value)"},
    {NULL, NULL, 0, NULL},
};

int mq_objects_add_held(PyObject *module) {
    held_type = PyType_FromModuleAndSpec(module, &held_spec, NULL);
    if (!held_type || PyModule_AddType(module, (PyTypeObject *)held_type)) return -1;
    return PyModule_AddFunctions(module, functions);
}
