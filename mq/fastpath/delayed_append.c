/* Messages that are to be delivered later: where they are put aside, as the usual one of them is.
 *
 *   Asides(size_max)      of one store
 *       .set_level(level, number, delay_ms, alarm)           the queue of a delay level
 *       .set_timers(number, precision_ms, delay_max_ms, alarm)   the queue of timer messages
 *
 * size_max is what body and properties may come to. alarm is (owner, address, ring): the word at `address`,
 * which lives as long as the owner, says when the leader looks next; ring() has it look before.
 *
 * What was not told, is due too late, or is too large is left to mq/store/log/delayed_append.py, which does
 * the same for every message and says what is wrong. What is written on a message that is put aside stands
 * there.
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
    PyObject *ring;
    const _Atomic int64_t *wake_ms;
} bell;

typedef struct {
    PyObject_HEAD int64_t size_max;
    struct {
        int number; /* of the queue and 1; 0: not told */
        int64_t delay_ms;
    } levels[LEVEL_MAX + 1];
    int timers; /* so too */
    int64_t precision_ms;
    int64_t delay_max_ms;
    bell alarms[2]; /* of levels, of timers */
} asides;

PyObject *mq_asides_type;

static int asides_traverse(PyObject *self, visitproc visit, void *arg) {
    asides *of = (asides *)self;
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < 2; i++) {
        Py_VISIT(of->alarms[i].owner);
        Py_VISIT(of->alarms[i].ring);
    }
    return 0;
}

static void forget(bell *of) {
    PyObject *owner = of->owner;
    PyObject *ring = of->ring;
    *of = (bell){0};
    Py_XDECREF(owner);
    Py_XDECREF(ring);
}

static int asides_clear(PyObject *self) {
    asides *of = (asides *)self;
    for (int i = 0; i < 2; i++) forget(&of->alarms[i]);
    return 0;
}

static void asides_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    asides_clear(self);
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

static int64_t clock_ms(int up) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + (now.tv_nsec + (up ? 999999 : 0)) / 1000000;
}

/* When a timer message is due: the whole of its delay is to pass, so the ms that has begun is counted in
 * full. 0: it is due already; -1: it is beyond the limit. */
static int64_t due_of(const asides *of, const mq_sent *message) {
    if (message->later == MQ_LATER_BY_DELAY) {
        if (message->amount > of->delay_max_ms) return -1;
        return message->amount > 0 ? clock_ms(1) + message->amount : 0;
    }
    int64_t now = clock_ms(0);
    if (message->amount <= now) return 0;
    return message->amount - now > of->delay_max_ms ? -1 : message->amount;
}

static int lay(const asides *of, const mq_sent *message, PyObject *body, PyObject *belongs, const char *more,
               int more_size, mq_aside *out) {
    Py_ssize_t own = PyBytes_Size(message->encoded);
    Py_ssize_t where = PyBytes_Size(belongs);
    int64_t size = (int64_t)own + where + more_size;
    if (size + PyBytes_Size(body) > of->size_max || size > PROPERTIES_SIZE_MAX) return -1;
    if (own == 0 || PyBytes_AsString(message->encoded)[own - 1] != 2) return -1;
    out->memory = size > (int64_t)sizeof out->room ? malloc((size_t)size) : NULL;
    if (!out->memory && size > (int64_t)sizeof out->room) return -1;
    char *at = out->memory ? out->memory : out->room;
    out->properties = at;
    out->properties_size = size;
    memcpy(at, PyBytes_AsString(message->encoded), (size_t)own);
    if (more_size) memcpy(at + own, more, (size_t)more_size);
    memcpy(at + own + more_size, PyBytes_AsString(belongs), (size_t)where);
    return 1;
}

int mq_aside_prepare(PyObject *self, const mq_sent *message, PyObject *body, PyObject *belongs,
                     mq_aside *out) {
    const asides *of = (const asides *)self;
    if (message->later == MQ_LATER_BY_LEVEL) {
        if (message->amount < 1 || message->amount > LEVEL_MAX || !of->levels[message->amount].number)
            return -1;
        out->number = of->levels[message->amount].number - 1;
        out->delay_ms = of->levels[message->amount].delay_ms;
        out->due_ms = -1;
        out->out_ms = 0;
        out->has_options = 1;
        out->options = (mq_append_options){.has_tags_code = 2, .tags_code = out->delay_ms};
        return lay(of, message, body, belongs, NULL, 0, out);
    }
    char more[TIMER_PROPERTIES_MAX];
    if (!of->timers || message->amount < 0) return -1;
    int64_t due = due_of(of, message);
    if (due <= 0) return (int)due;
    out->number = of->timers - 1;
    out->due_ms = due;
    out->out_ms = (due - 1) / of->precision_ms * of->precision_ms;
    out->has_options = 0;
    char *end = more;
    if (message->later == MQ_LATER_BY_DELAY) end = mq_objects_number(end, "TIMER_DELIVER_MS", due);
    end = mq_objects_number(end, "TIMER_OUT_MS", out->out_ms);
    return lay(of, message, body, belongs, more, (int)(end - more), out);
}

