/* Locks held for a with statement, which no exception can leave locked.
 *
 *   mutex_guard(owner, address, which, timeout, failed)   a robust mutex of a store
 *   log_guard(owner, address, timeout, failed)            the append lock, with its repair
 *   byte_guard(fd, byte, timeout, failed)                 a byte of an open file
 *   file_guard(path, byte, timeout, failed, create)       a byte of a file that is opened for it
 *   open_guard(path, flags, make)                         no lock: a file that is closed with the guard
 *   thread_guard(lock, timeout, failed)                   a threading.Lock
 *   bucket_guard(owner, address, bucket, timeout, failed) a bucket of the table of dedup keys
 *
 * Python may raise between any two of its instructions: KeyboardInterrupt, or what another signal handler
 * raises. So the function that takes a lock returns it as an object, and the lock is given back when that is
 * let go of: by the with statement, or, where an exception came before it or between it and its end, with the
 * last reference. Write `with byte_guard(...):`, and give the guard no name: a name keeps it as long as the
 * exception is known.
 *
 * Waiting is interrupted by signals, with nothing taken. failed(result) is called when a lock was not to be
 * had in time, or not at all, and raises: MQ_BUSY, MQ_REENTERED (this very thread has it, in what a signal
 * handler interrupted, or the one that waits for this thread's work), or what the data plane says.
 */
#include "objects.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 50, SPIN_COUNT = 20, SPIN_NS = 50000, PAUSE_NS = 2000000 };
enum { NOTHING, MUTEX, BYTE, THREAD, BUCKET };

typedef struct guard {
    PyObject_HEAD int kind;
    int which;
    int fd;
    int is_own_file; /* the descriptor is closed with the guard */
    int64_t byte;    /* or the bucket */
    PyObject *keep;  /* the owner of the mutex or of the table, or the threading.Lock */
    mq_control *control;
    mq_dedup *table;
    unsigned long thread;
    int64_t number;           /* in the order of their making */
    struct guard *next, **at; /* in `held` */
} guard;

static PyObject *guard_type;
static guard *held; /* guards of threading locks, of buckets, and of files opened for one */
static __typeof__(mq_control_enter) *enter_at;
static __typeof__(mq_control_leave) *leave_at;
static __typeof__(mq_control_abandon) *abandon_at;
static __typeof__(mq_log_enter) *log_enter_at;
static __typeof__(mq_log_control) *log_control_at;
static __typeof__(mq_create_file) *create_at;
static __typeof__(mq_dedup_lock) *bucket_lock_at;
static __typeof__(mq_dedup_unlock) *bucket_unlock_at;
static __typeof__(mq_dedup_stripe) *stripe_at;

static void list(guard *of) {
    static int64_t last;
    of->number = ++last;
    of->next = held;
    of->at = &held;
    if (held) held->at = &of->next;
    held = of;
}

static void unlist(guard *of) {
    if (!of->at) return;
    *of->at = of->next;
    if (of->next) of->next->at = of->at;
    of->at = NULL;
}

/* Whether the asker would wait in vain for this guard. */
static int has(const mq_asker *asker, const guard *of) {
    return of->thread == asker->own || (of->thread == asker->waiting && of->number <= asker->number);
}

PyObject *mq_objects_held_here(void) {
    unsigned long own = PyThread_get_thread_ident();
    const guard *newest = held;
    while (newest && newest->thread != own) newest = newest->next;
    return Py_BuildValue("kL", own, newest ? (long long)newest->number : 0LL);
}

static int flock_byte(int fd, int64_t byte, short kind) {
    struct flock request = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &request);
}

/* Give back what it has. Errors of the caller stay as they are. */
static void release(guard *of) {
    int kind = of->kind;
    of->kind = NOTHING;
    unlist(of);
    if (kind == MUTEX) {
        if (of->thread == PyThread_get_thread_ident()) leave_at(of->control, of->which);
        else abandon_at(of->control, of->which);
    } else if (kind == BYTE && of->is_own_file) {
        if (of->fd >= 0) close(of->fd); /* which drops the lock */
    } else if (kind == BYTE) {
        flock_byte(of->fd, of->byte, F_UNLCK);
    } else if (kind == THREAD) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        PyObject *done = PyObject_CallMethod(of->keep, "release", NULL);
        Py_XDECREF(done);
        PyErr_Restore(type, error, trace);
    } else if (kind == BUCKET) {
        bucket_unlock_at(of->table, of->byte);
    }
    Py_CLEAR(of->keep);
}

