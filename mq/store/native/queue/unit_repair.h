/* unit_repair.h: units of a queue that lead to no message of it, made anew from the log.
 *
 * A unit may be damaged while its message is whole: zeroed, noise, of an older copy of the file, or gone with
 * the file. The damaged units around one are found (mq_units_damaged), the log between their sound
 * neighbours is searched without a lock, in steps (mq_units_search), and what was found is written under the
 * append lock, where a unit is damaged still (mq_units_rewrite). Works beside running processes. A process
 * that has a deleted file mapped goes on with that, and reads from it; what it appends there, others find in
 * the log.
 *
 * A unit whose message the log does not have points, with the least size of a record, to where the message
 * should be: so a lost message is told from a damaged unit, and the log is searched once.
 */
enum { MQ_UNITS_SEARCHED_MAX = 1 << 20 /* units on either side of the one that was met */ };

typedef struct {
    int64_t first; /* queue offsets of the damaged units: [first, end) */
    int64_t end;
    int64_t log_begin; /* where in the log their messages can be: [log_begin, log_end) */
    int64_t log_end;
    int64_t hole; /* the first place there at which no record is whole; -1: none so far */
} mq_damaged_units;

typedef struct {
    int64_t log_offset;
    int64_t tags_code;
    int64_t size; /* 0: not found */
} mq_found_unit;

/* 1 and the damaged units around one; 0 if that one leads to its message, or to where it is lost. */
int mq_units_damaged(mq_log *log, int queue, int64_t offset, mq_damaged_units *damaged);
/* Whether a unit leads to its message. */
int mq_unit_is_sound(mq_log *log, int queue, int64_t offset);
/* Search [from, until) of the log; found[i] is the unit of queue offset first + i. Returns where to go on. */
int64_t mq_units_search(mq_log *log, int queue, mq_damaged_units *damaged, int64_t from, int64_t until,
                        mq_found_unit *found);
/* Write what was found; how many units that were. `found` is used up. */
int64_t mq_units_rewrite(mq_log *log, int queue, const mq_damaged_units *damaged, mq_found_unit *found);
