/* Functions that are called once a message: one call of the data plane each, bound to one queue.
 *
 *   Line       a store's log, as long as it may be used; let_go() ends that
 *   appender   append(message, body, sys_flag, unique_id=None) -> SendResult, or None (route is outdated)
 *   puller     pull(offset, count_max, byte_max, tag_hashes, wait) -> PullResult
 *
 * What is not the usual case is passed on to a function in Python with the same arguments, which also raises
 * errors. A log that is closed during a call lives until the call returns.
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
} line;

/* One queue, for appending or for pulling. */
typedef struct {
    PyObject_HEAD PyObject *line;
    PyObject *queue;
    PyObject *name;    /* of the broker */
    PyObject *unusual; /* does the same call, whatever it asks for */
    PyObject *failed;  /* appender: raises what (result, size, errno) stands for */
    /* appender: None, or what waits for the disk, told (number of the queue, result), and returns the
     * result to hand out */
    PyObject *flushed;
    PyObject *place;   /* puller: finds (number, version) */
    PyObject *asides;  /* appender: Asides */
    PyObject *belongs; /* appender: the properties that say of what is put aside that it belongs here */
    long long version;
    int number;
} route;

static PyObject *line_type;
static PyObject *route_type;

static void line_dealloc(PyObject *self) {
    line *of = (line *)self;
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
    Py_VISIT(of->line);
    Py_VISIT(of->queue);
    Py_VISIT(of->name);
    Py_VISIT(of->unusual);
    Py_VISIT(of->failed);
    Py_VISIT(of->flushed);
    Py_VISIT(of->place);
    Py_VISIT(of->asides);
    Py_VISIT(of->belongs);
    return 0;
}

static int route_clear(PyObject *self) {
    route *of = (route *)self;
    Py_CLEAR(of->line);
    Py_CLEAR(of->queue);
    Py_CLEAR(of->name);
    Py_CLEAR(of->unusual);
    Py_CLEAR(of->failed);
    Py_CLEAR(of->flushed);
    Py_CLEAR(of->place);
    Py_CLEAR(of->asides);
    Py_CLEAR(of->belongs);
    return 0;
}

static void route_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    route_clear(self);
    mq_objects_free(self);
}

/* The log, kept alive for one call. NULL: it is let go of. */
static PyObject *hold(const route *of, mq_log **log) {
    return of->line ? mq_objects_hold(of->line, log) : NULL;
}

static PyObject *unusual(const route *of, PyObject *const *args, Py_ssize_t count) {
    return mq_objects_pass_on(of->unusual, args, count, NULL);
}

/* What the caller gets for a stored message: a new reference, or NULL with an error. Takes `stored` over. */
static PyObject *told(const route *of, mq_sent_where *stored, const mq_aside *aside, int number) {
    stored->status = mq_objects_shared(known->send_ok);
    stored->queue = mq_objects_shared(of->queue);
    if (aside) {
        stored->out_ms = aside->out_ms;
        if (mq_aside_ring(of->asides, aside, stored->receipt.store_time)) {
            Py_DECREF(stored);
            return NULL;
        }
    }
    if (of->flushed == Py_None) return (PyObject *)stored;
    PyObject *flushed = PyObject_CallFunction(of->flushed, "iO", number, (PyObject *)stored);
    Py_DECREF(stored);
    return flushed;
}

static PyObject *append(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const route *of = (const route *)self;
    if ((count != 3 && (count != 4 || args[3] != Py_None)) ||
        (PyObject *)Py_TYPE(args[0]) != known->message ||
        (((mq_sent *)args[0])->plain != Py_True && !((mq_sent *)args[0])->later) ||
        ((mq_sent *)args[0])->keyed || !PyBytes_CheckExact(args[1]))
        return unusual(of, args, count);
    const mq_sent *message = (const mq_sent *)args[0];
    int32_t flag;
    int32_t sys_flag;
    mq_log *log;
    PyObject *held = mq_objects_int32(message->flag, &flag) && mq_objects_int32(args[2], &sys_flag)
                         ? hold(of, &log)
                         : NULL;
    if (!held) return unusual(of, args, count);
    mq_aside aside;
    int later = 0;
    if (message->later)
        later = message->hurried ? -1 : mq_aside_prepare(of->asides, message, args[1], of->belongs, &aside);
    if (later < 0) {
        Py_DECREF(held);
        return unusual(of, args, count);
    }
    mq_sent_where *stored = (mq_sent_where *)mq_objects_make(known->send_result);
    if (!stored) {
        if (later) mq_aside_done(&aside);
        Py_DECREF(held);
        return NULL;
    }
    int number = later ? aside.number : of->number;
    const mq_append_options *options = later && aside.has_options ? &aside.options : NULL;
    const char *body = PyBytes_AsString(args[1]);
    int64_t body_size = PyBytes_Size(args[1]);
    const char *properties = later ? aside.properties : PyBytes_AsString(message->encoded);
    int64_t properties_size = later ? aside.properties_size : PyBytes_Size(message->encoded);
    int result;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    result = append_at(log, number, of->version, flag, sys_flag, body, body_size, properties, properties_size,
                       NULL, options, &stored->receipt);
    error = errno;
    Py_END_ALLOW_THREADS;
    Py_DECREF(held);
    if (later) mq_aside_done(&aside);
    if (result) {
        Py_DECREF(stored);
        if (result == MQ_GONE || result == MQ_STALE) Py_RETURN_NONE;
        if (result == MQ_TOO_LARGE) return unusual(of, args, count); /* which knows what of it is */
        return PyObject_CallFunction(of->failed, "iLi", result, (long long)body_size, error);
    }
    return told(of, stored, later ? &aside : NULL, number);
}