static void guard_dealloc(PyObject *self) {
    release((guard *)self);
    mq_objects_free(self);
}

static guard *guard_new(void) {
    guard *made = (guard *)mq_objects_make(guard_type);
    if (!made) return NULL;
    made->kind = NOTHING;
    made->fd = -1;
    made->thread = PyThread_get_thread_ident();
    return made;
}

/* The lock was not to be had: raise what that means. */
static PyObject *refused(guard *of, PyObject *failed, int result) {
    Py_DECREF(of);
    PyObject *nothing = PyObject_CallFunction(failed, "i", result);
    if (nothing) PyErr_SetString(PyExc_RuntimeError, "a lock was not to be had");
    Py_XDECREF(nothing);
    return NULL;
}

static PyObject *interrupted(guard *of) {
    Py_DECREF(of);
    return NULL;
}

static int slice_ms(int64_t deadline) {
    int64_t left = (deadline - mq_objects_now_ns() + 999999) / 1000000;
    return left > SLICE_MS ? SLICE_MS : left > 0 ? (int)left : 0;
}

static PyObject *mutex(PyObject *owner, mq_control *control, mq_log *log, int which, double timeout,
                       PyObject *failed) {
    guard *made = guard_new();
    if (!made) return NULL;
    made->keep = mq_objects_shared(owner);
    made->control = control;
    made->which = which;
    int64_t deadline = mq_objects_deadline(timeout);
    for (;;) {
        int wait_ms = slice_ms(deadline);
        int result;
        int error;
        Py_BEGIN_ALLOW_THREADS;
        result = log ? log_enter_at(log, wait_ms) : enter_at(control, which, wait_ms);
        error = errno;
        Py_END_ALLOW_THREADS;
        if (result >= 0) {
            made->kind = MUTEX;
            return (PyObject *)made;
        }
        if (result == MQ_BUSY && mq_objects_now_ns() < deadline) {
            if (PyErr_CheckSignals()) return interrupted(made);
            continue;
        }
        errno = error;
        return refused(made, failed, result);
    }
}

static PyObject *mutex_guard(PyObject *module, PyObject *args) {
    PyObject *owner, *failed;
    unsigned long long address;
    int which;
    double timeout;
    if (!PyArg_ParseTuple(args, "OKidO:mutex_guard", &owner, &address, &which, &timeout, &failed))
        return NULL;
    return mutex(owner, (mq_control *)(uintptr_t)address, NULL, which, timeout, failed);
}

static PyObject *log_guard(PyObject *module, PyObject *args) {
    PyObject *owner, *failed;
    unsigned long long address;
    double timeout;
    if (!PyArg_ParseTuple(args, "OKdO:log_guard", &owner, &address, &timeout, &failed)) return NULL;
    mq_log *log = (mq_log *)(uintptr_t)address;
    return mutex(owner, log_control_at(log), log, MQ_LOCK_APPEND, timeout, failed);
}

/* Whether another guard of this thread, or of the one that waits for its work, has the same byte. */
static int is_reentered(const guard *made) {
    struct stat own, others;
    mq_asker asker = mq_objects_asker();
    if (fstat(made->fd, &own)) return 0;
    for (const guard *other = held; other; other = other->next)
        if (other != made && other->kind == BYTE && has(&asker, other) && other->byte == made->byte &&
            !fstat(other->fd, &others) && own.st_ino == others.st_ino && own.st_dev == others.st_dev)
            return 1;
    return 0;
}

/* Lock the byte of a guard that has its descriptor. */
static PyObject *lock(guard *made, double timeout, PyObject *failed) {
    int64_t deadline = 0;
    for (int count = 0; flock_byte(made->fd, made->byte, F_WRLCK); count++) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            PyErr_SetFromErrno(PyExc_OSError);
            return interrupted(made);
        }
        if (!deadline) {
            if (made->is_own_file && is_reentered(made)) return refused(made, failed, MQ_REENTERED);
            deadline = mq_objects_deadline(timeout);
        }
        int64_t left = deadline - mq_objects_now_ns();
        if (left <= 0) return refused(made, failed, MQ_BUSY);
        int64_t pause = count < SPIN_COUNT ? SPIN_NS : PAUSE_NS;
        struct timespec nap = {0, pause < left ? pause : left};
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&nap, NULL);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals()) return interrupted(made);
    }
    made->kind = BYTE;
    return (PyObject *)made;
}

