/* due_heap.c: a binary heap of the messages that are due soon, the earliest on top. */
#include "log/log_internal.h"
#include "timer/due_heap.h"

#include <stdlib.h>
#include <string.h>

enum { HEAP_MIN = 1024, HEAP_KEPT = 65536, BUCKET_MIN = 64 };

static int is_before(const mq_due *one, const mq_due *other) {
    return one->due_ms != other->due_ms ? one->due_ms < other->due_ms : one->position < other->position;
}

int mq_due_push(mq_due_heap *heap, mq_due item) {
    if (heap->count == heap->room) {
        int64_t room = heap->room ? heap->room * 2 : HEAP_MIN;
        mq_due *items = realloc(heap->items, (size_t)room * sizeof *items);
        if (!items) return MQ_MEMORY;
        heap->items = items;
        heap->room = room;
    }
    int64_t at = heap->count++;
    for (; at > 0 && is_before(&item, &heap->items[(at - 1) / 2]); at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
    return 0;
}

void mq_due_pop(mq_due_heap *heap) {
    mq_due last = heap->items[--heap->count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && is_before(&heap->items[child + 1], &heap->items[child])) child++;
        if (!is_before(&heap->items[child], &last)) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    /* What a crowded slot took is given back. */
    if (heap->count == 0 && heap->room > HEAP_KEPT) mq_due_clear(heap);
}

void mq_due_clear(mq_due_heap *heap) {
    free(heap->items);
    *heap = (mq_due_heap){0};
}

static uint32_t hash_of(uint32_t hash, const char *text, int32_t size) {
    for (int32_t i = 0; i < size; i++) hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash;
}

static int grow(mq_recalls *recalls) {
    int64_t count = recalls->bucket_count ? recalls->bucket_count * 2 : BUCKET_MIN;
    mq_recall **buckets = calloc((size_t)count, sizeof *buckets);
    if (!buckets) return MQ_MEMORY;
    for (int64_t i = 0; i < recalls->bucket_count; i++)
        for (mq_recall *recall = recalls->buckets[i]; recall;) {
            mq_recall *next = recall->next;
            recall->next = buckets[recall->hash % count];
            buckets[recall->hash % count] = recall;
            recall = next;
        }
    free(recalls->buckets);
    recalls->buckets = buckets;
    recalls->bucket_count = count;
    return 0;
}

int mq_recalls_add(mq_recalls *recalls, int64_t time, int64_t position, int matched, const char *key,
                   int32_t size) {
    if (recalls->count >= recalls->bucket_count && grow(recalls)) return MQ_MEMORY;
    mq_recall *recall = malloc(sizeof *recall + (size_t)size);
    if (!recall) return MQ_MEMORY;
    uint32_t hash = hash_of(2166136261u, key, size);
    mq_recall **bucket = &recalls->buckets[hash % recalls->bucket_count];
    *recall = (mq_recall){
        .next = *bucket, .time = time, .position = position, .hash = hash, .size = size, .matched = matched};
    memcpy(recall->key, key, (size_t)size);
    *bucket = recall;
    recalls->count++;
    return 0;
}

mq_recall *mq_recalls_find(mq_recalls *recalls, int64_t time, const char *topic, int32_t topic_size,
                           const char *id, int32_t id_size) {
    if (!recalls->count) return NULL;
    uint32_t hash = hash_of(hash_of(hash_of(2166136261u, topic, topic_size), "+", 1), id, id_size);
    for (mq_recall *recall = recalls->buckets[hash % recalls->bucket_count]; recall; recall = recall->next)
        if (recall->hash == hash && recall->time == time && recall->size == topic_size + 1 + id_size &&
            memcmp(recall->key, topic, (size_t)topic_size) == 0 && recall->key[topic_size] == '+' &&
            memcmp(recall->key + topic_size + 1, id, (size_t)id_size) == 0)
            return recall;
    return NULL;
}

int64_t mq_recalls_leave(mq_recalls *recalls, int64_t time) {
    int64_t alone = 0;
    for (int64_t i = 0; recalls->count && i < recalls->bucket_count; i++)
        for (mq_recall **at = &recalls->buckets[i]; *at;) {
            mq_recall *recall = *at;
            if (recall->time >= time) {
                at = &recall->next;
                continue;
            }
            *at = recall->next;
            alone += !recall->matched;
            recalls->count--;
            free(recall);
        }
    if (!recalls->count) {
        free(recalls->buckets);
        *recalls = (mq_recalls){0};
    }
    return alone;
}
