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
} mq_window;

/* The bytes at `offset`, and how many follow in that file, until the next look: 0, or as mq_files_pin. */
static inline int mq_window_look(mq_window *window, int64_t offset, const uint8_t **bytes, int64_t *room) {
    if (!window->pin || offset < window->start || offset >= window->end) {
        if (window->pin) mq_files_unpin(window->pin);
        window->pin = NULL;
        uint8_t *address;
        int64_t left;
        int result = mq_files_pin(window->files, offset, &address, &left, &window->pin);
        if (result) {
            window->pin = NULL;
            return result;
        }
        window->bytes = address;
        window->start = offset;
        window->end = offset + left;
    }
    *bytes = window->bytes + (offset - window->start);
    *room = window->end - offset;
    return 0;
}

static inline void mq_window_leave(mq_window *window) {
    if (window->pin) mq_files_unpin(window->pin);
    window->pin = NULL;
}

#endif