static PyObject *byte_guard(PyObject *module, PyObject *args) {
    int fd;
    long long byte;
    double timeout;
    PyObject *failed;
    if (!PyArg_ParseTuple(args, "iLdO:byte_guard", &fd, &byte, &timeout, &failed)) return NULL;
    guard *made = guard_new();
    if (!made) return NULL;
    made->fd = fd;
    made->byte = byte;
    return lock(made, timeout, failed);
}

static PyObject *file_guard(PyObject *module, PyObject *args) {
    PyObject *path;
    long long byte;
    double timeout;
    PyObject *failed;
    int create;
    if (!PyArg_ParseTuple(args, "SLdOp:file_guard", &path, &byte, &timeout, &failed, &create)) return NULL;
    guard *made = guard_new();
    if (!made) return NULL;
    const char *name = PyBytes_AsString(path);
    made->is_own_file = 1;
    made->byte = byte;
    made->fd = create ? create_at(name, O_RDWR) : open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (made->fd < 0) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
        return interrupted(made);
    }
    made->kind = BYTE; /* from here on the descriptor goes with the guard */
    list(made);
    return lock(made, timeout, failed);
}

static PyObject *open_guard(PyObject *module, PyObject *args) {
    PyObject *path;
    int flags, make;
    if (!PyArg_ParseTuple(args, "Sip:open_guard", &path, &flags, &make)) return NULL;
    guard *made = guard_new();
    if (!made) return NULL;
    const char *name = PyBytes_AsString(path);
    do made->fd = make ? create_at(name, flags) : open(name, flags | O_CLOEXEC);
    while (made->fd < 0 && errno == EINTR);
    if (made->fd < 0) {
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, name);
        return interrupted(made);
    }
    made->is_own_file = 1;
    made->byte = -1;
    made->kind = BYTE;
    list(made);
    return (PyObject *)made;
}

/* The same for a lock among threads, or of a bucket. */
static int has_same(const guard *made, int kind) {
    mq_asker asker = mq_objects_asker();
    for (const guard *other = held; other; other = other->next)
        if (other->kind == kind && other->keep == made->keep && has(&asker, other) &&
            (kind == THREAD || stripe_at(other->byte) == stripe_at(made->byte)))
            return 1;
    return 0;
}

static PyObject *thread_guard(PyObject *module, PyObject *args) {
    PyObject *lock;
    double timeout;
    PyObject *failed;
    if (!PyArg_ParseTuple(args, "OdO:thread_guard", &lock, &timeout, &failed)) return NULL;
    guard *made = guard_new();
    if (!made) return NULL;
    made->keep = mq_objects_shared(lock);
    PyObject *got = PyObject_CallMethod(lock, "acquire", "i", 0);
    if (got == Py_False) {
        Py_DECREF(got);
        if (has_same(made, THREAD)) return refused(made, failed, MQ_REENTERED);
        double left = (double)(mq_objects_deadline(timeout) - mq_objects_now_ns()) / 1e9;
        got = PyObject_CallMethod(lock, "acquire", "id", 1, left > 0 ? left : 0.0);
    }
    if (!got) return interrupted(made);
    int is_taken = got == Py_True;
    Py_DECREF(got);
    if (!is_taken) return refused(made, failed, MQ_BUSY);
    made->kind = THREAD;
    list(made);
    return (PyObject *)made;
}

static PyObject *bucket_guard(PyObject *module, PyObject *args) {
    PyObject *owner, *failed;
    unsigned long long address, bucket;
    double timeout;
    if (!PyArg_ParseTuple(args, "OKKdO:bucket_guard", &owner, &address, &bucket, &timeout, &failed))
        return NULL;
    guard *made = guard_new();
    if (!made) return NULL;
    made->keep = mq_objects_shared(owner);
    made->table = (mq_dedup *)(uintptr_t)address;
    made->byte = (int64_t)bucket;
    for (int64_t deadline = 0;;) {
        int result;
        Py_BEGIN_ALLOW_THREADS;
        result = bucket_lock_at(made->table, made->byte, deadline ? slice_ms(deadline) : 0);
        Py_END_ALLOW_THREADS;
        if (!result) {
            made->kind = BUCKET;
            list(made);
            return (PyObject *)made;
        }
        if (result == MQ_BUSY && !deadline && has_same(made, BUCKET)) result = MQ_REENTERED;
        if (!deadline) deadline = mq_objects_deadline(timeout);
        if (result != MQ_BUSY || mq_objects_now_ns() >= deadline) return refused(made, failed, result);
        if (PyErr_CheckSignals()) return interrupted(made);
    }
}