void mq_aside_done(mq_aside *aside) { free(aside->memory); }

int mq_aside_ring(PyObject *self, const mq_aside *aside, int64_t store_time) {
    const bell *of = &((const asides *)self)->alarms[aside->out_ms != 0];
    /* Store times are cut to the ms: a level's delay has passed when that ms is over. */
    int64_t due = aside->due_ms < 0 ? store_time + aside->delay_ms + 1 : aside->due_ms;
    /* The leader says when it wakes before it looks what there is: one of us two sees what the other one
     * did. */
    atomic_thread_fence(memory_order_seq_cst);
    if (!of->wake_ms || due >= atomic_load_explicit(of->wake_ms, memory_order_relaxed)) return 0;
    PyObject *ring = mq_objects_shared(of->ring);
    PyObject *rung = PyObject_CallFunctionObjArgs(ring, NULL);
    Py_DECREF(ring);
    Py_XDECREF(rung);
    return rung ? 0 : -1;
}

/* The type. */

static PyObject *asides_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    long long size_max;
    if (!PyArg_ParseTuple(args, "L:Asides", &size_max)) return NULL;
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (self) ((asides *)self)->size_max = size_max;
    return self;
}

static int keep(bell *at, PyObject *owner, unsigned long long address, PyObject *ring) {
    if (address % sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "a word to wake by is aligned to eight bytes");
        return -1;
    }
    forget(at);
    at->owner = mq_objects_shared(owner);
    at->ring = mq_objects_shared(ring);
    at->wake_ms = (const _Atomic int64_t *)(uintptr_t)address;
    return 0;
}

static PyObject *set_level(PyObject *self, PyObject *args) {
    asides *of = (asides *)self;
    int level, number;
    long long delay_ms;
    PyObject *owner, *ring;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "iiL(OKO):set_level", &level, &number, &delay_ms, &owner, &address, &ring))
        return NULL;
    if (level < 1 || level > LEVEL_MAX || number < 0 || delay_ms < 0)
        return PyErr_Format(PyExc_ValueError, "level %d cannot be told", level);
    if (keep(&of->alarms[0], owner, address, ring)) return NULL;
    of->levels[level].delay_ms = delay_ms;
    of->levels[level].number = number + 1;
    Py_RETURN_NONE;
}

static PyObject *set_timers(PyObject *self, PyObject *args) {
    asides *of = (asides *)self;
    int number;
    long long precision_ms, delay_max_ms;
    PyObject *owner, *ring;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "iLL(OKO):set_timers", &number, &precision_ms, &delay_max_ms, &owner,
                          &address, &ring))
        return NULL;
    if (number < 0 || precision_ms < 1 || delay_max_ms < 0 || delay_max_ms > (long long)1 << 48)
        return PyErr_Format(PyExc_ValueError, "timers of a precision of %lld ms cannot be told",
                            precision_ms);
    if (keep(&of->alarms[1], owner, address, ring)) return NULL;
    of->precision_ms = precision_ms;
    of->delay_max_ms = delay_max_ms;
    of->timers = number + 1;
    Py_RETURN_NONE;
}

static PyMethodDef asides_methods[] = {
    {"set_level", set_level, METH_VARARGS, "set_level(level, number, delay_ms, (owner, address, ring))"},
    {"set_timers", set_timers, METH_VARARGS,
     "set_timers(number, precision_ms, delay_max_ms, (owner, address, ring))"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot asides_slots[] = {
    {Py_tp_new, asides_new},     {Py_tp_dealloc, asides_dealloc}, {Py_tp_traverse, asides_traverse},
    {Py_tp_clear, asides_clear}, {Py_tp_methods, asides_methods}, {0, NULL},
};
static PyType_Spec asides_spec = {"mq.fastpath.Asides", sizeof(asides), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, asides_slots};

int mq_objects_add_asides(PyObject *module) {
    mq_asides_type = PyType_FromModuleAndSpec(module, &asides_spec, NULL);
    return mq_asides_type ? PyModule_AddType(module, (PyTypeObject *)mq_asides_type) : -1;
}
