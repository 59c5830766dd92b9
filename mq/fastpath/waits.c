/* How long a thread waits for locks, and for whom.
 *
 *   time_guard(seconds)    for a with statement: until when; a limit around it counts as well
 *   time_left()            how many seconds that are; None without a limit
 *   held_here()            this thread, and the number of the newest lock that it has
 *   done_for(call, work)   work(), while the thread waits for it that had held_here() in call.waiter, or None
 *
 * A thread that waits for another one's work gives back nothing that it had before. So the other one would
 * wait in vain for that: mq_objects_asker says whose locks these are. What the waiting thread takes later is
 * a signal handler's, which gives it back. */
#include "objects.h"

#include <time.h>

enum { WAIT_MAX_S = 86400 };

typedef struct {
    PyObject_HEAD int64_t outer; /* the deadline that was there before */
    unsigned long thread;        /* 0: it is over */
} limit;

static PyObject *limit_type;
static __typeof__(mq_wait_deadline) *deadline_at;
static _Thread_local PyObject *at_work; /* the call that this thread works on for another; NULL: none */

void mq_objects_bind_deadline(uintptr_t at) { deadline_at = (__typeof__(mq_wait_deadline) *)at; }

/* Without a store nothing waits by it. */
int64_t *mq_objects_wait_deadline(void) {
    static _Thread_local int64_t own;
    return deadline_at ? deadline_at() : &own;
}

int64_t mq_objects_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t mq_objects_deadline(double seconds) {
    if (!(seconds > 0)) seconds = 0;
    if (seconds > WAIT_MAX_S) seconds = WAIT_MAX_S;
    int64_t deadline = mq_objects_now_ns() + (int64_t)(seconds * 1e9);
    int64_t outer = *mq_objects_wait_deadline();
    return outer && outer < deadline ? outer : deadline;
}

mq_asker mq_objects_asker(void) {
    mq_asker asker = {PyThread_get_thread_ident(), 0, 0};
    PyObject *waiter = at_work ? PyObject_GetAttrString(at_work, "waiter") : NULL;
    unsigned long thread;
    long long number;
    if (waiter && waiter != Py_None && PyArg_ParseTuple(waiter, "kL", &thread, &number)) {
        asker.waiting = thread;
        asker.number = number;
    }
    Py_XDECREF(waiter);
    PyErr_Clear();
    return asker;
}

static PyObject *held_here(PyObject *module, PyObject *unused) { return mq_objects_held_here(); }

static PyObject *done_for(PyObject *module, PyObject *args) {
    PyObject *call, *work, *outer = at_work;
    if (!PyArg_ParseTuple(args, "OO:done_for", &call, &work)) return NULL;
    at_work = call;
    PyObject *result = PyObject_CallObject(work, NULL);
    at_work = outer;
    return result;
}

static PyObject *time_guard(PyObject *module, PyObject *args) {
    double seconds;
    if (!PyArg_ParseTuple(args, "d:time_guard", &seconds)) return NULL;
    limit *made = (limit *)mq_objects_make(limit_type);
    if (!made) return NULL;
    int64_t *deadline = mq_objects_wait_deadline();
    made->outer = *deadline;
    made->thread = PyThread_get_thread_ident();
    *deadline = mq_objects_deadline(seconds);
    return (PyObject *)made;
}

static PyObject *time_left(PyObject *module, PyObject *unused) {
    int64_t deadline = *mq_objects_wait_deadline();
    if (!deadline) Py_RETURN_NONE;
    int64_t left = deadline - mq_objects_now_ns();
    return PyFloat_FromDouble(left > 0 ? (double)left / 1e9 : 0.0);
}

static void end(limit *of) {
    if (of->thread == PyThread_get_thread_ident()) *mq_objects_wait_deadline() = of->outer;
    of->thread = 0;
}

static void limit_dealloc(PyObject *self) {
    end((limit *)self);
    mq_objects_free(self);
}

static PyObject *limit_enter(PyObject *self, PyObject *unused) { Py_RETURN_NONE; }

static PyObject *limit_exit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    end((limit *)self);
    Py_RETURN_NONE;
}

static PyMethodDef limit_methods[] = {
    {"__enter__", limit_enter, METH_NOARGS, "It holds since it was made."},
    {"__exit__", (PyCFunction)(void (*)(void))limit_exit, METH_FASTCALL, "It is over."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot limit_slots[] = {
    {Py_tp_dealloc, limit_dealloc},
    {Py_tp_methods, limit_methods},
    {0, NULL},
};
static PyType_Spec limit_spec = {"mq.fastpath.TimeLimit", sizeof(limit), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, limit_slots};
static PyMethodDef functions[] = {
    {"time_guard", time_guard, METH_VARARGS, "time_guard(seconds)"},
    {"time_left", time_left, METH_NOARGS, "Seconds for which this thread still waits for locks, or None."},
    {"held_here", held_here, METH_NOARGS, "This thread, and the number of the newest lock that it has."},
    {"done_for", done_for, METH_VARARGS, "done_for(call, work)"},
    {NULL, NULL, 0, NULL},
};

int mq_objects_add_waits(PyObject *module) {
    limit_type = PyType_FromModuleAndSpec(module, &limit_spec, NULL);
    if (!limit_type || PyModule_AddType(module, (PyTypeObject *)limit_type)) return -1;
    return PyModule_AddFunctions(module, functions);
}
