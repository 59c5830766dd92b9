/* cursor.h: a look at one file after the other, each pinned while the reads stay inside. For C alone. */
#ifndef MQ_WINDOW_H
#define MQ_WINDOW_H

#include "base/mapping.h"

typedef struct {
    struct mq_files *files;
    mq_mapping *pin; /* NULL: nothing is pinned */
    const uint8_t *bytes;
    int64_t start;
    int64_t end;
} mq_cursor;

/* The bytes at `offset`, and how many follow in that file, until the next look: 0, or as mq_files_pin. */
static inline int mq_cursor_look(mq_cursor *cursor, int64_t offset, const uint8_t **bytes, int64_t *room) {
    if (!cursor->pin || offset < cursor->start || offset >= cursor->end) {
        if (cursor->pin) mq_files_unpin(cursor->pin);
        cursor->pin = NULL;
        uint8_t *address;
        int64_t left;
        int result = mq_files_pin(cursor->files, offset, &address, &left, &cursor->pin);
        if (result) {
            cursor->pin = NULL;
            return result;
        }
        cursor->bytes = address;
        cursor->start = offset;
        cursor->end = offset + left;
    }
    *bytes = cursor->bytes + (offset - cursor->start);
    *room = cursor->end - offset;
    return 0;
}

static inline void mq_cursor_leave(mq_cursor *cursor) {
    if (cursor->pin) mq_files_unpin(cursor->pin);
    cursor->pin = NULL;
}

#endif