static scratch *take_scratch(line *on) {
    scratch *taken = on->free;
    if (taken) on->free = taken->next;
    else taken = malloc(sizeof *taken);
    return taken;
}

static void give_back(line *on, scratch *taken) {
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
        return unusual(of, args, count);
    double wait = PyFloat_AsDouble(args[4]);
    if (PyErr_Occurred()) return NULL; /* an int beyond all floats */
    PyObject *held = hold(of, &log);
    if (!held) return unusual(of, args, count);
    int without = find_place(of);
    scratch *into = without ? NULL : take_scratch((line *)of->line);
    if (!into) {
        Py_DECREF(held);
        return without < 0 ? NULL : without > 0 ? unusual(of, args, count) : PyErr_NoMemory();
    }
    PyObject *on = mq_objects_shared(of->line); /* whose scratch it is, whatever happens meanwhile */
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
    give_back((line *)on, into);
    Py_DECREF(on);
    if (usual) return result;
    if (code == MQ_STALE) of->number = -1;
    return unusual(of, args, count);
}

static PyMethodDef append_method = {"append", (PyCFunction)(void (*)(void))append, METH_FASTCALL,
                                    "append(message, body, sys_flag, unique_id=None, /)\n--\n\nStore a "
                                    "message in this queue: see Queues.appender."};
static PyMethodDef pull_method = {
    "pull", (PyCFunction)(void (*)(void))pull, METH_FASTCALL,
    "pull(offset, count_max, byte_max, tag_hashes, wait, /)\n--\n\nPull from this queue: see Queues.puller."};

static PyObject *line_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *log;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OK:Line", &log, &address)) return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    ((line *)self)->log = mq_objects_shared(log);
    ((line *)self)->address = (mq_log *)(uintptr_t)address;
    return self;
}

static PyObject *line_let_go(PyObject *self, PyObject *unused) {
    Py_CLEAR(((line *)self)->log);
    Py_RETURN_NONE;
}

static PyObject *bound(PyMethodDef *method, route *to, PyObject *self) {
    to->line = mq_objects_shared(self);
    Py_XINCREF(to->queue);
    Py_XINCREF(to->name);
    Py_XINCREF(to->unusual);
    Py_XINCREF(to->failed);
    Py_XINCREF(to->flushed);
    Py_XINCREF(to->place);
    Py_XINCREF(to->asides);
    Py_XINCREF(to->belongs);
    PyObject *function = PyCFunction_New(method, (PyObject *)to);
    Py_DECREF(to);
    return function;
}

static PyObject *line_appender(PyObject *self, PyObject *args) {
    PyObject *queue, *usual, *failed, *flushed, *asides, *belongs;
    int number;
    long long version;
    if (!PyArg_ParseTuple(args, "OiLOOOO!S:appender", &queue, &number, &version, &usual, &failed, &flushed,
                          mq_asides_type, &asides, &belongs))
        return NULL;
    route *to = (route *)mq_objects_make(route_type);
    if (!to) return NULL;
    to->queue = queue;
    to->number = number;
    to->version = version;
    to->unusual = usual;
    to->failed = failed;
    to->flushed = flushed;
    to->asides = asides;
    to->belongs = belongs;
    return bound(&append_method, to, self);
}

static PyObject *line_puller(PyObject *self, PyObject *args) {
    PyObject *queue, *name, *usual, *place;
    if (!PyArg_ParseTuple(args, "OUOO:puller", &queue, &name, &usual, &place)) return NULL;
    route *to = (route *)mq_objects_make(route_type);
    if (!to) return NULL;
    to->number = -1;
    to->queue = queue;
    to->name = name;
    to->unusual = usual;
    to->place = place;
    return bound(&pull_method, to, self);
}

static PyMethodDef line_methods[] = {
    {"let_go", line_let_go, METH_NOARGS, "Use the log no more."},
    {"appender", line_appender, METH_VARARGS,
     "appender(queue, number, version, unusual, failed, flushed, asides, belongs)"},
    {"puller", line_puller, METH_VARARGS, "puller(queue, broker_name, unusual, place)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot line_slots[] = {
    {Py_tp_new, line_new},
    {Py_tp_dealloc, line_dealloc},
    {Py_tp_methods, line_methods},
    {0, NULL},
};
static PyType_Spec line_spec = {"mq.fastpath.Line", sizeof(line), 0, Py_TPFLAGS_DEFAULT, line_slots};
static PyType_Slot route_slots[] = {
    {Py_tp_dealloc, route_dealloc},
    {Py_tp_traverse, route_traverse},
    {Py_tp_clear, route_clear},
    {0, NULL},
};
static PyType_Spec route_spec = {"mq.fastpath.Route", sizeof(route), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 route_slots};

int mq_objects_is_line(PyObject *value) { return (PyObject *)Py_TYPE(value) == line_type; }

PyObject *mq_objects_hold(PyObject *self, mq_log **log) {
    const line *on = (const line *)self;
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
    line_type = PyType_FromModuleAndSpec(module, &line_spec, NULL);
    route_type = PyType_FromModuleAndSpec(module, &route_spec, NULL);
    return line_type && route_type ? PyModule_AddType(module, (PyTypeObject *)line_type) : -1;
}
