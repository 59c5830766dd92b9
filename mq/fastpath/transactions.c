/* Transactions: the half message and its end, one call of the data plane each, as often as wanted.
 *
 *   HalfMessages  a store's log and its table of transactions, as long as they may be used, until detach()
 *   preparer      prepare(message, body, sys_flag, unique_id=None) -> SendResult, or None (route is outdated)
 *                 behind it store(message, body, sys_flag, unique_id) -> the same, or an int: MQ_REFUSED_…
 *   ender         end(log_offset, queue_offset, state) -> None
 *
 * As in append_pull.c, prepare() passes on a message that is delayed or has a dedup key to a function in
 * Python, behind store(). Whatever keeps a transaction from being ended here has changed nothing, so the
 * function that end() passes it on to finds the same.
 */
#include "objects.h"

#include <errno.h>

static mq_known *const known = &mq_objects_known;
static __typeof__(mq_transaction_prepare) *prepare_at;
static __typeof__(mq_transaction_end) *end_at;

typedef struct {
    PyObject_HEAD PyObject *log_handle;
    PyObject *table; /* NULL: not to be used any more */
    mq_transactions *address;
} half_messages;

/* One queue to send to, for one group; or the group alone, for ends. */
typedef struct {
    PyObject_HEAD PyObject *half_messages;
    PyObject *queue;
    PyObject *target;    /* bytes: properties that all half messages here share; or the group */
    PyObject *slow_path; /* does the same call, whatever it asks for */
    PyObject *failed;    /* raises what (result, size, errno) stands for */
    PyObject *flushed;   /* None, or what waits for the disk and returns the result to hand out */
    PyObject *commit;    /* states */
    PyObject *rollback;
    long long version;
    int number;
} binding;

static PyObject *half_messages_type;
static PyObject *binding_type;

static void half_messages_dealloc(PyObject *self) {
    Py_XDECREF(((half_messages *)self)->log_handle);
    Py_XDECREF(((half_messages *)self)->table);
    mq_objects_free(self);
}

static int binding_traverse(PyObject *self, visitproc visit, void *arg) {
    binding *of = (binding *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->half_messages);
    Py_VISIT(of->queue);
    Py_VISIT(of->slow_path);
    Py_VISIT(of->failed);
    Py_VISIT(of->flushed);
    Py_VISIT(of->commit);
    Py_VISIT(of->rollback);
    return 0;
}

static int binding_clear(PyObject *self) {
    binding *of = (binding *)self;
    Py_CLEAR(of->half_messages);
    Py_CLEAR(of->queue);
    Py_CLEAR(of->target);
    Py_CLEAR(of->slow_path);
    Py_CLEAR(of->failed);
    Py_CLEAR(of->flushed);
    Py_CLEAR(of->commit);
    Py_CLEAR(of->rollback);
    return 0;
}

static void binding_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    binding_clear(self);
    mq_objects_free(self);
}

/* What one call uses, kept alive for it. */
typedef struct {
    PyObject *log_owner;
    PyObject *table_owner;
    mq_log *log;
    mq_transactions *table;
} kept;

/* 0: they are let go of. */
static int hold(const binding *of, kept *kept) {
    const half_messages *in = (const half_messages *)of->half_messages;
    if (!in || !in->table) return 0;
    kept->log_owner = mq_objects_hold(in->log_handle, &kept->log);
    if (!kept->log_owner) return 0;
    kept->table_owner = mq_objects_shared(in->table);
    kept->table = in->address;
    return 1;
}

static void release(kept *kept) {
    Py_DECREF(kept->log_owner);
    Py_DECREF(kept->table_owner);
}

