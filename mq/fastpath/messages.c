/* Messages: SentFields, which makes the usual one itself and asks `build` for the others, and StoredFields,
 * which cuts the usual body and property string out of its record and asks Python for those of other records.
 * See objects.c.
 */
#include "objects.h"

#include <string.h>

enum { KEY_SIZE_MAX = 4096, AT_BODY_V4 = 88, COMPRESSED = 1, LEVEL_MAX = 18 };

static mq_known *const known = &mq_objects_known;

/* SentFields. */

static void sent_dealloc(PyObject *self) {
    mq_sent *of = (mq_sent *)self;
    Py_XDECREF(of->topic);
    Py_XDECREF(of->body);
    Py_XDECREF(of->flag);
    Py_XDECREF(of->plain);
    Py_XDECREF(of->encoded);
    mq_objects_free(self);
}

/* A number of a property, up to the end of its value; -1 where it is none. What is too large stays large. */
static int64_t number_at(const char *at, const char *end) {
    int64_t number = 0;
    if (at == end) return -1;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9') return -1;
        number = number > (INT64_MAX - 9) / 10 ? INT64_MAX : number * 10 + (*at - '0');
    }
    return number;
}

static const char *value_after(const char *piece, const char *end, const char *name) {
    size_t size = strlen(name);
    return (size_t)(end - piece) > size && memcmp(piece, name, size) == 0 ? piece + size : NULL;
}

/* What a property string asks for: when its message is delivered, for one. A level counts before a delay,
 * that before a time; of equal names the last one does. */
static void find_wishes(mq_sent *of) {
    static const char *const names[] = {[MQ_LATER_BY_LEVEL] = "DELAY\1",
                                        [MQ_LATER_BY_DELAY] = "TIMER_DELAY_MS\1",
                                        [MQ_LATER_BY_TIME] = "TIMER_DELIVER_MS\1"};
    int64_t amounts[4] = {-1, -1, -1, -1};
    const char *at = PyBytes_AsString(of->encoded);
    const char *end = at + PyBytes_Size(of->encoded);
    while (at < end) {
        const char *stop = memchr(at, 2, (size_t)(end - at));
        if (!stop) stop = end;
        const char *value = value_after(at, stop, "WAIT\1");
        if (value) of->hurried = stop - value == 5 && memcmp(value, "false", 5) == 0;
        if (value_after(at, stop, "DEDUP_KEY\1")) of->keyed = 1;
        for (int i = MQ_LATER_BY_LEVEL; i <= MQ_LATER_BY_TIME; i++)
            if ((value = value_after(at, stop, names[i]))) amounts[i] = number_at(value, stop);
        at = stop + 1;
    }
    for (int i = MQ_LATER_BY_LEVEL; i <= MQ_LATER_BY_TIME && !of->later; i++) {
        if (amounts[i] < (i == MQ_LATER_BY_LEVEL)) continue;
        of->later = (char)i;
        of->amount = amounts[i];
    }
}

static int fill_sent(PyObject *self, PyObject *fields, PyObject *unused) {
    mq_sent *of = (mq_sent *)self;
    PyObject *values[5];
    PyObject **at[] = {&of->topic, &of->body, &of->flag, &of->plain, &of->encoded};
    if (of->plain) return mq_objects_refuse_again();
    int right = PyTuple_Check(fields) && PyTuple_Size(fields) == 5;
    for (int i = 0; right && i < 5; i++) values[i] = PyTuple_GetItem(fields, i);
    if (!right || !PyUnicode_CheckExact(values[0]) || !PyBytes_CheckExact(values[1]) ||
        !PyLong_CheckExact(values[2]) || !PyBool_Check(values[3]) || !PyBytes_CheckExact(values[4])) {
        PyErr_SetString(PyExc_TypeError, "a message is made of a str, bytes, an int, a bool and bytes");
        return -1;
    }
    for (int i = 0; i < 5; i++) *at[i] = mq_objects_shared(values[i]);
    if (of->plain != Py_True) find_wishes(of);
    return 0;
}

static PyObject *tags_name;
static PyObject *keys_name;
static PyObject *later_names[4]; /* by MQ_LATER_… */
static PyObject *zero;

