/* Appending under a dedup key: one call of the data plane a message, bound to one queue and one window.
 *
 *   keyed_appender(log_handle, kept, table, queue, topic, number, version, window_ms, slow_path, failed,
 *                  flushed)
 *
 * makes append_once(message, body, sys_flag, key) -> SendResult, or None: the route is outdated. What
 * mq_dedup_append is not for is passed on to slow_path, a function in Python. `table` is the address of the
 * table of keys, `kept` keeps what it needs; the rest is as for LogHandle.appender. It waits for the disk
 * with the key unlocked: another sender of the key waits for the disk as well.
 */
#include "objects.h"

#include <errno.h>

static __typeof__(mq_dedup_append) *append_at;

typedef struct {
    PyObject_HEAD PyObject *log_handle;
    PyObject *kept;
    PyObject *queue;
    PyObject *topic; /* bytes */
    PyObject *slow_path;
    PyObject *failed;
    PyObject *flushed;
    mq_dedup *table;
    long long version;
    long long window_ms;
    int number;
} keyed_route;

static PyObject *keyed_route_type;

static int keyed_route_traverse(PyObject *self, visitproc visit, void *arg) {
    keyed_route *of = (keyed_route *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->log_handle);
    Py_VISIT(of->kept);
    Py_VISIT(of->queue);
    Py_VISIT(of->topic);
    Py_VISIT(of->slow_path);
    Py_VISIT(of->failed);
    Py_VISIT(of->flushed);
    return 0;
}

static int keyed_route_clear(PyObject *self) {
    keyed_route *of = (keyed_route *)self;
    Py_CLEAR(of->log_handle); /* first: without it nothing else is looked at */
    Py_CLEAR(of->kept);
    Py_CLEAR(of->queue);
    Py_CLEAR(of->topic);
    Py_CLEAR(of->slow_path);
    Py_CLEAR(of->failed);
    Py_CLEAR(of->flushed);
    return 0;
}

static void keyed_route_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    keyed_route_clear(self);
    mq_objects_free(self);
}

/* What the caller gets for a stored message: a new reference, or NULL with an error. Takes `stored` over. */
static PyObject *send_result(const keyed_route *of, const mq_sent *message, mq_sent_where *stored) {
    stored->status = mq_objects_shared(mq_objects_known.send_ok);
    stored->queue = mq_objects_shared(of->queue);
    if (of->flushed == Py_None || message->hurried) return (PyObject *)stored;
    PyObject *flushed = PyObject_CallFunction(of->flushed, "iO", of->number, (PyObject *)stored);
    Py_DECREF(stored);
    return flushed;
}

/* NULL without an error: it is left to the slow path. */
static PyObject *append(const keyed_route *of, mq_log *log, const mq_sent *message,
                        const mq_keyed_message *keyed) {
    mq_sent_where *stored = (mq_sent_where *)mq_objects_make(mq_objects_known.send_result);
    if (!stored) return NULL;
    int result;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    result = append_at(of->table, log, keyed, &stored->receipt);
    error = errno;
    Py_END_ALLOW_THREADS;
    if (!result) return send_result(of, message, stored);
    Py_DECREF(stored);
    if (result > 0) return NULL;
    if (result == MQ_GONE || result == MQ_STALE) Py_RETURN_NONE;
    return PyObject_CallFunction(of->failed, "iLLi", result, (long long)keyed->body_size,
                                 (long long)keyed->properties_size, error);
}

