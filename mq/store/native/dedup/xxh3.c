/* xxh3.c: XXH3 by its specification, in plain C. Names are those of the specification where it has some. */
#include <stdint.h>

#include "dedup/xxh3.h"

#include <string.h>

enum {
    SECRET_SIZE = 192,
    SECRET_SIZE_MIN = 136,
    STRIPE_SIZE = 64,
    STRIPES_OF_BLOCK = (SECRET_SIZE - STRIPE_SIZE) / 8,
    LANES = 8,
    SHORT_MAX = 128,
    MIDDLE_MAX = 240
};

static const uint64_t P32_1 = 0x9E3779B1, P32_2 = 0x85EBCA77, P32_3 = 0xC2B2AE3D;
static const uint64_t P64_1 = 0x9E3779B185EBCA87, P64_2 = 0xC2B2AE3D27D4EB4F, P64_3 = 0x165667B19E3779F9,
                      P64_4 = 0x85EBCA77C2B2AE63, P64_5 = 0x27D4EB2F165667C5;
static const uint64_t MX1 = 0x165667919E3779F9, MX2 = 0x9FB21C651E98DF25;

static const uint8_t secret[SECRET_SIZE] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
    uint64_t low, high;
} wide;

/* The specification's order of bytes is that of the machines that log_internal.h allows. */
static uint64_t read64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

static uint32_t read32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static wide product(uint64_t a, uint64_t b) {
    unsigned __int128 both = (unsigned __int128)a * b;
    return (wide){(uint64_t)both, (uint64_t)(both >> 64)};
}

static uint64_t fold(uint64_t a, uint64_t b) {
    wide both = product(a, b);
    return both.low ^ both.high;
}

static uint64_t avalanche(uint64_t hash) {
    hash ^= hash >> 37;
    hash *= MX1;
    return hash ^ hash >> 32;
}

static uint64_t mix16(const uint8_t *at, const uint8_t *key) {
    return fold(read64(at) ^ read64(key), read64(at + 8) ^ read64(key + 8));
}

static wide mix32(wide to, const uint8_t *first, const uint8_t *second, const uint8_t *key) {
    to.low += mix16(first, key);
    to.low ^= read64(second) + read64(second + 8);
    to.high += mix16(second, key + 16);
    to.high ^= read64(first) + read64(first + 8);
    return to;
}

/* Over 240 bytes: eight lanes, a stripe of 64 bytes at a time, stirred after each block of stripes. */

static void add_stripe(uint64_t *lanes, const uint8_t *at, const uint8_t *key) {
    for (int i = 0; i < LANES; i++) {
        uint64_t value = read64(at + 8 * i);
        uint64_t keyed = value ^ read64(key + 8 * i);
        lanes[i ^ 1] += value;
        lanes[i] += (keyed & UINT32_MAX) * (keyed >> 32);
    }
}

static void stir(uint64_t *lanes) {
    for (int i = 0; i < LANES; i++) {
        lanes[i] ^= lanes[i] >> 47;
        lanes[i] ^= read64(secret + SECRET_SIZE - STRIPE_SIZE + 8 * i);
        lanes[i] *= P32_1;
    }
}

