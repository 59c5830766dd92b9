/* Delayed messages: the queue in which one waits, what is written on it, and the leader's wake-up.
 *
 *   DelayedRecords(size_max)      of one store
 *       .set_level(level, number, delay_ms, event)              the queue of a delay level
 *       .set_timers(number, precision_ms, delay_max_ms, event)  the queue of timer messages
 *       .prepare(message, body_size, target) -> (properties, due_ms), None: it is due, or int: MQ_REFUSED_…
 *
 * A delayed message waits as a record of another topic than its own. Behind its own properties stand
 *
 *     TIMER_DELIVER_MS   when it is due, where the message says for how long it is to wait (TIMER_DELAY_MS)
 *     TIMER_OUT_MS       its slot: the last multiple of the precision before it is due
 *                        (both of messages that are due at any time alone)
 *     REAL_TOPIC         where it belongs: these two are `target`
 *     REAL_QID
 *
 * and the tagsCode of one with a delay level is when it is due: its store time and the level's delay.
 *
 * size_max is what body, properties and topic may come to. `event` is (owner, address, notify): the word at
 * `address`, which lives as long as the owner, says when the leader looks next; notify() has it look before.
 * RocketMQ: broker/util/HookUtils.java, handleScheduleMessage and transformTimerMessage.
 */
#include "objects.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LEVEL_MAX = 64,
    TIMER_PROPERTIES_MAX = 128,
    PROPERTIES_SIZE_MAX = MQ_PROPERTIES_SIZE_MAX - MQ_UNIQUE_PROPERTY_SIZE - MQ_CRC_PROPERTY_SIZE
};

typedef struct {
    PyObject *owner;
    PyObject *notify;
    const _Atomic int64_t *wake_ms;
} duty_event;

typedef struct {
    PyObject_HEAD int64_t size_max;
    struct {
        int number; /* of the queue and 1; 0: not told */
        int64_t delay_ms;
    } levels[LEVEL_MAX + 1];
    int timers; /* so too */
    int64_t precision_ms;
    int64_t delay_max_ms;
    duty_event events[2]; /* of levels, of timers */
} delayed_records;

PyObject *mq_delayed_type;

static int delayed_records_traverse(PyObject *self, visitproc visit, void *arg) {
    delayed_records *of = (delayed_records *)self;
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < 2; i++) {
        Py_VISIT(of->events[i].owner);
        Py_VISIT(of->events[i].notify);
    }
    return 0;
}

static void forget(duty_event *of) {
    PyObject *owner = of->owner;
    PyObject *notify = of->notify;
    *of = (duty_event){0};
    Py_XDECREF(owner);
    Py_XDECREF(notify);
}

static int delayed_records_clear(PyObject *self) {
    delayed_records *of = (delayed_records *)self;
    for (int i = 0; i < 2; i++) forget(&of->events[i]);
    return 0;
}

static void delayed_records_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    delayed_records_clear(self);
    mq_objects_free(self);
}

/* Preparing. */

char *mq_objects_number(char *at, const char *name, int64_t number) {
    char digits[20];
    char *first = digits + sizeof digits;
    do *--first = (char)('0' + number % 10);
    while (number /= 10);
    size_t name_size = strlen(name);
    size_t size = (size_t)(digits + sizeof digits - first);
    memcpy(at, name, name_size);
    at[name_size] = 1;
    memcpy(at + name_size + 1, first, size);
    at[name_size + 1 + size] = 2;
    return at + name_size + 1 + size + 1;
}

/* When a timer message is due: the whole of its delay is to pass, so the ms that has begun is counted in
 * full. 0: it is due already. */
static int64_t due_of(const mq_sent *message, int64_t now_ns, int64_t delay_max_ms) {
    if (message->later == MQ_LATER_BY_DELAY) {
        if (message->amount > delay_max_ms) return MQ_REFUSED_TOO_LATE;
        return message->amount > 0 ? (now_ns + 999999) / 1000000 + message->amount : 0;
    }
    int64_t now = now_ns / 1000000;
    if (message->amount <= now) return 0;
    return message->amount - now > delay_max_ms ? MQ_REFUSED_TOO_LATE : message->amount;
}

/* TIMER_OUT_MS. */
static int64_t slot_of(int64_t due_ms, int64_t precision_ms) {
    return (due_ms - 1) / precision_ms * precision_ms;
}

