/* Transactions: the half message and its end, one call of the data plane each, as often as wanted.
 *
 *   Halves     a store's log and its table of transactions, as long as they may be used; let_go() ends that
 *   preparer   prepare(message, body, sys_flag, unique_id=None) -> SendResult, or None (route is outdated)
 *   ender      end(log_offset, queue_offset, state) -> None
 *
 * As in append_pull.c, what is not the usual case is passed on to a function in Python with the same
 * arguments. Whatever keeps a transaction from being ended here has changed nothing, so that function finds
 * the same.
 */
#include "objects.h"

#include <errno.h>

static mq_known *const known = &mq_objects_known;
static __typeof__(mq_transaction_prepare) *prepare_at;
static __typeof__(mq_transaction_end) *end_at;

typedef struct {
    PyObject_HEAD PyObject *line;
    PyObject *table; /* NULL: not to be used any more */
    mq_transactions *address;
} halves;

/* One queue to send to, for one group; or the group alone, for ends. */
typedef struct {
    PyObject_HEAD PyObject *halves;
    PyObject *queue;
    PyObject *belongs; /* bytes: properties that all half messages here share; or the group */
    PyObject *unusual; /* does the same call, whatever it asks for */
    PyObject *failed;  /* raises what (result, size, errno) stands for */
    PyObject *flushed; /* None, or what waits for the disk and returns the result to hand out */
    PyObject *commit;  /* states */
    PyObject *rollback;
    long long version;
    int number;
} desk;

static PyObject *halves_type;
static PyObject *desk_type;

static void halves_dealloc(PyObject *self) {
    Py_XDECREF(((halves *)self)->line);
    Py_XDECREF(((halves *)self)->table);
    mq_objects_free(self);
}

static int desk_traverse(PyObject *self, visitproc visit, void *arg) {
    desk *of = (desk *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->halves);
    Py_VISIT(of->queue);
    Py_VISIT(of->unusual);
    Py_VISIT(of->failed);
    Py_VISIT(of->flushed);
    Py_VISIT(of->commit);
    Py_VISIT(of->rollback);
    return 0;
}

static int desk_clear(PyObject *self) {
    desk *of = (desk *)self;
    Py_CLEAR(of->halves);
    Py_CLEAR(of->queue);
    Py_CLEAR(of->belongs);
    Py_CLEAR(of->unusual);
    Py_CLEAR(of->failed);
    Py_CLEAR(of->flushed);
    Py_CLEAR(of->commit);
    Py_CLEAR(of->rollback);
    return 0;
}

static void desk_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    desk_clear(self);
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
static int hold(const desk *of, kept *kept) {
    const halves *in = (const halves *)of->halves;
    if (!in || !in->table) return 0;
    kept->log_owner = mq_objects_hold(in->line, &kept->log);
    if (!kept->log_owner) return 0;
    kept->table_owner = mq_objects_shared(in->table);
    kept->table = in->address;
    return 1;
}

static void release(kept *kept) {
    Py_DECREF(kept->log_owner);
    Py_DECREF(kept->table_owner);
}

static PyObject *prepare(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const desk *of = (const desk *)self;
    kept on;
    int32_t flag;
    int32_t sys_flag;
    if ((count != 3 && (count != 4 || args[3] != Py_None)) ||
        (PyObject *)Py_TYPE(args[0]) != known->message || ((mq_sent *)args[0])->plain != Py_True ||
        !PyBytes_CheckExact(args[1]) || !mq_objects_int32(((mq_sent *)args[0])->flag, &flag) ||
        !mq_objects_int32(args[2], &sys_flag) || !hold(of, &on))
        return mq_objects_pass_on(of->unusual, args, count, NULL);
    const mq_sent *message = (const mq_sent *)args[0];
    mq_sent_where *stored = (mq_sent_where *)mq_objects_make(known->send_result);
    if (!stored) {
        release(&on);
        return NULL;
    }
    const char *body = PyBytes_AsString(args[1]);
    int64_t body_size = PyBytes_Size(args[1]);
    const char *properties = PyBytes_AsString(message->encoded);
    int64_t properties_size = PyBytes_Size(message->encoded);
    const char *belongs = PyBytes_AsString(of->belongs);
    int64_t belongs_size = PyBytes_Size(of->belongs);
    int result;
    int error;
    Py_BEGIN_ALLOW_THREADS;
    result = prepare_at(on.table, on.log, of->number, of->version, flag, sys_flag, body, body_size,
                        properties, properties_size, belongs, belongs_size, NULL, &stored->receipt);
    error = errno;
    Py_END_ALLOW_THREADS;
    release(&on);
    if (result) {
        Py_DECREF(stored);
        if (result == MQ_GONE || result == MQ_STALE) Py_RETURN_NONE;
        return PyObject_CallFunction(of->failed, "iLi", result, (long long)body_size, error);
    }
    stored->status = mq_objects_shared(known->send_ok);
    stored->queue = mq_objects_shared(of->queue);
    stored->ids = PyObject_GetAttrString((PyObject *)stored, "_ids");
    if (!stored->ids) {
        Py_DECREF(stored);
        return NULL;
    }
    stored->transaction_id = mq_objects_shared(stored->ids);
    if (of->flushed == Py_None) return (PyObject *)stored;
    PyObject *flushed = PyObject_CallFunctionObjArgs(of->flushed, (PyObject *)stored, NULL);
    Py_DECREF(stored);
    return flushed;
}