static void add_all(uint64_t *lanes, const uint8_t *at, int64_t size) {
    const uint64_t begin[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    memcpy(lanes, begin, sizeof begin);
    int64_t count = (size - 1) / STRIPE_SIZE;
    for (int64_t i = 0; i < count; i++) {
        add_stripe(lanes, at + i * STRIPE_SIZE, secret + i % STRIPES_OF_BLOCK * 8);
        if (i % STRIPES_OF_BLOCK == STRIPES_OF_BLOCK - 1) stir(lanes);
    }
    add_stripe(lanes, at + size - STRIPE_SIZE, secret + SECRET_SIZE - STRIPE_SIZE - 7);
}

static uint64_t merge(const uint64_t *lanes, const uint8_t *key, uint64_t begin) {
    for (int i = 0; i < LANES; i += 2)
        begin += fold(lanes[i] ^ read64(key + 8 * i), lanes[i + 1] ^ read64(key + 8 * i + 8));
    return avalanche(begin);
}

uint64_t mq_xxh3_64(const void *data, int64_t size) {
    const uint8_t *at = data;
    uint64_t hash = (uint64_t)size * P64_1;
    if (size > MIDDLE_MAX) {
        uint64_t lanes[LANES];
        add_all(lanes, at, size);
        return merge(lanes, secret + 11, hash);
    }
    if (size <= SHORT_MAX) {
        for (int64_t i = (size - 1) / 32; i >= 0; i--)
            hash +=
                mix16(at + 16 * i, secret + 32 * i) + mix16(at + size - 16 * (i + 1), secret + 32 * i + 16);
        return avalanche(hash);
    }
    for (int i = 0; i < 8; i++) hash += mix16(at + 16 * i, secret + 16 * i);
    hash = avalanche(hash);
    for (int64_t i = 8; i < size / 16; i++) hash += mix16(at + 16 * i, secret + 16 * (i - 8) + 3);
    return avalanche(hash + mix16(at + size - 16, secret + SECRET_SIZE_MIN - 17));
}

static wide of_4_to_8(const uint8_t *at, int64_t size) {
    uint64_t value = read32(at) + ((uint64_t)read32(at + size - 4) << 32);
    wide hash = product(value ^ read64(secret + 16) ^ read64(secret + 24), P64_1 + ((uint64_t)size << 2));
    hash.high += hash.low << 1;
    hash.low ^= hash.high >> 3;
    hash.low ^= hash.low >> 35;
    hash.low *= MX2;
    hash.low ^= hash.low >> 28;
    hash.high = avalanche(hash.high);
    return hash;
}

static wide of_9_to_16(const uint8_t *at, int64_t size) {
    uint64_t low_flip = read64(secret + 32) ^ read64(secret + 40);
    uint64_t high_flip = read64(secret + 48) ^ read64(secret + 56);
    uint64_t last = read64(at + size - 8);
    wide mixed = product(read64(at) ^ last ^ low_flip, P64_1);
    mixed.low += (uint64_t)(size - 1) << 54;
    last ^= high_flip;
    mixed.high += last + (last & UINT32_MAX) * (P32_2 - 1);
    mixed.low ^= __builtin_bswap64(mixed.high);
    wide hash = product(mixed.low, P64_2);
    hash.high += mixed.high * P64_2;
    return (wide){avalanche(hash.low), avalanche(hash.high)};
}

static wide finish(wide mixed, int64_t size) {
    uint64_t high = mixed.low * P64_1 + mixed.high * P64_4 + (uint64_t)size * P64_2;
    return (wide){avalanche(mixed.low + mixed.high), 0 - avalanche(high)};
}

static wide of_17_to_240(const uint8_t *at, int64_t size) {
    wide mixed = {(uint64_t)size * P64_1, 0};
    if (size <= SHORT_MAX) {
        for (int64_t i = (size - 1) / 32; i >= 0; i--)
            mixed = mix32(mixed, at + 16 * i, at + size - 16 * (i + 1), secret + 32 * i);
        return finish(mixed, size);
    }
    for (int i = 0; i < 4; i++) mixed = mix32(mixed, at + 32 * i, at + 32 * i + 16, secret + 32 * i);
    mixed = (wide){avalanche(mixed.low), avalanche(mixed.high)};
    for (int64_t i = 4; i < size / 32; i++)
        mixed = mix32(mixed, at + 32 * i, at + 32 * i + 16, secret + 3 + 32 * (i - 4));
    /* The last 32 bytes, their halves in the other order. */
    mixed = mix32(mixed, at + size - 16, at + size - 32, secret + SECRET_SIZE_MIN - 17 - 16);
    return finish(mixed, size);
}

static wide of_more(const uint8_t *at, int64_t size) {
    uint64_t lanes[LANES];
    add_all(lanes, at, size);
    return (wide){merge(lanes, secret + 11, (uint64_t)size * P64_1),
                  merge(lanes, secret + SECRET_SIZE - STRIPE_SIZE - 11, ~((uint64_t)size * P64_2))};
}

void mq_xxh3_128(const void *data, int64_t size, uint8_t *digest) {
    wide hash = size > MIDDLE_MAX ? of_more(data, size)
                : size > 16       ? of_17_to_240(data, size)
                : size > 8        ? of_9_to_16(data, size)
                                  : of_4_to_8(data, size);
    uint64_t words[] = {__builtin_bswap64(hash.high), __builtin_bswap64(hash.low)};
    memcpy(digest, words, sizeof words);
}
