/* Batches: what is asked of every message of one, and all of them laid side by side, in one pass each.
 *
 * Both give None where something is not the usual kind; the caller then looks for itself, and says what is
 * wrong.
 */
#include "objects.h"

#include <string.h>

/* Message number i of a list, if it is of the very class. */
static const mq_sent *at(PyObject *messages, Py_ssize_t i) {
    PyObject *message = PyList_GetItem(messages, i);
    return message && (PyObject *)Py_TYPE(message) == mq_objects_known.message ? (const mq_sent *)message
                                                                               : NULL;
}

/* survey(messages) -> bytes of bodies and properties together, if all are plain messages of the first one's
 * topic. */
PyObject *mq_objects_survey(PyObject *module, PyObject *messages) {
    if (!PyList_Check(messages) || PyList_Size(messages) == 0) Py_RETURN_NONE;
    const mq_sent *first = at(messages, 0);
    long long size = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(messages); i++) {
        const mq_sent *message = at(messages, i);
        if (!message || message->plain != Py_True) Py_RETURN_NONE;
        if (message->topic != first->topic && PyUnicode_Compare(message->topic, first->topic) != 0) {
            if (PyErr_Occurred()) return NULL;
            Py_RETURN_NONE;
        }
        size += PyBytes_Size(message->body) + PyBytes_Size(message->encoded);
    }
    return PyLong_FromLongLong(size);
}

/* The bytes of a new bytes object of this size. */
static char *room(PyObject **bytes, Py_ssize_t size) {
    *bytes = PyBytes_FromStringAndSize(NULL, size);
    return *bytes ? PyBytes_AsString(*bytes) : NULL;
}

/* pack(messages) -> (bodies, body sizes, properties, properties sizes): sizes are native 32-bit numbers. Only
 * of plain messages without a flag. */
PyObject *mq_objects_pack(PyObject *module, PyObject *messages) {
    if (!PyList_Check(messages)) Py_RETURN_NONE;
    /* First of all: it may have garbage collected, which runs anything; what follows runs nothing, so the
     * list stays. */
    PyObject *packed = PyTuple_New(4);
    if (!packed) return NULL;
    Py_ssize_t count = PyList_Size(messages);
    Py_ssize_t bodies_size = 0;
    Py_ssize_t properties_size = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const mq_sent *message = at(messages, i);
        if (!message || message->plain != Py_True || PyObject_IsTrue(message->flag) ||
            PyBytes_Size(message->body) > INT32_MAX || PyBytes_Size(message->encoded) > INT32_MAX) {
            Py_DECREF(packed);
            Py_RETURN_NONE;
        }
        bodies_size += PyBytes_Size(message->body);
        properties_size += PyBytes_Size(message->encoded);
    }
    PyObject *parts[4] = {NULL};
    char *bodies = room(&parts[0], bodies_size);
    char *body_sizes = room(&parts[1], count * 4);
    char *properties = room(&parts[2], properties_size);
    char *properties_sizes = room(&parts[3], count * 4);
    if (!bodies || !body_sizes || !properties || !properties_sizes) {
        for (int i = 0; i < 4; i++) Py_XDECREF(parts[i]);
        Py_DECREF(packed);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const mq_sent *message = at(messages, i);
        int32_t size = (int32_t)PyBytes_Size(message->body);
        memcpy(bodies, PyBytes_AsString(message->body), (size_t)size);
        memcpy(body_sizes + i * 4, &size, 4);
        bodies += size;
        size = (int32_t)PyBytes_Size(message->encoded);
        memcpy(properties, PyBytes_AsString(message->encoded), (size_t)size);
        memcpy(properties_sizes + i * 4, &size, 4);
        properties += size;
    }
    for (int i = 0; i < 4; i++) PyTuple_SetItem(packed, i, parts[i]);
    return packed;
}
