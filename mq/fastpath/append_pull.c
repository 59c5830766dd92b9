/* Functions that are called once a message: one call of the data plane each, bound to one queue.
 *
 *   LogHandle  a store's log, as long as it may be used; detach() ends that
 *   appender   append(message, body, sys_flag, unique_id=None) -> SendResult, or None: the route is outdated;
 *              store(message, body, sys_flag, unique_id, options) -> the same, or an int: see MQ_REFUSED_…
 *   puller     pull(offset, count_max, byte_max, tag_hashes, wait) -> PullResult
 *
 * append() stores a message itself, unless it has a dedup key or is refused: it is passed on to a function in
 * Python then, behind store(), which stores whatever it is given. `options` is the address of
 * mq_append_options, or 0. pull() passes on what has to wait. A log that is closed during a call lives until
 * the call returns.
 */
#include "objects.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PULL_SIZE = 256 << 10, PULL_COUNT = 4096 };

static mq_known *const known = &mq_objects_known;
static __typeof__(mq_append) *append_at;
static __typeof__(mq_pull) *pull_at;

typedef struct scratch {
    struct scratch *next;
    mq_pull_result result;
    int32_t sizes[PULL_COUNT];
    char buffer[PULL_SIZE];
} scratch;

typedef struct {
    PyObject_HEAD PyObject *log; /* NULL: not to be used any more */
    mq_log *address;
    scratch *free;
} log_handle;

/* One queue, for appending or for pulling. */
typedef struct {
    PyObject_HEAD PyObject *log_handle;
    PyObject *queue;
    PyObject *name;      /* of the broker */
    PyObject *slow_path; /* does the same call, whatever it asks for */
    PyObject *failed;    /* appender: raises what (result, body size, properties size, errno) stands for */
    /* appender: None, or what waits for the disk, told (number of the queue, result), and returns the
     * result to hand out */
    PyObject *flushed;
    PyObject *place;   /* puller: finds (number, version) */
    PyObject *delayed; /* appender: DelayedRecords */
    PyObject *target;  /* appender: the properties that say of a delayed message that it goes here */
    long long version;
    int number;
} route;

static PyObject *log_handle_type;
static PyObject *route_type;

static void log_handle_dealloc(PyObject *self) {
    log_handle *of = (log_handle *)self;
    for (scratch *next; of->free; of->free = next) {
        next = of->free->next;
        free(of->free);
    }
    Py_XDECREF(of->log);
    mq_objects_free(self);
}

static int route_traverse(PyObject *self, visitproc visit, void *arg) {
    route *of = (route *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->log_handle);
    Py_VISIT(of->queue);
    Py_VISIT(of->name);
    Py_VISIT(of->slow_path);
    Py_VISIT(of->failed);
    Py_VISIT(of->flushed);
    Py_VISIT(of->place);
    Py_VISIT(of->delayed);
    Py_VISIT(of->target);
    return 0;
}

static int route_clear(PyObject *self) {
    route *of = (route *)self;
    Py_CLEAR(of->log_handle);
    Py_CLEAR(of->queue);
    Py_CLEAR(of->name);
    Py_CLEAR(of->slow_path);
    Py_CLEAR(of->failed);
    Py_CLEAR(of->flushed);
    Py_CLEAR(of->place);
    Py_CLEAR(of->delayed);
    Py_CLEAR(of->target);
    return 0;
}

static void route_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    route_clear(self);
    mq_objects_free(self);
}

/* The log, kept alive for one call. NULL: it is let go of. */
static PyObject *hold(const route *of, mq_log **log) {
    return of->log_handle ? mq_objects_hold(of->log_handle, log) : NULL;
}

/* What the caller gets for a stored message: a new reference, or NULL with an error. Takes `stored` over. */
static PyObject *send_result(const route *of, const mq_sent *message, mq_sent_where *stored,
                             const mq_delayed *delayed, int number) {
    stored->status = mq_objects_shared(known->send_ok);
    stored->queue = mq_objects_shared(of->queue);
    if (delayed) {
        stored->out_ms = delayed->out_ms;
        if (mq_delayed_notify(of->delayed, delayed, stored->receipt.store_time)) {
            Py_DECREF(stored);
            return NULL;
        }
    }
    if (of->flushed == Py_None || message->hurried) return (PyObject *)stored;
    PyObject *flushed = PyObject_CallFunction(of->flushed, "iO", number, (PyObject *)stored);
    Py_DECREF(stored);
    return flushed;
}