static PyObject *append_usual(const keyed_route *of, const mq_sent *message, PyObject *body,
                              PyObject *sys_flag, PyObject *key) {
    mq_log *log;
    Py_ssize_t key_size;
    mq_keyed_message keyed = {.window_ms = of->window_ms, .queue = of->number, .topics_version = of->version};
    if (!mq_objects_take_int32(message->flag, "flag", &keyed.flag) ||
        !mq_objects_take_int32(sys_flag, "sys_flag", &keyed.sys_flag))
        return NULL;
    keyed.key = PyUnicode_AsUTF8AndSize(key, &key_size);
    if (!keyed.key) {
        PyErr_Clear(); /* half of a surrogate pair */
        return NULL;
    }
    PyObject *held = of->log_handle ? mq_objects_hold(of->log_handle, &log) : NULL;
    if (!held) return NULL;
    keyed.key_size = key_size;
    keyed.topic = PyBytes_AsString(of->topic);
    keyed.topic_size = PyBytes_Size(of->topic);
    keyed.body = PyBytes_AsString(body);
    keyed.body_size = PyBytes_Size(body);
    keyed.properties = PyBytes_AsString(message->encoded);
    keyed.properties_size = PyBytes_Size(message->encoded);
    PyObject *result = append(of, log, message, &keyed);
    Py_DECREF(held);
    return result;
}

static PyObject *append_once(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const keyed_route *of = (const keyed_route *)self;
    if (count == 4 && mq_objects_is_sent(args[0]) && PyBytes_Check(args[1]) &&
        PyUnicode_CheckExact(args[3])) {
        const mq_sent *message = (const mq_sent *)args[0];
        PyObject *result = NULL;
        if (!message->later && !message->keyed) result = append_usual(of, message, args[1], args[2], args[3]);
        if (result || PyErr_Occurred()) return result;
    }
    return mq_objects_pass_on(of->slow_path, args, count, NULL);
}

static PyMethodDef append_method = {"append_once", (PyCFunction)(void (*)(void))append_once, METH_FASTCALL,
                                    "append_once(message, body, sys_flag, key, /)\n--\n\nStore a message in "
                                    "this queue once: see Directory.once_appender."};

static PyObject *keyed_appender(PyObject *module, PyObject *args) {
    PyObject *log_handle, *kept, *queue, *topic, *slow_path, *failed, *flushed;
    unsigned long long table;
    int number;
    long long version, window_ms;
    if (!PyArg_ParseTuple(args, "OOKOSiLLOOO:keyed_appender", &log_handle, &kept, &table, &queue, &topic,
                          &number, &version, &window_ms, &slow_path, &failed, &flushed))
        return NULL;
    if (!mq_objects_is_log_handle(log_handle)) {
        PyErr_SetString(PyExc_TypeError, "keyed_appender() takes a LogHandle first");
        return NULL;
    }
    keyed_route *to = (keyed_route *)mq_objects_make(keyed_route_type);
    if (!to) return NULL;
    to->log_handle = mq_objects_shared(log_handle);
    to->kept = mq_objects_shared(kept);
    to->table = (mq_dedup *)(uintptr_t)table;
    to->queue = mq_objects_shared(queue);
    to->topic = mq_objects_shared(topic);
    to->number = number;
    to->version = version;
    to->window_ms = window_ms;
    to->slow_path = mq_objects_shared(slow_path);
    to->failed = mq_objects_shared(failed);
    to->flushed = mq_objects_shared(flushed);
    PyObject *appender = PyCFunction_New(&append_method, (PyObject *)to);
    Py_DECREF(to);
    return appender;
}

static PyObject *bind_keyed(PyObject *module, PyObject *args) {
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "K:bind_keyed", &address)) return NULL;
    append_at = (__typeof__(mq_dedup_append) *)(uintptr_t)address;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"keyed_appender", keyed_appender, METH_VARARGS, "keyed_appender(...): see keyed_append.c"},
    {"bind_keyed", bind_keyed, METH_VARARGS, "bind_keyed(append): the address of mq_dedup_append"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot keyed_route_slots[] = {
    {Py_tp_dealloc, keyed_route_dealloc},
    {Py_tp_traverse, keyed_route_traverse},
    {Py_tp_clear, keyed_route_clear},
    {0, NULL},
};
static PyType_Spec keyed_route_spec = {
    "mq.fastpath.KeyedRoute", sizeof(keyed_route), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, keyed_route_slots};

int mq_objects_add_keyed(PyObject *module) {
    keyed_route_type = PyType_FromModuleAndSpec(module, &keyed_route_spec, NULL);
    return keyed_route_type ? PyModule_AddFunctions(module, functions) : -1;
}
