/* index.h: from a key to where its messages lie, one file of it; RocketMQ's layout.
 *
 *      0        40             40 + 4 * slot_count              + 20 * unit_count
 *      | header | slot 0 … S-1 | unit 0 | unit 1 | … | unit N-1 |
 *                 |                       ^        |
 *                 '-- newest unit --------'  <-----' previous unit of the same slot
 *
 * Integers are big-endian. Unit 0 is never used: number 0 ends a chain. The units
 * 1 … next_unit - 1 are in use; the file is full when next_unit reaches N.
 *
 * One put, its stores in this order; the caller holds the index lock:
 *
 *   1  the unit next_unit in full, with the slot's value as its previous; the
 *      header's end time and end offset (in the first put, its begin too)
 *   2  the slot: from now on the unit is found
 *   3  next_unit and slot_count, which lie side by side, in one store of eight bytes
 *
 * The holder may be killed between any two stores. Before 2 nothing points to the
 * unit: it is written over, and the record is put again, since nobody was told that
 * it is indexed. Between 2 and 3 the put is as good as done: the unit next_unit is
 * whole and its hash says which slot names it, which in any other state of the file
 * no slot does. So every put looks first, and takes step 3 for the dead one. No word
 * of intent is needed, and a unit that a slot once named is never written over.
 *
 * Readers take no lock. They load the slot (acquire) and then next_unit (acquire): the
 * slot was set when next_unit was at least its value, so all that it leads to is whole.
 * A stale slot misses units put meanwhile and nothing else. Numbers must get
 * smaller along a chain, so a chain of damaged bytes ends too; what it leads to are
 * candidates, which the caller verifies in the log (hashes collide anyway).
 *
 * A file has no checksum. It is derived from the log, and after a crash of the
 * machine those that were not wholly on disk are removed and built again.
 *
 * Blocks of header and slots are reserved before the first put, of units in steps
 * before the put that needs them: a full disk is MQ_FULL, and no page is touched
 * that has no block.
 */
enum {
    MQ_INDEX_HEADER_SIZE = 40,
    MQ_INDEX_SLOT_SIZE = 4,
    MQ_INDEX_UNIT_SIZE = 20,

    AT_INDEX_BEGIN_TIME = 0, /* store time of unit 1 */
    AT_INDEX_END_TIME = 8,   /* store time of the newest unit */
    AT_INDEX_BEGIN_LOG_OFFSET = 16,
    AT_INDEX_END_LOG_OFFSET = 24, /* of the newest unit's record */
    AT_INDEX_SLOTS_USED = 32,
    AT_INDEX_NEXT_UNIT = 36, /* read 0, as in a fresh file, as 1 */

    AT_INDEX_UNIT_HASH = 0, /* never negative */
    AT_INDEX_UNIT_LOG_OFFSET = 4,
    AT_INDEX_UNIT_SECONDS = 12, /* store time after the file's begin */
    AT_INDEX_UNIT_PREVIOUS = 16
};

typedef struct mq_index mq_index;

/* What the header says, for callers without the lock. */
typedef struct {
    int64_t begin_time;
    int64_t end_time;
    int64_t begin_log_offset;
    int64_t end_log_offset;
    int32_t slots_used;
    int32_t units; /* in use, 0 … unit_count - 1 */
    int32_t full;
} mq_index_state;

/* Make a file of this size, which must not exist, with blocks for header and slots.
 * MQ_FULL leaves no file behind. */
int mq_index_create(const char *path, int32_t slot_count, int32_t unit_count);

/* Map a file. MQ_MISSING if there is none, MQ_CORRUPT if its length is another. */
int mq_index_open(const char *path, int32_t slot_count, int32_t unit_count, int writable, mq_index **index);
/* Close what mq_index_open gave, if it gave any: what a caller that is interrupted just then can rely on. */
void mq_index_close(mq_index **index);

/* Write what is in memory to disk. */
int mq_index_sync(mq_index *index);

void mq_index_get_state(mq_index *index, mq_index_state *state);

/* Let an unused file begin and end where the one before it ended, as RocketMQ does:
 * its first unit counts its seconds from there. The caller holds the index lock. */
int mq_index_continue(mq_index *index, const mq_index_state *before);

/* The hash that stands for `topic#key` in a unit. */
int32_t mq_index_hash(const char *topic, int64_t topic_size, const char *key, int64_t key_size);

/* Put one key. 1 if put, 0 if the file is full. The caller holds the index lock. */
int mq_index_put(mq_index *index, int32_t hash, int64_t log_offset, int64_t store_time);

/* Put the keys of one record from number *keys_done on: its UNIQ_KEY, then each word of
 * KEYS. 1 if all are put, 0 if the file is full: the caller goes on in the next one with
 * the same *keys_done. A rolled back transaction has no keys. */
int mq_index_put_record(mq_index *index, const uint8_t *bytes, const mq_record *record, int32_t *keys_done);

/* Put the records that begin in [*reached, until) and below the log's end, except those
 * below the file's end offset, which are put already. *reached, the end of the last record
 * put, and *keys_done (0 at first) move along, also when the call fails. 1 if all are put, 0
 * if the file is full: as above. */
int mq_index_build(mq_index *index, mq_log *log, int64_t until, int64_t *reached, int32_t *keys_done);

/* Copy up to `count_max` log offsets of units with this hash, newest first. Times are kept
 * in whole seconds: a unit counts if any millisecond of its second is in [begin_ms, end_ms].
 * A record that was put twice, for a key given twice or after a crash, comes twice. *unit is 0 to
 * start with the newest, and afterwards where to go on; 0 when there are no more. */
int mq_index_find(mq_index *index, int32_t hash, int64_t begin_ms, int64_t end_ms, int32_t *unit,
                  int count_max, int64_t *log_offsets);

/* How many rules the file breaks: chains that leave their slot, do not get smaller or share a
 * unit, units that no chain holds, a header that disagrees. Reads all of it. */
int64_t mq_index_check(mq_index *index);