static PyObject *append_record(const route *of, mq_log *log, const mq_sent *message, PyObject *body,
                               int32_t sys_flag, const char *unique_id, const mq_delayed *delayed,
                               const mq_append_options *options) {
    int32_t flag;
    if (!mq_objects_take_int32(message->flag, "flag", &flag)) return NULL;
    mq_sent_where *stored = (mq_sent_where *)mq_objects_make(known->send_result);
    if (!stored) return NULL;
    int number = delayed ? delayed->number : of->number;
    const char *bytes = PyBytes_AsString(body);
    int64_t size = PyBytes_Size(body);
    const char *properties = delayed ? delayed->properties : PyBytes_AsString(message->encoded);
    int64_t properties_size = delayed ? delayed->properties_size : PyBytes_Size(message->encoded);
    if (delayed && delayed->has_options) options = &delayed->options;
    int result;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    result = append_at(log, number, of->version, flag, sys_flag, bytes, size, properties, properties_size,
                       unique_id, options, &stored->receipt);
    error = errno;
    Py_END_ALLOW_THREADS;
    if (!result) return send_result(of, message, stored, delayed, number);
    Py_DECREF(stored);
    if (result == MQ_GONE || result == MQ_STALE) Py_RETURN_NONE;
    return PyObject_CallFunction(of->failed, "iLLi", result, (long long)size, (long long)properties_size,
                                 error);
}

/* NULL without an error: `refusal` says why. */
static PyObject *store_message(const route *of, const mq_sent *message, PyObject *body, PyObject *sys_flag,
                               const char *unique_id, const mq_append_options *options, int *refusal) {
    int32_t flags;
    mq_log *log;
    if (!mq_objects_take_int32(sys_flag, "sys_flag", &flags)) return NULL;
    PyObject *held = hold(of, &log);
    if (!held) {
        *refusal = MQ_REFUSED_CLOSED;
        return NULL;
    }
    mq_delayed delayed;
    int waits = message->later
                    ? mq_delayed_prepare(of->delayed, message, PyBytes_Size(body), of->target, &delayed)
                    : 0;
    PyObject *result = NULL;
    if (waits < 0) *refusal = waits;
    else result = append_record(of, log, message, body, flags, unique_id, waits ? &delayed : NULL, options);
    if (waits > 0) mq_delayed_done(&delayed);
    Py_DECREF(held);
    return result;
}

static PyObject *store(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int refusal = 0;
    const char *unique_id;
    void *options;
    if (count != 5 || !mq_objects_is_sent(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "store() takes a Message, bytes, flags, an id and options");
        return NULL;
    }
    unique_id = args[3] == Py_None ? NULL : PyUnicode_AsUTF8AndSize(args[3], NULL);
    if (!unique_id && args[3] != Py_None) return NULL;
    options = PyLong_AsVoidPtr(args[4]);
    if (!options && PyErr_Occurred()) return NULL;
    PyObject *result = store_message((const route *)self, (const mq_sent *)args[0], args[1], args[2],
                                     unique_id, options, &refusal);
    return refusal ? PyLong_FromLong(refusal) : result;
}

static PyMethodDef store_method = {"store", (PyCFunction)(void (*)(void))store, METH_FASTCALL,
                                   "store(message, body, sys_flag, unique_id, options, /)\n--\n\nStore a "
                                   "message in this queue, whatever it asks for."};

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const route *of = (const route *)self;
    int refusal = 0;
    if ((count == 3 || (count == 4 && args[3] == Py_None)) && mq_objects_is_sent(args[0]) &&
        !((const mq_sent *)args[0])->keyed && PyBytes_Check(args[1])) {
        PyObject *result =
            store_message(of, (const mq_sent *)args[0], args[1], args[2], NULL, NULL, &refusal);
        if (!refusal) return result;
    }
    return mq_objects_pass_on_behind(of->slow_path, PyCFunction_New(&store_method, self), args, count);
}

static scratch *take_scratch(log_handle *on) {
    scratch *taken = on->free;
    if (taken) on->free = taken->next;
    else taken = malloc(sizeof *taken);
    return taken;
}

static void give_back(log_handle *on, scratch *taken) {
    taken->next = on->free;
    on->free = taken;
}