/* NULL without an error: `refusal` says why. */
static PyObject *store_half(const binding *of, const mq_sent *message, PyObject *body, PyObject *sys_flag,
                            const char *unique_id, int *refusal) {
    kept on;
    int32_t flag;
    int32_t flags;
    if (!mq_objects_take_int32(message->flag, "flag", &flag) ||
        !mq_objects_take_int32(sys_flag, "sys_flag", &flags))
        return NULL;
    if (!hold(of, &on)) {
        *refusal = MQ_REFUSED_CLOSED;
        return NULL;
    }
    mq_sent_where *stored = (mq_sent_where *)mq_objects_make(known->send_result);
    if (!stored) {
        release(&on);
        return NULL;
    }
    const char *bytes = PyBytes_AsString(body);
    int64_t size = PyBytes_Size(body);
    const char *properties = PyBytes_AsString(message->encoded);
    int64_t properties_size = PyBytes_Size(message->encoded);
    const char *target = PyBytes_AsString(of->target);
    int64_t target_size = PyBytes_Size(of->target);
    int result;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    result = prepare_at(on.table, on.log, of->number, of->version, flag, flags, bytes, size, properties,
                        properties_size, target, target_size, unique_id, &stored->receipt);
    error = errno;
    Py_END_ALLOW_THREADS;
    release(&on);
    if (result) {
        Py_DECREF(stored);
        if (result == MQ_GONE || result == MQ_STALE) Py_RETURN_NONE;
        return PyObject_CallFunction(of->failed, "iLi", result, (long long)size, error);
    }
    stored->status = mq_objects_shared(known->send_ok);
    stored->queue = mq_objects_shared(of->queue);
    stored->ids = PyObject_GetAttrString((PyObject *)stored, "_ids");
    if (!stored->ids) {
        Py_DECREF(stored);
        return NULL;
    }
    stored->transaction_id = mq_objects_shared(stored->ids);
    if (of->flushed == Py_None || message->hurried) return (PyObject *)stored;
    PyObject *flushed = PyObject_CallFunctionObjArgs(of->flushed, (PyObject *)stored, NULL);
    Py_DECREF(stored);
    return flushed;
}

static PyObject *store(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    int refusal = 0;
    if (count != 4 || !mq_objects_is_sent(args[0]) || !PyBytes_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "store() takes a Message, bytes, flags and an id");
        return NULL;
    }
    const char *unique_id = args[3] == Py_None ? NULL : PyUnicode_AsUTF8AndSize(args[3], NULL);
    if (!unique_id && args[3] != Py_None) return NULL;
    PyObject *result =
        store_half((const binding *)self, (const mq_sent *)args[0], args[1], args[2], unique_id, &refusal);
    return refusal ? PyLong_FromLong(refusal) : result;
}

static PyMethodDef store_method = {"store", (PyCFunction)(void (*)(void))store, METH_FASTCALL,
                                   "store(message, body, sys_flag, unique_id, /)\n--\n\nStore a half "
                                   "message for this queue, whatever it asks for."};

static PyObject *prepare(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const binding *of = (const binding *)self;
    int refusal = 0;
    if ((count == 3 || (count == 4 && args[3] == Py_None)) && mq_objects_is_sent(args[0]) &&
        !((const mq_sent *)args[0])->keyed && !((const mq_sent *)args[0])->later && PyBytes_Check(args[1])) {
        PyObject *result = store_half(of, (const mq_sent *)args[0], args[1], args[2], NULL, &refusal);
        if (!refusal) return result;
    }
    return mq_objects_pass_on_behind(of->slow_path, PyCFunction_New(&store_method, self), args, count);
}

static PyObject *end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const binding *of = (const binding *)self;
    kept on;
    int64_t log_offset;
    int64_t queue_offset;
    if (count != 3 || (args[2] != of->commit && args[2] != of->rollback) || !of->commit ||
        !mq_objects_int64(args[0], &log_offset) || !mq_objects_int64(args[1], &queue_offset) ||
        !hold(of, &on))
        return mq_objects_pass_on(of->slow_path, args, count, NULL);
    const char *group = PyBytes_AsString(of->target);
    int64_t group_size = PyBytes_Size(of->target);
    int32_t state = args[2] == of->commit ? 8 : 12;
    mq_ended ended;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = end_at(on.table, on.log, group, group_size, log_offset, queue_offset, state, 0, &ended);
    Py_END_ALLOW_THREADS;
    release(&on);
    if (result == MQ_END_DONE || result == MQ_END_BEFORE) Py_RETURN_NONE;
    return mq_objects_pass_on(of->slow_path, args, count, NULL);
}

static PyMethodDef prepare_method = {"prepare", (PyCFunction)(void (*)(void))prepare, METH_FASTCALL,
                                     "prepare(message, body, sys_flag, unique_id=None, /)\n--\n\nStore a "
                                     "half message for this queue: see Transactions.preparer."};
static PyMethodDef end_method = {
    "end", (PyCFunction)(void (*)(void))end, METH_FASTCALL,
    "end(log_offset, queue_offset, state, from_check=False, /)\n--\n\nEnd a transaction of this group: see "
    "Transactions.ender."};