/* In a forked child: files of the parent's guards, whose locks would live as long as the copies. */
static PyObject *close_guarded_files(PyObject *module, PyObject *unused) {
    for (guard *of = held; of; of = of->next) {
        if (of->kind != BYTE) continue;
        if (of->fd >= 0) close(of->fd);
        of->fd = -1;
    }
    Py_RETURN_NONE;
}

static PyObject *guard_enter(PyObject *self, PyObject *unused) {
    return PyLong_FromLong(((guard *)self)->fd);
}

static PyObject *guard_exit(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    release((guard *)self);
    Py_RETURN_NONE;
}

static PyObject *bind_guards(PyObject *module, PyObject *args) {
    unsigned long long at[10];
    if (!PyArg_ParseTuple(args, "KKKKKKKKKK:bind_guards", at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6,
                          at + 7, at + 8, at + 9))
        return NULL;
    enter_at = (__typeof__(mq_control_enter) *)(uintptr_t)at[0];
    leave_at = (__typeof__(mq_control_leave) *)(uintptr_t)at[1];
    abandon_at = (__typeof__(mq_control_abandon) *)(uintptr_t)at[2];
    log_enter_at = (__typeof__(mq_log_enter) *)(uintptr_t)at[3];
    log_control_at = (__typeof__(mq_log_control) *)(uintptr_t)at[4];
    mq_objects_bind_deadline((uintptr_t)at[5]);
    create_at = (__typeof__(mq_create_file) *)(uintptr_t)at[6];
    bucket_lock_at = (__typeof__(mq_dedup_lock) *)(uintptr_t)at[7];
    bucket_unlock_at = (__typeof__(mq_dedup_unlock) *)(uintptr_t)at[8];
    stripe_at = (__typeof__(mq_dedup_stripe) *)(uintptr_t)at[9];
    Py_RETURN_NONE;
}

static PyMethodDef guard_methods[] = {
    {"__enter__", guard_enter, METH_NOARGS, "The descriptor of a file that is locked."},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, "Give the lock back."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot guard_slots[] = {
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_methods, guard_methods},
    {0, NULL},
};
static PyType_Spec guard_spec = {"mq.fastpath.Guard", sizeof(guard), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, guard_slots};
static PyMethodDef functions[] = {
    {"mutex_guard", mutex_guard, METH_VARARGS, "mutex_guard(owner, address, which, timeout, failed)"},
    {"log_guard", log_guard, METH_VARARGS, "log_guard(owner, address, timeout, failed)"},
    {"byte_guard", byte_guard, METH_VARARGS, "byte_guard(fd, byte, timeout, failed)"},
    {"file_guard", file_guard, METH_VARARGS, "file_guard(path, byte, timeout, failed, create)"},
    {"open_guard", open_guard, METH_VARARGS, "open_guard(path, flags, make)"},
    {"thread_guard", thread_guard, METH_VARARGS, "thread_guard(lock, timeout, failed)"},
    {"bucket_guard", bucket_guard, METH_VARARGS, "bucket_guard(owner, address, bucket, timeout, failed)"},
    {"close_guarded_files", close_guarded_files, METH_NOARGS, "Close them, in a forked child."},
    {"bind_guards", bind_guards, METH_VARARGS,
     "bind_guards(enter, leave, abandon, log_enter, log_control, deadline, create, bucket_lock, "
     "bucket_unlock, stripe)"},
    {NULL, NULL, 0, NULL},
};

int mq_objects_add_guards(PyObject *module) {
    guard_type = PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    if (!guard_type || PyModule_AddType(module, (PyTypeObject *)guard_type)) return -1;
    return PyModule_AddFunctions(module, functions);
}
