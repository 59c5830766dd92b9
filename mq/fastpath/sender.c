/* Producer.send of the usual message: checked, given to the queue whose turn it is, and nothing else.
 *
 *   class Producer(Sender)
 *       ._start(before, after, size_max, timeout)   called once, by __init__
 *       ._turns       {topic: iterator of (queue, appender)}, filled by the send in Python, dropped with the
 *                     topics; None once it is stopped
 *       ._keyed_turns the same for messages with a dedup key, which is what their appenders take besides
 *       ._stop()      from now on everything is for the send in Python
 *       .send         see objects.c
 *
 * `timeout` is how many seconds an append waits for a lock, at the most; with a hook in one of the lists
 * `before` and `after` no message is usual.
 *
 * An append that fails is told to _failed_once(message, queue, error, started, dedup_key), whose result or
 * error is that of the send; `started` is in seconds of the monotonic clock.
 */
#include "objects.h"

#include <time.h>

static PyObject *key_name;

typedef struct {
    PyObject_HEAD PyObject *before; /* lists of hooks */
    PyObject *after;
    PyObject *turns; /* NULL: it was stopped, or never started; so are the next ones */
    PyObject *keyed_turns;
    PyObject *zero;
    long long size_max;
    int64_t timeout_ns;
} sender;

static int sender_traverse(PyObject *self, visitproc visit, void *arg) {
    sender *of = (sender *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->before);
    Py_VISIT(of->after);
    Py_VISIT(of->turns);
    Py_VISIT(of->keyed_turns);
    return 0;
}

static int sender_clear(PyObject *self) {
    sender *of = (sender *)self;
    Py_CLEAR(of->turns); /* first: without them nothing else is looked at */
    Py_CLEAR(of->keyed_turns);
    Py_CLEAR(of->before);
    Py_CLEAR(of->after);
    Py_CLEAR(of->zero);
    return 0;
}

static void sender_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    sender_clear(self);
    mq_objects_free(self);
}

/* The error that is set, taken off and told. */
static PyObject *tell(PyObject *self, PyObject *message, PyObject *queue, const struct timespec *begin,
                      PyObject *key) {
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (trace && error) PyException_SetTraceback(error, trace);
    PyObject *result = NULL;
    if (error)
        result =
            PyObject_CallMethod(self, "_failed_once", "OOOdO", message, queue, error,
                                (double)begin->tv_sec + (double)begin->tv_nsec / 1e9, key ? key : Py_None);
    Py_XDECREF(kind);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return result;
}

/* None where this is not for us after all. `key` may be NULL. */
static PyObject *send_in_turn(PyObject *self, mq_sent *message, PyObject *turns, PyObject *key) {
    const sender *of = (const sender *)self;
    PyObject *queues = PyDict_GetItemWithError(turns, message->topic);
    if (!queues || PyBytes_Size(message->body) > of->size_max)
        return PyErr_Occurred() ? NULL : mq_objects_shared(Py_None);
    struct timespec begin;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    Py_INCREF(queues);
    PyObject *turn = PyIter_Next(queues);
    Py_DECREF(queues);
    if (!turn) return PyErr_Occurred() ? NULL : mq_objects_shared(Py_None);
    if (!PyTuple_Check(turn) || PyTuple_Size(turn) != 2) {
        Py_DECREF(turn);
        PyErr_SetString(PyExc_TypeError, "a turn is a queue and its appender");
        return NULL;
    }
    PyObject *queue = PyTuple_GetItem(turn, 0);
    int64_t *deadline = mq_objects_wait_deadline();
    int64_t outer = *deadline;
    int64_t own = (int64_t)begin.tv_sec * 1000000000 + begin.tv_nsec + of->timeout_ns;
    if (!outer || own < outer) *deadline = own;
    PyObject *result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(turn, 1), (PyObject *)message,
                                                    message->body, of->zero, key, NULL);
    *deadline = outer;
    if (!result) {
        result = tell(self, (PyObject *)message, queue, &begin, key);
    } else if (result == Py_None && PyDict_DelItem(turns, message->topic)) { /* some topic has changed */
        PyErr_Clear();                                                       /* another thread was faster */
    }
    Py_DECREF(turn);
    return result;
}

