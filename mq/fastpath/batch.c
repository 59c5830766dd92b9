/* Batches: what is asked of every message of one, all of them laid side by side, and messages made of what
 * came over a network, in one pass each.
 *
 * All give None where something is not the usual kind; the caller then looks for itself, and says what is
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

static int32_t big_endian(const char *at, int size) {
    int32_t number = (signed char)*at;
    for (int i = 1; i < size; i++) number = (int32_t)((uint32_t)number << 8 | (unsigned char)at[i]);
    return number;
}

/* Whether a property is kept, by the rule of its name: 1, 0, or -1: not usual, or an error is set. */
static int keeps(PyObject *rules, const char *name, Py_ssize_t name_size, const char *value,
                 Py_ssize_t size) {
    PyObject *key = PyBytes_FromStringAndSize(name, name_size);
    if (!key) return -1;
    PyObject *rule = PyDict_GetItemWithError(rules, key);
    Py_DECREF(key);
    if (!rule) return PyErr_Occurred() ? -1 : 1;
    if (rule == Py_None) return 0;
    if (PyBytes_Check(rule))
        return PyBytes_Size(rule) == size && memcmp(PyBytes_AsString(rule), value, (size_t)size) == 0 ? 0
                                                                                                      : -1;
    long long size_max = PyLong_AsLongLong(rule);
    return size <= size_max && !PyErr_Occurred() ? 1 : -1;
}

/* Whether these bytes are text. */
static int is_utf8(const char *at, Py_ssize_t size) {
    Py_ssize_t ascii = 0;
    while (ascii < size && !(at[ascii] & 0x80)) ascii++;
    if (ascii == size) return 1;
    PyObject *text = PyUnicode_DecodeUTF8(at, size, NULL);
    if (!text) PyErr_Clear();
    Py_XDECREF(text);
    return text != NULL;
}

/* The property string that is stored of one that was sent. NULL without an error: it is not usual. */
static PyObject *kept_properties(PyObject *rules, const char *sent, Py_ssize_t size) {
    if (!is_utf8(sent, size)) return NULL;
    PyObject *all;
    char *begin = room(&all, size + 1);
    if (!begin) return NULL;
    char *to = begin;
    const char *end = sent + size;
    for (const char *next, *at = sent; at < end; at = next + 1) {
        next = memchr(at, 2, (size_t)(end - at));
        if (!next) next = end;
        const char *value = memchr(at, 1, (size_t)(next - at));
        if (!value || value == at || value + 1 == next) continue;
        int kept = keeps(rules, at, value - at, value + 1, next - value - 1);
        if (kept < 0) {
            Py_DECREF(all);
            return NULL;
        }
        if (!kept) continue;
        memcpy(to, at, (size_t)(next - at));
        to += next - at;
        *to++ = 2;
    }
    PyObject *properties = PyBytes_FromStringAndSize(begin, to - begin);
    Py_DECREF(all);
    return properties;
}

/* The message at `*at`, which goes behind it. NULL without an error: it is not usual. */
static PyObject *sent_at(PyObject *topic, PyObject *rules, const char **at, const char *end) {
    enum { BODY = 20, SIZE_MIN = BODY + 2 };
    if (end - *at < SIZE_MIN) return NULL;
    int32_t size = big_endian(*at, 4);
    int32_t body_size = big_endian(*at + 16, 4);
    if (size < SIZE_MIN || size > end - *at || body_size < 1 || body_size > size - SIZE_MIN) return NULL;
    const char *properties = *at + BODY + body_size + 2;
    int32_t properties_size = big_endian(properties - 2, 2);
    if (properties_size != size - SIZE_MIN - body_size) return NULL;
    PyObject *parts[4] = {PyBytes_FromStringAndSize(*at + BODY, body_size), NULL, NULL, NULL};
    if (parts[0]) parts[1] = kept_properties(rules, properties, properties_size);
    if (parts[1]) parts[2] = PyLong_FromLong(big_endian(*at + 12, 4));
    PyObject *made = parts[2] ? mq_objects_make(mq_objects_known.message) : NULL;
    if (made) {
        mq_sent *of = (mq_sent *)made;
        of->topic = mq_objects_shared(topic);
        of->body = mq_objects_shared(parts[0]);
        of->encoded = mq_objects_shared(parts[1]);
        of->flag = mq_objects_shared(parts[2]);
        of->plain = mq_objects_shared(Py_True);
    }
    for (int i = 0; i < 4; i++) Py_XDECREF(parts[i]);
    *at += size;
    return made;
}

/* unpack(topic, batch, rules) -> the plain messages of a batch as RocketMQ's clients send it: see
 * mq/remoting/codec/batch.py. `rules` has, by name, which properties are not just kept: None for one that is
 * dropped, bytes for one that is dropped if it has this value, an int for one that is kept up to so many
 * bytes; other values are not usual. */
PyObject *mq_objects_unpack(PyObject *module, PyObject *args) {
    PyObject *topic, *batch, *rules;
    if (!PyArg_ParseTuple(args, "UO!O!:unpack", &topic, &PyBytes_Type, &batch, &PyDict_Type, &rules))
        return NULL;
    const char *at = PyBytes_AsString(batch);
    const char *end = at + PyBytes_Size(batch);
    PyObject *messages = PyList_New(0);
    while (messages && at < end) {
        PyObject *message = sent_at(topic, rules, &at, end);
        int failed = !message || PyList_Append(messages, message);
        Py_XDECREF(message);
        if (!failed) continue;
        Py_CLEAR(messages);
        if (!PyErr_Occurred()) Py_RETURN_NONE;
    }
    return messages;
}
