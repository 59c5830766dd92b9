/* objects.h: what the files of this directory share. For C alone.
 *
 * The data plane is called through the addresses of its functions, which cffi has: there is one copy of it.
 */
#ifndef MQ_OBJECTS_H
#define MQ_OBJECTS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <structmember.h>

#include <stdint.h>

#include "base/error.h"
#include "base/owner.h"
#include "base/hash.h"
#include "log/record.h"
#include "control/control.h"
#include "base/mappedfiles.h"
#include "log/commitlog.h"
#include "queue/consumequeue.h"
#include "transactions/transactions.h"
#include "index/index.h"
#include "dedup/dedup_table.h"
#include "dedup/keyed_append.h"

/* What Python told, by name: see `bind`. */
typedef struct {
    PyObject *topics;   /* set of topics found good */
    PyObject *prefixes; /* tag -> bytes that its property string begins with */
    PyObject *build;    /* makes (topic, body, flag, plain, encoded) of any arguments, or raises */
    PyObject *message;  /* the class, no subclass of it */
    PyObject *stored;
    PyObject *send_result;
    PyObject *send_ok;
    PyObject *pull_result;
    PyObject *statuses; /* tuple of PullStatus by MQ_PULL_… */
} mq_known;

extern mq_known mq_objects_known;
extern PyObject *mq_delayed_type;