static PyObject *messages_of(const route *of, const scratch *from) {
    PyObject *messages = PyList_New((Py_ssize_t)from->result.count);
    const char *at = from->buffer;
    for (int64_t i = 0; messages && i < from->result.count; i++) {
        mq_stored *message = (mq_stored *)mq_objects_make(known->stored);
        PyObject *record = message ? PyBytes_FromStringAndSize(at, from->sizes[i]) : NULL;
        if (!record) {
            Py_XDECREF(message);
            Py_DECREF(messages);
            return NULL;
        }
        message->record = record;
        message->broker_name = mq_objects_shared(of->name);
        PyList_SetItem(messages, (Py_ssize_t)i, (PyObject *)message);
        at += from->sizes[i];
    }
    return messages;
}

static PyObject *pulled(const route *of, const scratch *from) {
    PyObject *messages = from->result.status == MQ_PULL_FOUND ? messages_of(of, from) : PyTuple_New(0);
    mq_pulled *made = messages ? (mq_pulled *)mq_objects_make(known->pull_result) : NULL;
    if (!made) {
        Py_XDECREF(messages);
        return NULL;
    }
    made->messages = messages;
    made->status = mq_objects_shared(PyTuple_GetItem(known->statuses, (Py_ssize_t)from->result.status));
    made->next_offset = from->result.next_offset;
    made->min_offset = from->result.min_offset;
    made->max_offset = from->result.max_offset;
    return (PyObject *)made;
}

/* Find the queue's place in the table. 0; 1 if it has none; -1 with an error. */
static int find_place(route *of) {
    if (of->number >= 0) return 0;
    PyObject *found = of->place ? PyObject_CallFunctionObjArgs(of->place, of->queue, NULL) : NULL;
    if (!found) return PyErr_Occurred() ? -1 : 1;
    int number;
    long long version;
    int parsed = PyArg_ParseTuple(found, "iL", &number, &version);
    Py_DECREF(found);
    if (!parsed) return -1;
    of->number = number;
    of->version = version;
    return number < 0;
}

static PyObject *pull(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    route *of = (route *)self;
    int64_t offset;
    int32_t count_max;
    int64_t byte_max;
    mq_log *log;
    if (count != 5 || args[3] != Py_None || !mq_objects_int64(args[0], &offset) ||
        !mq_objects_int32(args[1], &count_max) || count_max < 1 || count_max > PULL_COUNT ||
        !mq_objects_int64(args[2], &byte_max) || !(PyFloat_CheckExact(args[4]) || PyLong_CheckExact(args[4])))
        return mq_objects_pass_on(of->slow_path, args, count, NULL);
    double wait = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL; /* an int beyond all floats */
    PyObject *held = hold(of, &log);
    if (!held) return mq_objects_pass_on(of->slow_path, args, count, NULL);
    int without = find_place(of);
    scratch *into = without ? NULL : take_scratch((log_handle *)of->log_handle);
    if (!into) {
        Py_DECREF(held);
        if (without > 0) return mq_objects_pass_on(of->slow_path, args, count, NULL);
        return without < 0 ? NULL : PyErr_NoMemory();
    }
    PyObject *on = mq_objects_shared(of->log_handle); /* whose scratch it is, whatever happens meanwhile */
    int number = of->number;
    long long version = of->version;
    int code;
    Py_BEGIN_ALLOW_THREADS;
    code = pull_at(log, number, version, offset, count_max, byte_max, NULL, -1, into->buffer, PULL_SIZE,
                   into->sizes, &into->result);
    Py_END_ALLOW_THREADS;
    Py_DECREF(held);
    PyObject *result = NULL;
    int usual = code == 0 && (into->result.status == MQ_PULL_FOUND || !(wait > 0));
    if (usual) result = pulled(of, into);
    give_back((log_handle *)on, into);
    Py_DECREF(on);
    if (usual) return result;
    if (code == MQ_STALE) of->number = -1;
    return mq_objects_pass_on(of->slow_path, args, count, NULL);
}

static PyMethodDef append_method = {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL,
                                    "append(message, body, sys_flag, unique_id=None, /)\n--\n\nStore a "
                                    "message in this queue: see Queues.appender."};
static PyMethodDef pull_method = {
    "pull", (PyCFunction)(void (*)(void))pull, METH_FASTCALL,
    "pull(offset, count_max, byte_max, tag_hashes, wait, /)\n--\n\nPull from this queue: see Queues.puller."};

static PyObject *log_handle_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *log;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OK:LogHandle", &log, &address)) return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    ((log_handle *)self)->log = mq_objects_shared(log);
    ((log_handle *)self)->address = (mq_log *)(uintptr_t)address;
    return self;
}

