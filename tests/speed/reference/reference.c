#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "reference.h"

enum { PAGE_SIZE = 4096 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int reference_open(reference_map *map, const char *path, uint64_t size, int touched)
{
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return -errno;
    int failed = posix_fallocate(descriptor, 0, (off_t)size);
    if (failed) {
        close(descriptor);
        return -failed;
    }
    char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) {
        failed = errno;
        close(descriptor);
        return -failed;
    }
    if (touched) {
        /* Without this, read-ahead makes large folios, and a flush of one page costs that of all of them. */
        madvise(base, size, MADV_RANDOM);
        for (uint64_t at = 0; at < size; at += PAGE_SIZE)
            memset(base + at, 1, PAGE_SIZE);
        if (fdatasync(descriptor) < 0) {
            failed = errno;
            munmap(base, size);
            close(descriptor);
            return -failed;
        }
    }
    *map = (reference_map){.base = base, .size = size, .at = 0, .descriptor = descriptor};
    return 0;
}

void reference_close(reference_map *map)
{
    munmap(map->base, map->size);
    close(map->descriptor);
}

void reference_append(reference_map *map, const char *record, uint64_t record_size)
{
    if (map->at + record_size > map->size)
        map->at = 0;
    memcpy(map->base + map->at, record, record_size);
    map->at += record_size;
}

double reference_fill(reference_map *map, const char *record, uint64_t record_size)
{
    double begin = now();
    for (uint64_t at = 0; at + record_size <= map->size; at += record_size)
        memcpy(map->base + at, record, record_size);
    return now() - begin;
}

double reference_copy_out(const reference_map *map, char *into, uint64_t chunk_size)
{
    double begin = now();
    for (uint64_t at = 0; at + chunk_size <= map->size; at += chunk_size) {
        memcpy(into, map->base + at, chunk_size);
        /* What was copied is needed, as far as the compiler knows. */
        __asm__ volatile("" : : "r"(into) : "memory");
    }
    return now() - begin;
}

int reference_sync(reference_map *map, int count, double *seconds)
{
    for (int number = 0; number < count; number++) {
        double begin = now();
        uint64_t at = (uint64_t)number * PAGE_SIZE % map->size;
        memset(map->base + at, number, PAGE_SIZE);
        if (fdatasync(map->descriptor) < 0)
            return -errno;
        seconds[number] = now() - begin;
    }
    return 0;
}
