/* Two system calls a queue, and none of its files is opened: a store may have very many. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log/log_internal.h"
#include "queue/queue_files.h"

/* 1 if a queue has a directory, with the files that it needs; 0 if it has none and needs none. */
static int has_files(mq_queue_entry *entry, int directory, int64_t file_size) {
    int64_t min = atomic_load(&entry->min), next = atomic_load(&entry->next);
    if (min < 0 || min > next || next > MQ_OFFSET_MAX) return MQ_CORRUPT;
    if (memchr(entry->topic, 0, entry->topic_size)) return MQ_CORRUPT;
    struct stat status;
    char path[MQ_TOPIC_MAX + 40];
    int size = sprintf(path, "%.*s/%" PRId32, (int)entry->topic_size, entry->topic, entry->queue_id);
    int64_t at = min * MQ_UNIT_SIZE / file_size * file_size;
    if (at >= next * MQ_UNIT_SIZE) return !fstatat(directory, path, &status, 0) && S_ISDIR(status.st_mode);
    for (; at < next * MQ_UNIT_SIZE; at += file_size) {
        sprintf(path + size, "/%020" PRId64, at);
        if (fstatat(directory, path, &status, 0))
            return errno == ENOENT || errno == ENOTDIR ? MQ_MISSING : MQ_IO;
        if (status.st_size != file_size) return MQ_MISSING;
    }
    return 1;
}

int mq_queue_files_count(mq_control *control, int directory, int64_t file_size) {
    int count = 0;
    for (int64_t place = 0; place < mq_control_get(control, MQ_PLACE_COUNT); place++) {
        int number = mq_control_at_place(control, (int)place);
        if (number == MQ_MISSING) continue;
        mq_queue_entry *entry = &control->shared->queues[place];
        /* Another place may have a queue of this name, where one of them is damaged. */
        int found = mq_control_queue(control, entry->topic, (int)entry->topic_size, entry->queue_id, 0);
        if (found != number) return found == MQ_MEMORY ? MQ_MEMORY : MQ_CORRUPT;
        int result = has_files(entry, directory, file_size);
        if (result < 0) return result;
        count += result;
    }
    return count;
}

int64_t mq_queue_directories_count(int directory) {
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *topics = fd < 0 ? NULL : fdopendir(fd);
    if (!topics) {
        if (fd >= 0) close(fd);
        return MQ_IO;
    }
    int64_t count = 0;
    for (struct dirent *topic; count >= 0 && (topic = readdir(topics));) {
        struct stat status;
        if (!strcmp(topic->d_name, ".") || !strcmp(topic->d_name, "..")) continue;
        if (fstatat(directory, topic->d_name, &status, 0)) count = MQ_IO;
        else if (S_ISDIR(status.st_mode))
            count = status.st_nlink < 2 ? MQ_GONE : count + (int64_t)status.st_nlink - 2;
    }
    closedir(topics);
    return count;
}