/* Tags seen before and one plain key, or none; and `more`. NULL without an error: something else. */
static PyObject *usual_properties(PyObject *tags, PyObject *keys, const char *more, Py_ssize_t more_size) {
    if (tags && tags != Py_None && !PyUnicode_CheckExact(tags)) return NULL;
    PyObject *prefix = PyDict_GetItemWithError(known->prefixes, tags ? tags : Py_None);
    if (!prefix) return NULL;
    if (!keys && !more_size) return mq_objects_shared(prefix);
    Py_ssize_t size = 0;
    if (keys && !PyUnicode_CheckExact(keys)) return NULL;
    const char *key = keys ? PyUnicode_AsUTF8AndSize(keys, &size) : "";
    if (!key) PyErr_Clear();
    if (!key || (keys && size == 0) || size >= KEY_SIZE_MAX) return NULL;
    for (Py_ssize_t i = 0; i < size; i++) /* chars have a sign or not: beyond ASCII is for others */
        if (key[i] <= ' ' || key[i] == 127) return NULL;
        else if ((unsigned char)key[i] > 127) return NULL;
    Py_ssize_t prefix_size = PyBytes_Size(prefix);
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, prefix_size + (keys ? 5 + size + 1 : 0) + more_size);
    if (!encoded) return NULL;
    char *at = PyBytes_AsString(encoded);
    memcpy(at, PyBytes_AsString(prefix), (size_t)prefix_size);
    at += prefix_size;
    if (keys) {
        memcpy(at, "KEYS\1", 5);
        memcpy(at + 5, key, (size_t)size);
        at[5 + size] = 2;
        at += 5 + size + 1;
    }
    if (more_size) memcpy(at, more, (size_t)more_size);
    return encoded;
}

/* The property of the one delay that is given, and what it is. 0: no argument of a delay, or of any other
 * kind. */
static int usual_delay(PyObject *kwargs, mq_sent *of, char *into) {
    static const char *const names[] = {NULL, "DELAY", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"};
    for (int i = MQ_LATER_BY_LEVEL; i <= MQ_LATER_BY_TIME; i++) {
        PyObject *value = PyDict_GetItemWithError(kwargs, later_names[i]);
        if (!value) continue;
        int overflow = 1;
        long long amount = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
        if (overflow || amount < (i == MQ_LATER_BY_LEVEL) || (i == MQ_LATER_BY_LEVEL && amount > LEVEL_MAX))
            return 0;
        of->later = (char)i;
        of->amount = amount;
        return (int)(mq_objects_number(into, names[i], amount) - into);
    }
    return 0;
}

static int sent_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    mq_sent *of = (mq_sent *)self;
    Py_ssize_t named = kwargs ? PyDict_Size(kwargs) : 0;
    if (PyTuple_Size(args) == 2 && named <= 3 && !of->plain) {
        PyObject *topic = PyTuple_GetItem(args, 0);
        PyObject *body = PyTuple_GetItem(args, 1);
        PyObject *tags = named ? PyDict_GetItemWithError(kwargs, tags_name) : NULL;
        PyObject *keys = named ? PyDict_GetItemWithError(kwargs, keys_name) : NULL;
        Py_ssize_t others = named - (tags != NULL) - (keys != NULL);
        char delay[64];
        int delay_size = 0;
        if (others <= 1 && PyUnicode_CheckExact(topic) && PyBytes_CheckExact(body) && PyBytes_Size(body) &&
            PySet_Contains(known->topics, topic) == 1 &&
            (!others || (delay_size = usual_delay(kwargs, of, delay)))) {
            of->encoded = usual_properties(tags, keys, delay, delay_size);
            if (of->encoded) {
                of->topic = mq_objects_shared(topic);
                of->body = mq_objects_shared(body);
                of->flag = mq_objects_shared(zero);
                of->plain = mq_objects_shared(others ? Py_False : Py_True);
                return 0;
            }
            of->later = MQ_AT_ONCE;
        }
        if (PyErr_Occurred()) return -1;
    }
    PyObject *fields = PyObject_Call(known->build, args, kwargs);
    if (!fields) return -1;
    int result = fill_sent(self, fields, NULL);
    Py_DECREF(fields);
    return result;
}

static PyObject *sent_restored(PyObject *type, PyObject *fields) {
    return mq_objects_restored(type, fields, fill_sent);
}