/* Lay the properties: the message's own, which may lack the last separator, `more`, and the target. */
static int lay(const delayed_records *of, const mq_sent *message, int64_t body_size, PyObject *target,
               const char *more, int more_size, mq_delayed *out) {
    const char *own = PyBytes_AsString(message->encoded);
    Py_ssize_t own_size = PyBytes_Size(message->encoded);
    int open_end = own_size && own[own_size - 1] != 2;
    Py_ssize_t target_size = PyBytes_Size(target);
    int64_t size = (int64_t)own_size + open_end + more_size + target_size;
    if (size > PROPERTIES_SIZE_MAX) return MQ_REFUSED_PROPERTIES;
    if (size + body_size + PyUnicode_GetLength(message->topic) > of->size_max) return MQ_REFUSED_SIZE;
    out->memory = size > (int64_t)sizeof out->room ? malloc((size_t)size) : NULL;
    if (!out->memory && size > (int64_t)sizeof out->room) return MQ_REFUSED_MEMORY;
    char *at = out->memory ? out->memory : out->room;
    out->properties = at;
    out->properties_size = size;
    if (own_size) memcpy(at, own, (size_t)own_size);
    at += own_size;
    if (open_end) *at++ = 2;
    if (more_size) memcpy(at, more, (size_t)more_size);
    memcpy(at + more_size, PyBytes_AsString(target), (size_t)target_size);
    return 1;
}

int mq_delayed_prepare(PyObject *self, const mq_sent *message, int64_t body_size, PyObject *target,
                       mq_delayed *out) {
    const delayed_records *of = (const delayed_records *)self;
    if (message->later == MQ_LATER_BY_LEVEL) {
        if (message->amount < 1 || message->amount > LEVEL_MAX || !of->levels[message->amount].number)
            return MQ_REFUSED_NOT_SET;
        out->number = of->levels[message->amount].number - 1;
        out->delay_ms = of->levels[message->amount].delay_ms;
        out->due_ms = -1;
        out->out_ms = 0;
        out->has_options = 1;
        out->options = (mq_append_options){.has_tags_code = 2, .tags_code = out->delay_ms};
        return lay(of, message, body_size, target, NULL, 0, out);
    }
    char more[TIMER_PROPERTIES_MAX];
    if (!of->timers || message->amount < 0) return MQ_REFUSED_NOT_SET;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t due = due_of(message, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, of->delay_max_ms);
    if (due <= 0) return (int)due;
    out->number = of->timers - 1;
    out->due_ms = due;
    out->out_ms = slot_of(due, of->precision_ms);
    out->has_options = 0;
    char *end = more;
    if (message->later == MQ_LATER_BY_DELAY) end = mq_objects_number(end, "TIMER_DELIVER_MS", due);
    end = mq_objects_number(end, "TIMER_OUT_MS", out->out_ms);
    return lay(of, message, body_size, target, more, (int)(end - more), out);
}

void mq_delayed_done(mq_delayed *delayed) { free(delayed->memory); }

int mq_delayed_notify(PyObject *self, const mq_delayed *delayed, int64_t store_time) {
    const duty_event *of = &((const delayed_records *)self)->events[delayed->out_ms != 0];
    /* Store times are cut to the ms: a level's delay has passed when that ms is over. */
    int64_t due = delayed->due_ms < 0 ? store_time + delayed->delay_ms + 1 : delayed->due_ms;
    /* The leader says when it wakes before it looks what there is: one of us two sees what the other one
     * did. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!of->wake_ms || due >= atomic_load_explicit(of->wake_ms, memory_order_relaxed)) return 0;
    PyObject *notify = mq_objects_shared(of->notify);
    PyObject *done = PyObject_CallFunctionObjArgs(notify, NULL);
    Py_DECREF(notify);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The rules of due times, for callers with a clock of their own. */

PyObject *mq_objects_due_ms(PyObject *module, PyObject *args) {
    PyObject *message;
    long long now_ns, delay_max_ms;
    if (!PyArg_ParseTuple(args, "OLL:due_ms", &message, &now_ns, &delay_max_ms)) return NULL;
    if (!mq_objects_is_sent(message) || now_ns < 0 || now_ns > INT64_MAX - 1000000) {
        PyErr_SetString(PyExc_TypeError, "due_ms() takes a Message, a time in ns, and a limit in ms");
        return NULL;
    }
    const mq_sent *of = (const mq_sent *)message;
    int waits = of->later == MQ_LATER_BY_DELAY || of->later == MQ_LATER_BY_TIME;
    return PyLong_FromLongLong(waits ? due_of(of, now_ns, delay_max_ms) : 0);
}

PyObject *mq_objects_slot_ms(PyObject *module, PyObject *args) {
    long long due_ms, precision_ms;
    if (!PyArg_ParseTuple(args, "LL:slot_ms", &due_ms, &precision_ms)) return NULL;
    if (due_ms < 1 || precision_ms < 1)
        return PyErr_Format(PyExc_ValueError, "%lld ms, by %lld ms, is in no slot", due_ms, precision_ms);
    return PyLong_FromLongLong(slot_of(due_ms, precision_ms));
}

/* The type. */

static PyObject *delayed_records_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    long long size_max;
    if (!PyArg_ParseTuple(args, "L:DelayedRecords", &size_max)) return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self) ((delayed_records *)self)->size_max = size_max;
    return self;
}