static PyObject *end(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    const desk *of = (const desk *)self;
    kept on;
    int64_t log_offset;
    int64_t queue_offset;
    if (count != 3 || (args[2] != of->commit && args[2] != of->rollback) || !of->commit ||
        !mq_objects_int64(args[0], &log_offset) || !mq_objects_int64(args[1], &queue_offset) ||
        !hold(of, &on))
        return mq_objects_pass_on(of->unusual, args, count, NULL);
    const char *group = PyBytes_AsString(of->belongs);
    int64_t group_size = PyBytes_Size(of->belongs);
    int32_t state = args[2] == of->commit ? 8 : 12;
    mq_ended ended;
    int result;
    Py_BEGIN_ALLOW_THREADS;
    result = end_at(on.table, on.log, group, group_size, log_offset, queue_offset, state, 0, &ended);
    Py_END_ALLOW_THREADS;
    release(&on);
    if (result == MQ_END_DONE || result == MQ_END_BEFORE) Py_RETURN_NONE;
    return mq_objects_pass_on(of->unusual, args, count, NULL);
}

static PyMethodDef prepare_method = {"prepare", (PyCFunction)(void (*)(void))prepare, METH_FASTCALL,
                                     "prepare(message, body, sys_flag, unique_id=None, /)\n--\n\nStore a "
                                     "half message for this queue: see Transactions.preparer."};
static PyMethodDef end_method = {
    "end", (PyCFunction)(void (*)(void))end, METH_FASTCALL,
    "end(log_offset, queue_offset, state, from_check=False, /)\n--\n\nEnd a transaction of this group: see "
    "Transactions.ender."};

static PyObject *halves_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *line, *table;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OOK:Halves", &line, &table, &address)) return NULL;
    if (!mq_objects_is_line(line)) {
        PyErr_SetString(PyExc_TypeError, "a Line has the log");
        return NULL;
    }
    PyObject *self = PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    ((halves *)self)->line = mq_objects_shared(line);
    ((halves *)self)->table = mq_objects_shared(table);
    ((halves *)self)->address = (mq_transactions *)(uintptr_t)address;
    return self;
}

static PyObject *halves_let_go(PyObject *self, PyObject *unused) {
    Py_CLEAR(((halves *)self)->table);
    Py_RETURN_NONE;
}

static PyObject *bound(PyMethodDef *method, desk *made) {
    PyObject *function = PyCFunction_New(method, (PyObject *)made);
    Py_DECREF(made);
    return function;
}

static PyObject *halves_preparer(PyObject *self, PyObject *args) {
    PyObject *queue, *belongs, *usual, *failed, *flushed;
    int number;
    long long version;
    if (!PyArg_ParseTuple(args, "OiLSOOO:preparer", &queue, &number, &version, &belongs, &usual, &failed,
                          &flushed))
        return NULL;
    desk *made = (desk *)mq_objects_make(desk_type);
    if (!made) return NULL;
    made->halves = mq_objects_shared(self);
    made->queue = mq_objects_shared(queue);
    made->number = number;
    made->version = version;
    made->belongs = mq_objects_shared(belongs);
    made->unusual = mq_objects_shared(usual);
    made->failed = mq_objects_shared(failed);
    made->flushed = mq_objects_shared(flushed);
    return bound(&prepare_method, made);
}

static PyObject *halves_ender(PyObject *self, PyObject *args) {
    PyObject *group, *usual, *commit, *rollback;
    if (!PyArg_ParseTuple(args, "SOOO:ender", &group, &usual, &commit, &rollback)) return NULL;
    desk *made = (desk *)mq_objects_make(desk_type);
    if (!made) return NULL;
    made->halves = mq_objects_shared(self);
    made->belongs = mq_objects_shared(group);
    made->unusual = mq_objects_shared(usual);
    made->commit = mq_objects_shared(commit);
    made->rollback = mq_objects_shared(rollback);
    return bound(&end_method, made);
}

static PyMethodDef halves_methods[] = {
    {"let_go", halves_let_go, METH_NOARGS, "Use the table no more."},
    {"preparer", halves_preparer, METH_VARARGS,
     "preparer(queue, number, version, belongs, unusual, failed, flushed)"},
    {"ender", halves_ender, METH_VARARGS, "ender(group, unusual, commit, rollback)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot halves_slots[] = {
    {Py_tp_new, halves_new},
    {Py_tp_dealloc, halves_dealloc},
    {Py_tp_methods, halves_methods},
    {0, NULL},
};
static PyType_Spec halves_spec = {"mq.fastpath.Halves", sizeof(halves), 0, Py_TPFLAGS_DEFAULT, halves_slots};
static PyType_Slot desk_slots[] = {
    {Py_tp_dealloc, desk_dealloc},
    {Py_tp_traverse, desk_traverse},
    {Py_tp_clear, desk_clear},
    {0, NULL},
};
static PyType_Spec desk_spec = {"mq.fastpath.Desk", sizeof(desk), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                desk_slots};

PyObject *mq_objects_bind_transactions(PyObject *module, PyObject *args) {
    unsigned long long prepare_address, end_address;
    if (!PyArg_ParseTuple(args, "KK:bind_transactions", &prepare_address, &end_address)) return NULL;
    prepare_at = (__typeof__(mq_transaction_prepare) *)(uintptr_t)prepare_address;
    end_at = (__typeof__(mq_transaction_end) *)(uintptr_t)end_address;
    Py_RETURN_NONE;
}

int mq_objects_add_transactions(PyObject *module) {
    halves_type = PyType_FromModuleAndSpec(module, &halves_spec, NULL);
    desk_type = PyType_FromModuleAndSpec(module, &desk_spec, NULL);
    return halves_type && desk_type ? PyModule_AddType(module, (PyTypeObject *)halves_type) : -1;
}