static PyMemberDef sent_members[] = {
    {"topic", T_OBJECT_EX, offsetof(mq_sent, topic), READONLY, NULL},
    {"body", T_OBJECT_EX, offsetof(mq_sent, body), READONLY, NULL},
    {"flag", T_OBJECT_EX, offsetof(mq_sent, flag), READONLY, NULL},
    {"plain", T_OBJECT_EX, offsetof(mq_sent, plain), READONLY, NULL},
    {"encoded", T_OBJECT_EX, offsetof(mq_sent, encoded), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef sent_methods[] = {
    {"restored", sent_restored, METH_VARARGS | METH_CLASS,
     "A value of these fields, which were checked before."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot sent_slots[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, sent_init},       {Py_tp_dealloc, sent_dealloc},
    {Py_tp_members, sent_members},  {Py_tp_methods, sent_methods}, {0, NULL},
};
static PyType_Spec sent_spec = {"mq.fastpath.SentFields", sizeof(mq_sent), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, sent_slots};

static PyObject *sent_type;

int mq_objects_is_sent(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return ((PyObject *)type == known->message || PyType_IsSubtype(type, (PyTypeObject *)sent_type)) &&
           ((const mq_sent *)value)->plain;
}

/* StoredFields. */

static void stored_dealloc(PyObject *self) {
    Py_XDECREF(((mq_stored *)self)->record);
    Py_XDECREF(((mq_stored *)self)->broker_name);
    mq_objects_free(self);
}

static int stored_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"record", "broker_name", NULL};
    mq_stored *of = (mq_stored *)self;
    PyObject *record;
    PyObject *broker_name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SU:MessageExt", names, &record, &broker_name)) return -1;
    if (of->record) return mq_objects_refuse_again();
    if (PyBytes_CheckExact(record)) record = mq_objects_shared(record);
    else record = PyBytes_FromStringAndSize(PyBytes_AsString(record), PyBytes_Size(record));
    broker_name = record ? PyUnicode_FromObject(broker_name) : NULL;
    if (!broker_name) {
        Py_XDECREF(record);
        return -1;
    }
    of->record = record;
    of->broker_name = broker_name;
    return 0;
}

static PyObject *stored_restored(PyObject *type, PyObject *fields) {
    return mq_objects_restored(type, fields, stored_init);
}

static int32_t word_at(const char *bytes) {
    const unsigned char *at = (const unsigned char *)bytes;
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

/* The size of the body where it lies where it usually does, behind two IPv4 hosts; -1 otherwise. */
static Py_ssize_t usual_body(const char *bytes, Py_ssize_t size, int32_t *sys_flag) {
    if (size < AT_BODY_V4) return -1;
    *sys_flag = word_at(bytes + 36);
    int32_t body_size = word_at(bytes + 84);
    if (*sys_flag & (MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6) || body_size < 0 || body_size > size - AT_BODY_V4)
        return -1;
    return body_size;
}

static PyObject *stored_body(PyObject *self, void *unused) {
    PyObject *record = ((mq_stored *)self)->record;
    if (!record) return PyObject_GetAttrString(self, "record"); /* which says what is missing */
    const char *bytes = PyBytes_AsString(record);
    int32_t sys_flag;
    Py_ssize_t size = usual_body(bytes, PyBytes_Size(record), &sys_flag);
    if (size < 0 || sys_flag & COMPRESSED) return PyObject_CallMethod(self, "_decoded_body", NULL);
    return PyBytes_FromStringAndSize(bytes + AT_BODY_V4, size);
}

static PyObject *stored_encoded(PyObject *self, void *unused) {
    PyObject *record = ((mq_stored *)self)->record;
    if (!record) return PyObject_GetAttrString(self, "record");
    const char *bytes = PyBytes_AsString(record);
    Py_ssize_t size = PyBytes_Size(record);
    int32_t sys_flag;
    Py_ssize_t body_size = usual_body(bytes, size, &sys_flag);
    Py_ssize_t at = AT_BODY_V4 + body_size; /* of the topic's size, in one byte */
    if (body_size >= 0 && word_at(bytes + 4) == MQ_MAGIC_V1 && at < size) {
        at += 1 + (unsigned char)bytes[at] + 2;
        if (at <= size) return PyBytes_FromStringAndSize(bytes + at, size - at);
    }
    return PyObject_CallMethod(self, "_encoded_elsewhere", NULL);
}

static PyMemberDef stored_members[] = {
    {"record", T_OBJECT_EX, offsetof(mq_stored, record), READONLY, NULL},
    {"broker_name", T_OBJECT_EX, offsetof(mq_stored, broker_name), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef stored_getset[] = {
    {"body", stored_body, NULL,
     "The body as its producer gave it, decompressed where the flags say so: see mq.compression for what\n"
     "that may raise.",
     NULL},
    {"encoded", stored_encoded, NULL, "The property string.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef stored_methods[] = {
    {"restored", stored_restored, METH_VARARGS | METH_CLASS, "A value of these fields."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot stored_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, stored_init},
    {Py_tp_dealloc, stored_dealloc},
    {Py_tp_members, stored_members},
    {Py_tp_getset, stored_getset},
    {Py_tp_methods, stored_methods},
    {0, NULL},
};
static PyType_Spec stored_spec = {"mq.fastpath.StoredFields", sizeof(mq_stored), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, stored_slots};

int mq_objects_add_messages(PyObject *module) {
    tags_name = PyUnicode_InternFromString("tags");
    keys_name = PyUnicode_InternFromString("keys");
    later_names[MQ_LATER_BY_LEVEL] = PyUnicode_InternFromString("delay_level");
    later_names[MQ_LATER_BY_DELAY] = PyUnicode_InternFromString("delay_ms");
    later_names[MQ_LATER_BY_TIME] = PyUnicode_InternFromString("deliver_at_ms");
    zero = PyLong_FromLong(0);
    for (int i = MQ_LATER_BY_LEVEL; i <= MQ_LATER_BY_TIME; i++)
        if (!later_names[i]) return -1;
    if (!tags_name || !keys_name || !zero) return -1;
    sent_type = PyType_FromModuleAndSpec(module, &sent_spec, NULL); /* kept: it is never given back */
    if (!sent_type || PyModule_AddType(module, (PyTypeObject *)sent_type)) return -1;
    return mq_objects_add_type(module, &stored_spec);
}
