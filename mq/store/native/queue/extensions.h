/* extensions.h: what a queue unit has no room for, in a file beside the queue (see
 * mq/store/queue/extensions.py).
 *
 * The tags code of a unit is then the address of its extension. An extension is written before its unit, and
 * the queue's `ext_end` moves past it before the unit is published; a unit that points to anything else has
 * an extension that is unknown, and its message may be wanted by anybody.
 */
enum {
    MQ_EXT_FILE_SIZE_USUAL = 50331648, /* RocketMQ's */
    MQ_EXT_SIZE_MIN = 20,              /* without a bitmap */
    MQ_EXT_SIZE_MAX = 32767,
    MQ_EXT_LAST_SIZE = 4 /* so many bytes of a file stay behind its last extension */
};

/* Whether appends through this handle write extensions. */
void mq_log_extend(mq_log *log, int extend);

/* The extension at an address: 0; MQ_INVALID for a tags code that is none, MQ_GONE if there is no extension.
 * Up to `room` bytes of its bitmap are copied; *bitmap_size is how many there are. */
int mq_queue_extension(mq_log *log, int queue, int64_t tags_code, int64_t *real_tags_code,
                       int64_t *store_time, char *bitmap, int32_t room, int32_t *bitmap_size);

/* For recovery, with nobody else attached and the queue's units loaded: find the end of what they point to,
 * zero what is allocated behind, and return it. `files_end` is where the last file ends; extensions go on
 * there if none of the newest units has one. */
int64_t mq_extensions_load(mq_log *log, int queue, int64_t files_end);
/* Remove the file that holds `offset`, which is not below the end. */
int mq_extensions_remove(mq_log *log, int queue, int64_t offset);
/* Where the first extension lies that a unit of the queue points to; the end if none of the first ones does.
 * Files wholly below are of no use any more. */
int64_t mq_extensions_begin(mq_log *log, int queue);