static PyObject *half_messages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *log_handle, *table;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OOK:HalfMessages", &log_handle, &table, &address)) return NULL;
    if (!mq_objects_is_log_handle(log_handle)) {
        PyErr_SetString(PyExc_TypeError, "a LogHandle has the log");
        return NULL;
    }
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    ((half_messages *)self)->log_handle = mq_objects_shared(log_handle);
    ((half_messages *)self)->table = mq_objects_shared(table);
    ((half_messages *)self)->address = (mq_transactions *)(uintptr_t)address;
    return self;
}

static PyObject *half_messages_detach(PyObject *self, PyObject *unused) {
    Py_CLEAR(((half_messages *)self)->table);
    Py_RETURN_NONE;
}

static PyObject *bound(PyMethodDef *method, binding *made) {
    PyObject *function = PyCFunction_New(method, (PyObject *)made);
    Py_DECREF(made);
    return function;
}

static PyObject *half_messages_preparer(PyObject *self, PyObject *args) {
    PyObject *queue, *target, *slow_path, *failed, *flushed;
    int number;
    long long version;
    if (!PyArg_ParseTuple(args, "OiLSOOO:preparer", &queue, &number, &version, &target, &slow_path, &failed,
                          &flushed))
        return NULL;
    binding *made = (binding *)mq_objects_make(binding_type);
    if (!made) return NULL;
    made->half_messages = mq_objects_shared(self);
    made->queue = mq_objects_shared(queue);
    made->number = number;
    made->version = version;
    made->target = mq_objects_shared(target);
    made->slow_path = mq_objects_shared(slow_path);
    made->failed = mq_objects_shared(failed);
    made->flushed = mq_objects_shared(flushed);
    return bound(&prepare_method, made);
}

static PyObject *half_messages_ender(PyObject *self, PyObject *args) {
    PyObject *group, *slow_path, *commit, *rollback;
    if (!PyArg_ParseTuple(args, "SOOO:ender", &group, &slow_path, &commit, &rollback)) return NULL;
    binding *made = (binding *)mq_objects_make(binding_type);
    if (!made) return NULL;
    made->half_messages = mq_objects_shared(self);
    made->target = mq_objects_shared(group);
    made->slow_path = mq_objects_shared(slow_path);
    made->commit = mq_objects_shared(commit);
    made->rollback = mq_objects_shared(rollback);
    return bound(&end_method, made);
}

static PyMethodDef half_messages_methods[] = {
    {"detach", half_messages_detach, METH_NOARGS, "Use the table no more."},
    {"preparer", half_messages_preparer, METH_VARARGS,
     "preparer(queue, number, version, target, slow_path, failed, flushed)"},
    {"ender", half_messages_ender, METH_VARARGS, "ender(group, slow_path, commit, rollback)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot half_messages_slots[] = {
    {Py_tp_new, half_messages_new},
    {Py_tp_dealloc, half_messages_dealloc},
    {Py_tp_methods, half_messages_methods},
    {0, NULL},
};
static PyType_Spec half_messages_spec = {"mq.fastpath.HalfMessages", sizeof(half_messages), 0,
                                         Py_TPFLAGS_DEFAULT, half_messages_slots};
static PyType_Slot binding_slots[] = {
    {Py_tp_dealloc, binding_dealloc},
    {Py_tp_traverse, binding_traverse},
    {Py_tp_clear, binding_clear},
    {0, NULL},
};
static PyType_Spec binding_spec = {
    "mq.fastpath.TransactionBinding", sizeof(binding), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, binding_slots};

PyObject *mq_objects_bind_transactions(PyObject *module, PyObject *args) {
    unsigned long long prepare_address, end_address;
    if (!PyArg_ParseTuple(args, "KK:bind_transactions", &prepare_address, &end_address)) return NULL;
    prepare_at = (__typeof__(mq_transaction_prepare) *)(uintptr_t)prepare_address;
    end_at = (__typeof__(mq_transaction_end) *)(uintptr_t)end_address;
    Py_RETURN_NONE;
}

int mq_objects_add_transactions(PyObject *module) {
    half_messages_type = PyType_FromModuleAndSpec(module, &half_messages_spec, NULL);
    binding_type = PyType_FromModuleAndSpec(module, &binding_spec, NULL);
    return half_messages_type && binding_type ? PyModule_AddType(module, (PyTypeObject *)half_messages_type)
                                              : -1;
}