static PyObject *log_handle_detach(PyObject *self, PyObject *unused) {
    Py_CLEAR(((log_handle *)self)->log);
    Py_RETURN_NONE;
}

static PyObject *log_handle_appender(PyObject *self, PyObject *args) {
    PyObject *queue, *slow_path, *failed, *flushed, *delayed, *target;
    int number;
    long long version;
    if (!PyArg_ParseTuple(args, "OiLOOOO!S:appender", &queue, &number, &version, &slow_path, &failed,
                          &flushed, mq_delayed_type, &delayed, &target))
        return NULL;
    route *to = (route *)mq_objects_make(route_type);
    if (!to) return NULL;
    to->log_handle = mq_objects_shared(self);
    to->queue = mq_objects_shared(queue);
    to->number = number;
    to->version = version;
    to->slow_path = mq_objects_shared(slow_path);
    to->failed = mq_objects_shared(failed);
    to->flushed = mq_objects_shared(flushed);
    to->delayed = mq_objects_shared(delayed);
    to->target = mq_objects_shared(target);
    PyObject *appender = PyCFunction_New(&append_method, (PyObject *)to);
    PyObject *store = PyCFunction_New(&store_method, (PyObject *)to);
    PyObject *both = appender && store ? PyTuple_Pack(2, appender, store) : NULL;
    Py_XDECREF(appender);
    Py_XDECREF(store);
    Py_DECREF(to);
    return both;
}

static PyObject *log_handle_puller(PyObject *self, PyObject *args) {
    PyObject *queue, *name, *slow_path, *place;
    if (!PyArg_ParseTuple(args, "OUOO:puller", &queue, &name, &slow_path, &place)) return NULL;
    route *to = (route *)mq_objects_make(route_type);
    if (!to) return NULL;
    to->log_handle = mq_objects_shared(self);
    to->number = -1;
    to->queue = mq_objects_shared(queue);
    to->name = mq_objects_shared(name);
    to->slow_path = mq_objects_shared(slow_path);
    to->place = mq_objects_shared(place);
    PyObject *puller = PyCFunction_New(&pull_method, (PyObject *)to);
    Py_DECREF(to);
    return puller;
}

static PyMethodDef log_handle_methods[] = {
    {"detach", log_handle_detach, METH_NOARGS, "Use the log no more."},
    {"appender", log_handle_appender, METH_VARARGS,
     "appender(queue, number, version, slow_path, failed, flushed, delayed, target) -> append, store"},
    {"puller", log_handle_puller, METH_VARARGS, "puller(queue, broker_name, slow_path, place)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot log_handle_slots[] = {
    {Py_tp_new, log_handle_new},
    {Py_tp_dealloc, log_handle_dealloc},
    {Py_tp_methods, log_handle_methods},
    {0, NULL},
};
static PyType_Spec log_handle_spec = {"mq.fastpath.LogHandle", sizeof(log_handle), 0, Py_TPFLAGS_DEFAULT,
                                      log_handle_slots};
static PyType_Slot route_slots[] = {
    {Py_tp_dealloc, route_dealloc},
    {Py_tp_traverse, route_traverse},
    {Py_tp_clear, route_clear},
    {0, NULL},
};
static PyType_Spec route_spec = {"mq.fastpath.Route", sizeof(route), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 route_slots};

int mq_objects_is_log_handle(PyObject *value) { return (PyObject *)Py_TYPE(value) == log_handle_type; }

PyObject *mq_objects_hold(PyObject *self, mq_log **log) {
    const log_handle *on = (const log_handle *)self;
    if (!on->log) return NULL;
    *log = on->address;
    return mq_objects_shared(on->log);
}

PyObject *mq_objects_bind_calls(PyObject *module, PyObject *args) {
    unsigned long long append_address, pull_address;
    if (!PyArg_ParseTuple(args, "KK:bind_calls", &append_address, &pull_address)) return NULL;
    append_at = (__typeof__(mq_append) *)(uintptr_t)append_address;
    pull_at = (__typeof__(mq_pull) *)(uintptr_t)pull_address;
    Py_RETURN_NONE;
}

int mq_objects_add_calls(PyObject *module) {
    log_handle_type = PyType_FromModuleAndSpec(module, &log_handle_spec, NULL);
    route_type = PyType_FromModuleAndSpec(module, &route_spec, NULL);
    return log_handle_type && route_type ? PyModule_AddType(module, (PyTypeObject *)log_handle_type) : -1;
}
