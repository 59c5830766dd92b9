/* Methods that the main thread hands over before an interrupt can come.
 *
 *   HandedOver(function)   a method: another thread calls function(*args, **kwargs)
 *   bind_hand_over(begin, wait, main_thread)   how that is done: see mq/uninterrupted.py
 *
 * Python looks for signals where a function of Python begins. So a signal handler may end a close() before
 * its first instruction, and what it was to close stays open. This method is in C: no instruction of Python
 * runs before the other thread is started. That one calls begin(entry, function, args, kwargs, seconds,
 * waiter), and the main thread calls wait(...) with the same arguments, which returns what the function
 * returns. `entry` is a dict that both share. An interrupt ends the wait alone.
 *
 * Any other thread, in which no signal handler runs, calls the function itself; the main thread too, where no
 * thread can be started. */
#include "objects.h"

typedef struct {
    PyObject_HEAD PyObject *function;
} handed_over;

static PyObject *begin_in_thread;
static PyObject *wait_for_it;
static PyObject *start_new_thread;
static PyObject *time_left_of;
static unsigned long main_thread;

static PyObject *handed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function;
    if (!PyArg_ParseTuple(args, "O:HandedOver", &function)) return NULL;
    handed_over *made = (handed_over *)mq_objects_make((PyObject *)type);
    if (made) made->function = mq_objects_shared(function);
    return (PyObject *)made;
}

static void handed_dealloc(PyObject *self) {
    Py_CLEAR(((handed_over *)self)->function);
    mq_objects_free(self);
}

/* 1: this is the main thread, and others can run; 0: not so; -1 with an error. */
static int must_hand_over(void) {
    if (!begin_in_thread || PyThread_get_thread_ident() != main_thread) return 0;
    PyObject *is_finalizing = PySys_GetObject("is_finalizing"); /* borrowed; NULL at the very end */
    PyObject *answer = is_finalizing ? PyObject_CallObject(is_finalizing, NULL) : NULL;
    if (!answer) return is_finalizing ? -1 : 0;
    int is_running = answer == Py_False;
    Py_DECREF(answer);
    return is_running;
}

static PyObject *handed_call(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *function = ((handed_over *)self)->function;
    int must = must_hand_over();
    if (must < 0) return NULL;
    if (!must) return PyObject_Call(function, args, kwargs);
    PyObject *seconds = PyObject_CallObject(time_left_of, NULL);
    PyObject *waiter = seconds ? mq_objects_held_here() : NULL;
    PyObject *all = waiter ? Py_BuildValue("{}") : NULL;
    if (all) all = Py_BuildValue("(NOOOOO)", all, function, args, kwargs ? kwargs : Py_None, seconds, waiter);
    Py_XDECREF(waiter);
    Py_XDECREF(seconds);
    if (!all) return NULL;
    PyObject *started = PyObject_CallFunctionObjArgs(start_new_thread, begin_in_thread, all, NULL);
    PyObject *result = NULL;
    if (started) {
        Py_DECREF(started);
        result = PyObject_CallObject(wait_for_it, all);
    } else if (PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* There can be no more threads. */
        PyErr_Clear();
        result = PyObject_Call(function, args, kwargs);
    }
    Py_DECREF(all);
    return result;
}

static PyObject *handed_get(PyObject *self, PyObject *instance, PyObject *type) {
    if (!instance || instance == Py_None) return mq_objects_shared(self);
    PyObject *types = PyImport_ImportModule("types");
    PyObject *method = types ? PyObject_CallMethod(types, "MethodType", "OO", self, instance) : NULL;
    Py_XDECREF(types);
    return method;
}

static PyObject *handed_attribute(PyObject *self, void *name) {
    return PyObject_GetAttrString(((handed_over *)self)->function, (const char *)name);
}

static PyObject *bind_hand_over(PyObject *module, PyObject *args) {
    PyObject *begin, *wait;
    unsigned long thread;
    if (!PyArg_ParseTuple(args, "OOk:bind_hand_over", &begin, &wait, &thread)) return NULL;
    if (!start_new_thread) {
        PyObject *threads = PyImport_ImportModule("_thread");
        start_new_thread = threads ? PyObject_GetAttrString(threads, "start_new_thread") : NULL;
        Py_XDECREF(threads);
        time_left_of = start_new_thread ? PyObject_GetAttrString(module, "time_left") : NULL;
        if (!time_left_of) return NULL;
    }
    Py_XDECREF(begin_in_thread);
    Py_XDECREF(wait_for_it);
    begin_in_thread = mq_objects_shared(begin);
    wait_for_it = mq_objects_shared(wait);
    main_thread = thread;
    Py_RETURN_NONE;
}

static PyGetSetDef handed_attributes[] = {
    {"__doc__", handed_attribute, NULL, NULL, "__doc__"},
    {"__name__", handed_attribute, NULL, NULL, "__name__"},
    {"__qualname__", handed_attribute, NULL, NULL, "__qualname__"},
    {"__module__", handed_attribute, NULL, NULL, "__module__"},
    {"__annotations__", handed_attribute, NULL, NULL, "__annotations__"},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef handed_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(handed_over, function), READONLY, "The function."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot handed_slots[] = {
    {Py_tp_new, handed_new},
    {Py_tp_dealloc, handed_dealloc},
    {Py_tp_call, handed_call},
    {Py_tp_descr_get, handed_get},
    {Py_tp_getset, handed_attributes},
    {Py_tp_members, handed_members},
    {0, NULL},
};
static PyType_Spec handed_spec = {"mq.fastpath.HandedOver", sizeof(handed_over), 0, Py_TPFLAGS_DEFAULT,
                                  handed_slots};
static PyMethodDef functions[] = {
    {"bind_hand_over", bind_hand_over, METH_VARARGS, "bind_hand_over(begin, wait, main_thread)"},
    {NULL, NULL, 0, NULL},
};

int mq_objects_add_hand_over(PyObject *module) {
    if (mq_objects_add_type(module, &handed_spec)) return -1;
    return PyModule_AddFunctions(module, functions);
}
