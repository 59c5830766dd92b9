/* Results: SendFields, as an append left them or made of values, and PullFields. See objects.c. */
#include "objects.h"

#include <string.h>

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

static int send_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"status", "queue",          "queue_offset", "ids",
                            "place",  "transaction_id", "out_ms",       NULL};
    mq_sent_where *of = (mq_sent_where *)self;
    PyObject *status, *queue, *queue_offset, *ids, *place, *transaction_id = Py_None;
    long long out_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO|OL:SendResult", names, &status, &queue,
                                     &PyLong_Type, &queue_offset, &ids, &place, &transaction_id, &out_ms))
        return -1;
    if (of->status) return mq_objects_refuse_again();
    of->out_ms = out_ms;
    PyObject **at[] = {&of->status, &of->queue, &of->queue_offset, &of->ids, &of->place, &of->transaction_id};
    PyObject *values[] = {status, queue, queue_offset, ids, place, transaction_id};
    for (int i = 0; i < 6; i++) *at[i] = mq_objects_shared(values[i]);
    return 0;
}

static PyObject *send_restored(PyObject *type, PyObject *fields) {
    return mq_objects_restored(type, fields, send_init);
}

/* NULL with an error where nothing was filled in. */
static const mq_sent_where *filled(PyObject *self, const char *asked) {
    const mq_sent_where *of = (const mq_sent_where *)self;
    if (of->status) return of;
    PyErr_SetString(PyExc_AttributeError, asked);
    return NULL;
}

static int replace(PyObject **at, PyObject *value) {
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "this cannot be deleted");
        return -1;
    }
    PyObject *old = *at;
    *at = mq_objects_shared(value);
    Py_XDECREF(old); /* last: it may ask for what stands here */
    return 0;
}

static PyObject *send_queue_offset(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "queue_offset");
    if (!of) return NULL;
    return of->queue_offset ? mq_objects_shared(of->queue_offset)
                            : PyLong_FromLongLong(of->receipt.queue_offset);
}

static PyObject *send_ids(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "_ids");
    if (!of) return NULL;
    if (of->ids) return mq_objects_shared(of->ids);
    return PyUnicode_DecodeASCII(of->receipt.unique_id,
                                 (Py_ssize_t)strnlen(of->receipt.unique_id, sizeof of->receipt.unique_id),
                                 "replace");
}

static int send_set_ids(PyObject *self, PyObject *ids, void *unused) {
    return replace(&((mq_sent_where *)self)->ids, ids);
}

static PyObject *send_place(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "_place");
    if (!of) return NULL;
    if (of->place) return mq_objects_shared(of->place);
    const mq_receipt *receipt = &of->receipt;
    return Py_BuildValue("(y#L)", (const char *)receipt->store_host, (Py_ssize_t)sizeof receipt->store_host,
                         (long long)receipt->log_offset);
}

static int send_set_place(PyObject *self, PyObject *place, void *unused) {
    return replace(&((mq_sent_where *)self)->place, place);
}

static PyObject *send_transaction_id(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "transaction_id");
    if (!of) return NULL;
    return mq_objects_shared(of->transaction_id ? of->transaction_id : Py_None);
}

static PyObject *send_out_ms(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "_out_ms");
    return of ? PyLong_FromLongLong(of->out_ms) : NULL;
}

static PyObject *send_receipt(PyObject *self, void *unused) {
    const mq_sent_where *of = filled(self, "_receipt");
    return of ? PyBytes_FromStringAndSize((const char *)&of->receipt, sizeof of->receipt) : NULL;
}

static PyMemberDef send_members[] = {
    {"status", T_OBJECT_EX, offsetof(mq_sent_where, status), READONLY, NULL},
    {"queue", T_OBJECT_EX, offsetof(mq_sent_where, queue), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef send_getset[] = {
    {"queue_offset", send_queue_offset, NULL, NULL, NULL},
    {"transaction_id", send_transaction_id, NULL, NULL, NULL},
    {"_out_ms", send_out_ms, NULL, "TIMER_OUT_MS of what waits for its time, else 0", NULL},
    {"_receipt", send_receipt, NULL, "mq_receipt, where an append left it", NULL},
    {"_ids", send_ids, send_set_ids, NULL, NULL},
    {"_place", send_place, send_set_place, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef send_methods[] = {
    {"restored", send_restored, METH_VARARGS | METH_CLASS, "A value of these fields."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot send_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, send_init},
    {Py_tp_dealloc, send_dealloc},
    {Py_tp_members, send_members},
    {Py_tp_getset, send_getset},
    {Py_tp_methods, send_methods},
    {0, NULL},
};
static PyType_Spec send_spec = {"mq.fastpath.SendFields", sizeof(mq_sent_where), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, send_slots};

/* PullFields. */

static int pull_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((mq_pulled *)self)->status);
    Py_VISIT(((mq_pulled *)self)->messages);
    return 0;
}

static int pull_clear(PyObject *self) {
    Py_CLEAR(((mq_pulled *)self)->status);
    Py_CLEAR(((mq_pulled *)self)->messages);
    return 0;
}

static void pull_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    pull_clear(self);
    mq_objects_free(self);
}

static int pull_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"status", "messages", "next_offset", "min_offset", "max_offset", NULL};
    mq_pulled *of = (mq_pulled *)self;
    PyObject *status, *messages;
    long long next_offset, min_offset, max_offset;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOLLL:PullResult", names, &status, &messages,
                                     &next_offset, &min_offset, &max_offset))
        return -1;
    if (of->status) return mq_objects_refuse_again();
    of->status = mq_objects_shared(status);
    of->messages = mq_objects_shared(messages);
    of->next_offset = next_offset;
    of->min_offset = min_offset;
    of->max_offset = max_offset;
    return 0;
}

static PyObject *pull_restored(PyObject *type, PyObject *fields) {
    return mq_objects_restored(type, fields, pull_init);
}

static PyMemberDef pull_members[] = {
    {"status", T_OBJECT_EX, offsetof(mq_pulled, status), READONLY, NULL},
    {"messages", T_OBJECT_EX, offsetof(mq_pulled, messages), READONLY, NULL},
    {"next_offset", T_LONGLONG, offsetof(mq_pulled, next_offset), READONLY, NULL},
    {"min_offset", T_LONGLONG, offsetof(mq_pulled, min_offset), READONLY, NULL},
    {"max_offset", T_LONGLONG, offsetof(mq_pulled, max_offset), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef pull_methods[] = {
    {"restored", pull_restored, METH_VARARGS | METH_CLASS, "A value of these fields."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot pull_slots[] = {
    {Py_tp_new, PyType_GenericNew},  {Py_tp_init, pull_init},
    {Py_tp_dealloc, pull_dealloc},   {Py_tp_members, pull_members},
    {Py_tp_traverse, pull_traverse}, {Py_tp_clear, pull_clear},
    {Py_tp_methods, pull_methods},   {0, NULL},
};
static PyType_Spec pull_spec = {"mq.fastpath.PullFields", sizeof(mq_pulled), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, pull_slots};

int mq_objects_add_results(PyObject *module) {
    return mq_objects_add_type(module, &send_spec) || mq_objects_add_type(module, &pull_spec) ? -1 : 0;
}