/* A method in C: see objects.c. */
typedef struct {
    const char *name;      /* for fast_method */
    const char *attribute; /* in its class */
    PyObject *(*function)(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
    PyObject *base;      /* the type whose memory `function` knows */
    PyObject *slow_path; /* the function in Python */
} mq_fast_method;

extern mq_fast_method mq_producer_send, mq_transaction_send, mq_transaction_begin;

typedef struct {
    PyObject_HEAD PyObject *topic;
    PyObject *body;
    PyObject *flag;
    PyObject *plain;
    PyObject *encoded;
    int64_t amount; /* of what `later` says: a level, ms, or a time in ms */
    char later;     /* MQ_LATER_… */
    char hurried;   /* WAIT=false */
    char keyed;     /* it has a dedup key */
} mq_sent;

/* When a message is to be delivered. */
enum { MQ_AT_ONCE, MQ_LATER_BY_LEVEL, MQ_LATER_BY_DELAY, MQ_LATER_BY_TIME };

/* How a delayed message is appended. See delayed_append.c. */
typedef struct {
    int number;     /* of the queue in which it waits */
    int64_t due_ms; /* below 0: the store time and `delay_ms` */
    int64_t delay_ms;
    int64_t out_ms; /* slot of a timer message; 0 of others */
    const char *properties;
    int64_t properties_size;
    mq_append_options options;
    int has_options;
    char *memory; /* NULL: `room` is enough */
    char room[512];
} mq_delayed;

typedef struct {
    PyObject_HEAD PyObject *record;
    PyObject *broker_name;
} mq_stored;

typedef struct {
    PyObject_HEAD PyObject *status;
    PyObject *queue;
    PyObject *queue_offset; /* NULL as long as it stands in the receipt; so for those that follow */
    PyObject *ids;
    PyObject *place;
    PyObject *transaction_id; /* NULL: None */
    int64_t out_ms;           /* TIMER_OUT_MS; 0 of what does not wait for a time */
    mq_receipt receipt;
} mq_sent_where;

typedef struct {
    PyObject_HEAD PyObject *status;
    PyObject *messages;
    long long next_offset;
    long long min_offset;
    long long max_offset;
} mq_pulled;

/* As `tp_init`: 0, or -1 with an error. */
typedef int (*mq_filler)(PyObject *self, PyObject *args, PyObject *kwargs);

PyObject *mq_objects_make(PyObject *type);
PyObject *mq_objects_shared(PyObject *value);
/* Whether it is exactly an int, so that nothing of it runs, and fits. */
int mq_objects_int64(PyObject *value, int64_t *number);
int mq_objects_int32(PyObject *value, int32_t *number);
/* The same, with an error that names it where it is not. */
int mq_objects_take_int32(PyObject *value, const char *name, int32_t *number);
/* Call a function of Python with arguments as METH_FASTCALL has them; NULL is one whose owner is gone. */
PyObject *mq_objects_pass_on(PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *names);
/* The same, with `first`, which is taken over, before these. It is made for each call: kept by the object
 * whose method it is, it would close a cycle. */
PyObject *mq_objects_pass_on_behind(PyObject *function, PyObject *first, PyObject *const *args,
                                    Py_ssize_t count);
/* Call the method in Python, with what the one in C is not for. */
PyObject *mq_objects_call_slow_path(const mq_fast_method *method, PyObject *self, PyObject *const *args,
                                    Py_ssize_t count, PyObject *names);
int mq_objects_is_log_handle(PyObject *value);
/* The log of a LogHandle, and what keeps it alive for one call; NULL without an error: it is let go of. */
PyObject *mq_objects_hold(PyObject *log_handle, mq_log **log);
void mq_objects_free(PyObject *self);
/* What `__init__` raises when it is called again: -1. */
int mq_objects_refuse_again(void);
/* A value of fields that were another one's, whatever `__init__` its class has. */
PyObject *mq_objects_restored(PyObject *type, PyObject *fields, mq_filler fill);
int mq_objects_add_type(PyObject *module, PyType_Spec *spec);

/* Lay name, 01, number (not negative) and 02 at `at`; the byte behind. */
char *mq_objects_number(char *at, const char *name, int64_t number);

/* What keeps a message from being stored. */
enum {
    MQ_REFUSED_CLOSED = -1,     /* the log is closed */
    MQ_REFUSED_NOT_SET = -2,    /* the queue of its delay level, or of timers, is still to be set */
    MQ_REFUSED_TOO_LATE = -3,   /* it is due later than it may be */
    MQ_REFUSED_PROPERTIES = -4, /* its properties are too large with those of a delayed message */
    MQ_REFUSED_SIZE = -5,       /* it will be too large once it is due */
    MQ_REFUSED_MEMORY = -6
};

/* Whether it is a message, whatever subclass of SentFields, with all its fields. */
int mq_objects_is_sent(PyObject *value);
/* Prepare to append a delayed message. 1: as `out` says, and then to be notified; 0: it is due, so it is
 * appended as if it had no delay; MQ_REFUSED_…: not at all. After 1, mq_delayed_done. */
int mq_delayed_prepare(PyObject *records, const mq_sent *message, int64_t body_size, PyObject *target,
                       mq_delayed *out);
void mq_delayed_done(mq_delayed *delayed);
/* Wake the leader where it would sleep beyond a message that was appended. 0, or -1 with an error. */
int mq_delayed_notify(PyObject *records, const mq_delayed *delayed, int64_t store_time);

int mq_objects_add_messages(PyObject *module);
int mq_objects_add_results(PyObject *module);
int mq_objects_add_calls(PyObject *module);
int mq_objects_add_delayed(PyObject *module);
int mq_objects_add_sender(PyObject *module);
int mq_objects_add_transactions(PyObject *module);
int mq_objects_add_transactor(PyObject *module);
int mq_objects_add_guards(PyObject *module);
int mq_objects_add_held(PyObject *module);
int mq_objects_add_waits(PyObject *module);
int mq_objects_add_hand_over(PyObject *module);
int mq_objects_add_keyed(PyObject *module);
/* Until when this thread may wait: see mq_wait_deadline. */
int64_t *mq_objects_wait_deadline(void);
void mq_objects_bind_deadline(uintptr_t at);
int64_t mq_objects_now_ns(void);
/* Until when to wait so long: the caller's limit counts where it ends before. */
int64_t mq_objects_deadline(double seconds);
/* Whose locks a thread waits for in vain: its own, and those that the thread which waits for its work had by
 * then, up to a number. */
typedef struct {
    unsigned long own, waiting;
    int64_t number;
} mq_asker;
mq_asker mq_objects_asker(void);
/* This thread, and the number of the newest lock that it has. */
PyObject *mq_objects_held_here(void);
PyObject *mq_objects_bind_calls(PyObject *module, PyObject *args);
PyObject *mq_objects_bind_transactions(PyObject *module, PyObject *args);
PyObject *mq_objects_due_ms(PyObject *module, PyObject *args);
PyObject *mq_objects_slot_ms(PyObject *module, PyObject *args);
PyObject *mq_objects_survey(PyObject *module, PyObject *messages);
PyObject *mq_objects_pack(PyObject *module, PyObject *messages);
PyObject *mq_objects_unpack(PyObject *module, PyObject *args);

#endif
