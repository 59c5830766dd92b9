/* Methods in C that take the place of methods in Python.
 *
 *   fast_method(name, owner, text, slow_path)
 *
 * The method of this name (see mq_fast_method) as a descriptor of `owner`, a class in Python whose base is
 * that of the method. It is what CPython's own types have: help(), signatures, subclasses and mock find a
 * method like any other, and a call of it makes no bound function. `text` is its __text_signature__ and
 * documentation in the form of ml_doc. With what the method is not for it calls `slow_path`, the function in
 * Python, as it was called itself.
 */
#include "objects.h"

#include <string.h>

static char *copy_of(const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = PyMem_Malloc(size);
    return copy ? memcpy(copy, text, size) : NULL;
}

PyObject *mq_objects_fast_method(PyObject *module, PyObject *args) {
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
