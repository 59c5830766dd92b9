/* What Python makes, or touches, once a message: in C, since a Python function of its own would cost more than the
 * whole append. Each type is the least that speed asks for, and the base of a class in Python that has the rest:
 *
 *   SentFields     of mq.Message     topic, body, flag, encoded, plain; makes the usual message, asks `build` for others
 *   StoredFields   of mq.MessageExt  a record and the broker's name; cuts out the usual body, asks _decoded_body for others
 *   SendFields     of SendResult     the receipt of an append, taken apart on demand; or values
 *   PullFields     of PullResult     what one pull gave
 * The functions that make most of them are in calls.c.
 * Whatever is not the usual case is left to Python, which also raises all errors but those of memory.
 */
#include "objects.h"

#include <string.h>

enum { KEY_SIZE_MAX = 4096, AT_BODY_V4 = 88, COMPRESSED = 1 };

mq_known mq_objects_known;
static mq_known *const known = &mq_objects_known;

PyObject *mq_objects_make(PyObject *type) { return PyType_GenericAlloc((PyTypeObject *)type, 0); }

PyObject *mq_objects_shared(PyObject *value) {
    Py_INCREF(value);
    return value;
}

void mq_objects_free(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

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

static int fill_sent(mq_sent *of, PyObject *fields) {
    if (!PyTuple_Check(fields) || PyTuple_Size(fields) != 5) {
        PyErr_SetString(PyExc_TypeError, "five fields make a message");
        return -1;
    }
    PyObject **at[] = {&of->topic, &of->body, &of->flag, &of->plain, &of->encoded};
    for (int i = 0; i < 5; i++) {
        *at[i] = PyTuple_GetItem(fields, i);
        Py_INCREF(*at[i]);
    }
    return 0;
}

static PyObject *tags_name;
static PyObject *keys_name;

/* Tags seen before and one plain key, or none. NULL without an error: something else. */
static PyObject *usual_properties(PyObject *tags, PyObject *keys) {
    PyObject *prefix = PyDict_GetItemWithError(known->prefixes, tags ? tags : Py_None);
    if (!prefix) {
        PyErr_Clear(); /* tags that cannot be hashed are no tags: said by those who check them */
        return NULL;
    }
    if (!keys) {
        Py_INCREF(prefix);
        return prefix;
    }
    Py_ssize_t size;
    if (!PyUnicode_CheckExact(keys)) return NULL;
    const char *key = PyUnicode_AsUTF8AndSize(keys, &size);
    if (!key) PyErr_Clear();
    if (!key || size == 0 || size >= KEY_SIZE_MAX) return NULL;
    for (Py_ssize_t i = 0; i < size; i++)
        if (key[i] <= ' ' || key[i] == 127) return NULL; /* chars have a sign or not: beyond ASCII is for others */
        else if ((unsigned char)key[i] > 127) return NULL;
    Py_ssize_t prefix_size = PyBytes_Size(prefix);
    PyObject *encoded = PyBytes_FromStringAndSize(NULL, prefix_size + 5 + size + 1);
    if (!encoded) return NULL;
    char *at = PyBytes_AsString(encoded);
    memcpy(at, PyBytes_AsString(prefix), (size_t)prefix_size);
    memcpy(at + prefix_size, "KEYS\1", 5);
    memcpy(at + prefix_size + 5, key, (size_t)size);
    at[prefix_size + 5 + size] = 2;
    return encoded;
}

static PyObject *sent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    mq_sent *of = (mq_sent *)self;
    Py_ssize_t named = kwargs ? PyDict_Size(kwargs) : 0;
    if (PyTuple_Size(args) == 2 && named <= 2) {
        PyObject *topic = PyTuple_GetItem(args, 0);
        PyObject *body = PyTuple_GetItem(args, 1);
        PyObject *tags = named ? PyDict_GetItemWithError(kwargs, tags_name) : NULL;
        PyObject *keys = named ? PyDict_GetItemWithError(kwargs, keys_name) : NULL;
        if (named == (tags != NULL) + (keys != NULL) && PyUnicode_CheckExact(topic) && PyBytes_CheckExact(body) &&
            PyBytes_Size(body) && PySet_Contains(known->topics, topic) == 1) {
            of->encoded = usual_properties(tags, keys);
            if (of->encoded) {
                Py_INCREF(topic);
                of->topic = topic;
                Py_INCREF(body);
                of->body = body;
                of->flag = PyLong_FromLong(0);
                Py_INCREF(Py_True);
                of->plain = Py_True;
                return self;
            }
        }
        if (PyErr_Occurred()) goto failed;
    }
    PyObject *fields = PyObject_Call(known->build, args, kwargs);
    if (!fields) goto failed;
    int wrong = fill_sent(of, fields);
    Py_DECREF(fields);
    if (!wrong) return self;
failed:
    Py_DECREF(self);
    return NULL;
}

