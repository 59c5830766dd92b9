/* disk_full.h: where a full disk is noticed. For C alone; include base/error.h before it. */
#ifndef MQ_DISK_FULL_H
#define MQ_DISK_FULL_H

#include <errno.h>

/* What a system call that writes, allocates or makes a file failed with: MQ_FULL where the disk, the user's
 * quota or the limit on the size of a file leaves no room, MQ_IO for the rest. errno stays. */
static inline int mq_disk_error(void) {
    return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? MQ_FULL : MQ_IO;
}

#endif