static int keep(duty_event *at, PyObject *owner, unsigned long long address, PyObject *notify) {
    if (address % sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "a word to wake by is aligned to eight bytes");
        return -1;
    }
    forget(at);
    at->owner = mq_objects_shared(owner);
    at->notify = mq_objects_shared(notify);
    at->wake_ms = (const _Atomic int64_t *)(uintptr_t)address;
    return 0;
}

static PyObject *set_level(PyObject *self, PyObject *args) {
    delayed_records *of = (delayed_records *)self;
    int level, number;
    long long delay_ms;
    PyObject *owner, *notify;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "iiL(OKO):set_level", &level, &number, &delay_ms, &owner, &address, &notify))
        return NULL;
    if (level < 1 || level > LEVEL_MAX || number < 0 || delay_ms < 0)
        return PyErr_Format(PyExc_ValueError, "level %d cannot be told", level);
    if (keep(&of->events[0], owner, address, notify)) return NULL;
    of->levels[level].delay_ms = delay_ms;
    of->levels[level].number = number + 1;
    Py_RETURN_NONE;
}

static PyObject *set_timers(PyObject *self, PyObject *args) {
    delayed_records *of = (delayed_records *)self;
    int number;
    long long precision_ms, delay_max_ms;
    PyObject *owner, *notify;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "iLL(OKO):set_timers", &number, &precision_ms, &delay_max_ms, &owner,
                          &address, &notify))
        return NULL;
    if (number < 0 || precision_ms < 1 || delay_max_ms < 0 || delay_max_ms > (long long)1 << 48)
        return PyErr_Format(PyExc_ValueError, "timers of a precision of %lld ms cannot be told",
                            precision_ms);
    if (keep(&of->events[1], owner, address, notify)) return NULL;
    of->precision_ms = precision_ms;
    of->delay_max_ms = delay_max_ms;
    of->timers = number + 1;
    Py_RETURN_NONE;
}

static PyObject *prepare(PyObject *self, PyObject *args) {
    PyObject *message, *target;
    long long body_size;
    if (!PyArg_ParseTuple(args, "OLS:prepare", &message, &body_size, &target)) return NULL;
    if (!mq_objects_is_sent(message)) {
        PyErr_SetString(PyExc_TypeError, "prepare() takes a Message");
        return NULL;
    }
    mq_delayed delayed;
    int found = ((const mq_sent *)message)->later
                    ? mq_delayed_prepare(self, (const mq_sent *)message, body_size, target, &delayed)
                    : 0;
    if (found == 0) Py_RETURN_NONE;
    if (found < 0) return PyLong_FromLong(found);
    PyObject *made = Py_BuildValue("y#L", delayed.properties, (Py_ssize_t)delayed.properties_size,
                                   (long long)delayed.due_ms);
    mq_delayed_done(&delayed);
    return made;
}

static PyMethodDef delayed_records_methods[] = {
    {"prepare", prepare, METH_VARARGS, "prepare(message, body_size, target)"},
    {"set_level", set_level, METH_VARARGS, "set_level(level, number, delay_ms, (owner, address, notify))"},
    {"set_timers", set_timers, METH_VARARGS,
     "set_timers(number, precision_ms, delay_max_ms, (owner, address, notify))"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot delayed_records_slots[] = {
    {Py_tp_new, delayed_records_new},           {Py_tp_dealloc, delayed_records_dealloc},
    {Py_tp_traverse, delayed_records_traverse}, {Py_tp_clear, delayed_records_clear},
    {Py_tp_methods, delayed_records_methods},   {0, NULL},
};
static PyType_Spec delayed_records_spec = {"mq.fastpath.DelayedRecords", sizeof(delayed_records), 0,
                                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, delayed_records_slots};

int mq_objects_add_delayed(PyObject *module) {
    mq_delayed_type = PyType_FromModuleAndSpec(module, &delayed_records_spec, NULL);
    return mq_delayed_type ? PyModule_AddType(module, (PyTypeObject *)mq_delayed_type) : -1;
}