static PyObject *send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const sender *of = (const sender *)self;
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    PyObject *key = named == 1 && PyTuple_GetItem(names, 0) == key_name ? args[count] : NULL;
    if (count != 1 || named != (key != NULL) || key == Py_None ||
        (PyObject *)Py_TYPE(args[0]) != mq_objects_known.message || !((mq_sent *)args[0])->plain ||
        ((mq_sent *)args[0])->keyed || !of->turns || PyList_Size(of->before) || PyList_Size(of->after))
        return mq_objects_call_slow_path(&mq_producer_send, self, args, count, names);
    mq_sent *message = (mq_sent *)args[0];
    PyObject *turns =
        mq_objects_shared(key ? of->keyed_turns : of->turns); /* stop() may drop them meanwhile */
    PyObject *result = send_in_turn(self, message, turns, key);
    Py_DECREF(turns);
    if (result != Py_None) return result;
    Py_DECREF(result);
    return mq_objects_call_slow_path(&mq_producer_send, self, args, count, names);
}

mq_fast_method mq_producer_send = {"producer_send", "send", send, NULL, NULL};

static PyObject *sender_start(PyObject *self, PyObject *args) {
    sender *of = (sender *)self;
    PyObject *before, *after;
    long long size_max;
    double timeout;
    if (!PyArg_ParseTuple(args, "O!O!Ld:_start", &PyList_Type, &before, &PyList_Type, &after, &size_max,
                          &timeout))
        return NULL;
    if (of->before) {
        PyErr_SetString(PyExc_RuntimeError, "a producer is made once");
        return NULL;
    }
    of->before = mq_objects_shared(before);
    of->after = mq_objects_shared(after);
    of->size_max = size_max;
    of->timeout_ns = timeout < 1e9 ? (int64_t)(timeout * 1e9) : (int64_t)1000000000 * 1000000000;
    of->zero = PyLong_FromLong(0);
    of->keyed_turns = of->zero ? PyDict_New() : NULL;
    of->turns = of->keyed_turns ? PyDict_New() : NULL;
    return of->turns ? mq_objects_shared(Py_None) : NULL;
}

static PyObject *sender_turns(PyObject *self, void *unused) {
    PyObject *turns = ((sender *)self)->turns;
    return mq_objects_shared(turns ? turns : Py_None);
}

static PyObject *sender_keyed_turns(PyObject *self, void *unused) {
    PyObject *turns = ((sender *)self)->keyed_turns;
    return mq_objects_shared(turns ? turns : Py_None);
}

static PyObject *sender_stop(PyObject *self, PyObject *unused) {
    Py_CLEAR(((sender *)self)->turns);
    Py_CLEAR(((sender *)self)->keyed_turns);
    Py_RETURN_NONE;
}

static PyObject *sender_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    return PyType_GenericAlloc(type, 0); /* the arguments are for __init__ */
}

static PyGetSetDef getset[] = {
    {"_turns", sender_turns, NULL, NULL, NULL},
    {"_keyed_turns", sender_keyed_turns, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef methods[] = {
    {"_start", sender_start, METH_VARARGS, NULL},
    {"_stop", sender_stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_new, sender_new},
    {Py_tp_dealloc, sender_dealloc},
    {Py_tp_traverse, sender_traverse},
    {Py_tp_clear, sender_clear},
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {0, NULL},
};
static PyType_Spec spec = {"mq.fastpath.Sender", sizeof(sender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};

int mq_objects_add_sender(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    mq_producer_send.base = type; /* kept: it is never given back */
    key_name = PyUnicode_InternFromString("dedup_key");
    return type && key_name ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
}