static PyObject *sent_restored(PyObject *type, PyObject *fields) {
    PyObject *self = mq_objects_make(type);
    if (self && fill_sent((mq_sent *)self, fields)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
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
    {"restored", sent_restored, METH_VARARGS | METH_CLASS, "A message of these fields, which were checked before."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot sent_slots[] = {
    {Py_tp_new, sent_new}, {Py_tp_dealloc, sent_dealloc}, {Py_tp_members, sent_members}, {Py_tp_methods, sent_methods}, {0, NULL},
};
static PyType_Spec sent_spec = {"mq.objects.SentFields", sizeof(mq_sent), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, sent_slots};

/* StoredFields. */

static void stored_dealloc(PyObject *self) {
    Py_XDECREF(((mq_stored *)self)->record);
    Py_XDECREF(((mq_stored *)self)->broker_name);
    mq_objects_free(self);
}

/* And not by `new`: a subclass may take other arguments than these. */
static int stored_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"record", "broker_name", NULL};
    mq_stored *of = (mq_stored *)self;
    PyObject *record;
    PyObject *broker_name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "SU:MessageExt", names, &record, &broker_name)) return -1;
    PyObject *old[] = {of->record, of->broker_name};
    of->record = mq_objects_shared(record);
    of->broker_name = mq_objects_shared(broker_name);
    Py_XDECREF(old[0]);
    Py_XDECREF(old[1]);
    return 0;
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
    if (*sys_flag & (MQ_FLAG_BORN_V6 | MQ_FLAG_STORE_V6) || body_size < 0 || body_size > size - AT_BODY_V4) return -1;
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
static PyType_Slot stored_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, stored_init}, {Py_tp_dealloc, stored_dealloc}, {Py_tp_members, stored_members}, {Py_tp_getset, stored_getset}, {0, NULL},
};
static PyType_Spec stored_spec = {"mq.objects.StoredFields", sizeof(mq_stored), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                  stored_slots};

/* SendFields. */

static void send_dealloc(PyObject *self) {
    mq_sent_where *of = (mq_sent_where *)self;
    Py_XDECREF(of->status);
    Py_XDECREF(of->queue);
    Py_XDECREF(of->queue_offset);
    Py_XDECREF(of->ids);
    Py_XDECREF(of->place);
    Py_XDECREF(of->transaction_id);
    mq_objects_free(self);
}

static PyObject *send_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"status", "queue", "queue_offset", "ids", "place", "transaction_id", NULL};
    PyObject *status, *queue, *queue_offset, *ids, *place, *transaction_id = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO|O:SendResult", names, &status, &queue, &PyLong_Type, &queue_offset,
                                     &ids, &place, &transaction_id))
        return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    mq_sent_where *of = (mq_sent_where *)self;
    PyObject **at[] = {&of->status, &of->queue, &of->queue_offset, &of->ids, &of->place, &of->transaction_id};
    PyObject *values[] = {status, queue, queue_offset, ids, place, transaction_id};
    for (int i = 0; i < 6; i++) {
        Py_INCREF(values[i]);
        *at[i] = values[i];
    }
    return self;
}

