/* error.h: the negative results of every function here, one table for C and Python.
 *
 * Written out, never reused. mq/store/native/__init__.py maps each to its exception;
 * errno of the failed system call stays readable by the caller (cffi keeps it).
 */
enum {
    MQ_FULL = -1,       /* no space left on the device: nothing was written */
    MQ_CORRUPT = -2,    /* bytes on disk contradict their layout */
    MQ_IO = -3,         /* a system call failed: see errno */
    MQ_POISONED = -4,   /* an earlier flush failed: nothing is accepted any more */
    MQ_TOO_LARGE = -5,  /* a record that no file of this log can hold */
    MQ_BUSY = -6,       /* a lock was not to be had in time */
    MQ_GONE = -7,       /* below what is kept, or above what is there */
    MQ_TABLE_FULL = -8, /* no more queues fit into the control file */
    MQ_MEMORY = -9,     /* malloc failed */
    MQ_INVALID = -10,   /* arguments or input bytes that contradict their layout */
    MQ_MISSING = -11,   /* a file that must exist does not */
    MQ_ROOM = -12,      /* the caller's buffer is too small: the result says what it takes */
    MQ_READ_ONLY = -13, /* opened for reading */
    MQ_CLOSED = -14,    /* this process is closing the store */
    MQ_STALE = -15,     /* a topic changed since the caller looked up where to append */
    MQ_UNSYNCED = -16,  /* a sync failed, and the kernel forgets what it failed to write: see errno */
    MQ_REENTERED = -17, /* this thread holds the lock already: a signal handler interrupted it there */
    MQ_DEPOSED = -18,   /* the duties are another process's by now: nothing was written */
    MQ_FOLLOWS = -19    /* the log is a copy of a master's, which alone appends to it */
};