static PyObject *send_queue_offset(PyObject *self, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    return of->queue_offset ? mq_objects_shared(of->queue_offset) : PyLong_FromLongLong(of->receipt.queue_offset);
}
static PyObject *send_ids(PyObject *self, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    if (of->ids) return mq_objects_shared(of->ids);
    return PyUnicode_DecodeASCII(of->receipt.unique_id, (Py_ssize_t)strnlen(of->receipt.unique_id, sizeof of->receipt.unique_id),
                                 "replace");
}
static int send_set_ids(PyObject *self, PyObject *ids, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    if (!ids) return -1;
    Py_XDECREF(of->ids);
    of->ids = mq_objects_shared(ids);
    return 0;
}
static PyObject *send_place(PyObject *self, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    return of->place ? mq_objects_shared(of->place) : Py_BuildValue("(OL)", known->host, (long long)of->receipt.log_offset);
}
static int send_set_place(PyObject *self, PyObject *place, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    if (!place) return -1;
    Py_XDECREF(of->place);
    of->place = mq_objects_shared(place);
    return 0;
}
static PyObject *send_transaction_id(PyObject *self, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    return mq_objects_shared(of->transaction_id ? of->transaction_id : Py_None);
}

static PyObject *send_receipt(PyObject *self, void *unused) {
    mq_sent_where *of = (mq_sent_where *)self;
    return PyBytes_FromStringAndSize((const char *)&of->receipt, sizeof of->receipt);
}

static PyMemberDef send_members[] = {
    {"status", T_OBJECT_EX, offsetof(mq_sent_where, status), READONLY, NULL},
    {"queue", T_OBJECT_EX, offsetof(mq_sent_where, queue), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef send_getset[] = {
    {"queue_offset", send_queue_offset, NULL, NULL, NULL},
    {"transaction_id", send_transaction_id, NULL, NULL, NULL},
    {"_receipt", send_receipt, NULL, "mq_receipt, where an append left it", NULL},
    {"_ids", send_ids, send_set_ids, NULL, NULL},
    {"_place", send_place, send_set_place, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot send_slots[] = {
    {Py_tp_new, send_new}, {Py_tp_dealloc, send_dealloc}, {Py_tp_members, send_members}, {Py_tp_getset, send_getset}, {0, NULL},
};
static PyType_Spec send_spec = {"mq.objects.SendFields", sizeof(mq_sent_where), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, send_slots};

/* PullFields. */

static void pull_dealloc(PyObject *self) {
    Py_XDECREF(((mq_pulled *)self)->status);
    Py_XDECREF(((mq_pulled *)self)->messages);
    mq_objects_free(self);
}

static PyObject *pull_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"status", "messages", "next_offset", "min_offset", "max_offset", NULL};
    PyObject *status, *messages;
    long long next_offset, min_offset, max_offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLLL:PullResult", names, &status, &messages, &next_offset, &min_offset,
                                     &max_offset))
        return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    mq_pulled *of = (mq_pulled *)self;
    of->status = mq_objects_shared(status);
    of->messages = mq_objects_shared(messages);
    of->next_offset = next_offset;
    of->min_offset = min_offset;
    of->max_offset = max_offset;
    return self;
}

static PyMemberDef pull_members[] = {
    {"status", T_OBJECT_EX, offsetof(mq_pulled, status), READONLY, NULL},
    {"messages", T_OBJECT_EX, offsetof(mq_pulled, messages), READONLY, NULL},
    {"next_offset", T_LONGLONG, offsetof(mq_pulled, next_offset), READONLY, NULL},
    {"min_offset", T_LONGLONG, offsetof(mq_pulled, min_offset), READONLY, NULL},
    {"max_offset", T_LONGLONG, offsetof(mq_pulled, max_offset), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot pull_slots[] = {
    {Py_tp_new, pull_new}, {Py_tp_dealloc, pull_dealloc}, {Py_tp_members, pull_members}, {0, NULL},
};
static PyType_Spec pull_spec = {"mq.objects.PullFields", sizeof(mq_pulled), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, pull_slots};

int mq_objects_add_values(PyObject *module) {
    PyType_Spec *const specs[] = {&sent_spec, &stored_spec, &send_spec, &pull_spec};
    tags_name = PyUnicode_InternFromString("tags");
    keys_name = PyUnicode_InternFromString("keys");
    for (int i = 0; i < 4; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        if (!type || PyModule_AddType(module, (PyTypeObject *)type)) return -1;
        Py_DECREF(type);
    }
    return tags_name && keys_name ? 0 : -1;
}
