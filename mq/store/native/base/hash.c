/* hash.c: CRC-32 with carry-less multiplication where the processor has it, and Java's String.hashCode. */
#include <stdint.h>

#include "base/hash.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WITH_CARRYLESS 1
#else
#define WITH_CARRYLESS 0
#endif

/* Polynomials over GF(2) stand bit-reversed here, as zlib has them: the lowest bit of a
 * word is its highest power, so in 32 bits x^0 is 0x80000000 and x^31 is 1. A message is
 * one polynomial too, the lowest bit of its first byte the highest power of all, and its
 * CRC is what is left of it, times x^32, after division by P. */
static const uint32_t POLYNOMIAL = 0xEDB88320u; /* P without its x^32 */
static const uint32_t ONE = 0x80000000u;

/* tables[k][b]: the CRC register after byte b and k zero bytes, from an empty register. */
static uint32_t tables[16][256];

/* powers[k][b]: x^(8 * b * 256^k) mod P. Their products make the operator of any size. */
static uint32_t powers[4][256];

static uint32_t times_x(uint32_t a) { return (a >> 1) ^ (POLYNOMIAL & (0u - (a & 1))); }

static uint32_t load_u32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The register after `size` more bytes. */
static uint32_t register_by_tables(uint32_t state, const uint8_t *bytes, int64_t size) {
    for (; size >= 16; size -= 16, bytes += 16) {
        uint32_t a = load_u32(bytes) ^ state;
        uint32_t b = load_u32(bytes + 4);
        uint32_t c = load_u32(bytes + 8);
        uint32_t d = load_u32(bytes + 12);
        state = tables[15][a & 255] ^ tables[14][a >> 8 & 255] ^ tables[13][a >> 16 & 255] ^
                tables[12][a >> 24] ^ tables[11][b & 255] ^ tables[10][b >> 8 & 255] ^
                tables[9][b >> 16 & 255] ^ tables[8][b >> 24] ^ tables[7][c & 255] ^ tables[6][c >> 8 & 255] ^
                tables[5][c >> 16 & 255] ^ tables[4][c >> 24] ^ tables[3][d & 255] ^ tables[2][d >> 8 & 255] ^
                tables[1][d >> 16 & 255] ^ tables[0][d >> 24];
    }
    if (size >= 8) {
        uint32_t a = load_u32(bytes) ^ state;
        uint32_t b = load_u32(bytes + 4);
        state = tables[7][a & 255] ^ tables[6][a >> 8 & 255] ^ tables[5][a >> 16 & 255] ^ tables[4][a >> 24] ^
                tables[3][b & 255] ^ tables[2][b >> 8 & 255] ^ tables[1][b >> 16 & 255] ^ tables[0][b >> 24];
        size -= 8;
        bytes += 8;
    }
    if (size >= 4) {
        uint32_t a = load_u32(bytes) ^ state;
        state = tables[3][a & 255] ^ tables[2][a >> 8 & 255] ^ tables[1][a >> 16 & 255] ^ tables[0][a >> 24];
        size -= 4;
        bytes += 4;
    }
    for (; size > 0; size--, bytes++) state = (state >> 8) ^ tables[0][(state ^ *bytes) & 255];
    return state;
}

/* a * b mod P, four bits of b at a time. */
static uint32_t product_by_tables(uint32_t a, uint32_t b) {
    uint32_t multiples[16]; /* by the four bits of b, their lowest the highest power */
    multiples[0] = 0;
    multiples[8] = a;
    multiples[4] = times_x(multiples[8]);
    multiples[2] = times_x(multiples[4]);
    multiples[1] = times_x(multiples[2]);
    for (int i = 3; i < 16; i++) multiples[i] = multiples[i & (i - 1)] ^ multiples[i & -i];
    uint32_t product = 0;
    for (int shift = 0; shift < 32; shift += 4) {
        product = times_x(times_x(times_x(times_x(product))));
        product ^= multiples[b >> shift & 15];
    }
    return product;
}

#if WITH_CARRYLESS
/* The carry-less product of two reversed words of 64 bits is their product times x, read as
 * 128 reversed bits: 127 bits result, and the reversal puts the spare one at the highest
 * power. Hence every factor below is one power less than the distance it carries over. */
static int with_carryless;
static int with_wide; /* two products at once, in registers of 256 bits */
static struct {
    /* What carries 128 bits over so many: for their low half, for their high half. */
    uint64_t by_1024[2], by_512[2], by_256[2], by_128[2];
    uint64_t to_96, to_64;      /* 128 bits and the x^32 of every CRC, to 96 and to 64 bits */
    uint64_t quotient, divisor; /* x^64 / P and P, 33 bits each */
} factors;

static uint32_t power_of_x(int exponent) {
    uint32_t power = ONE;
    while (exponent-- > 0) power = times_x(power);
    return power;
}

static void set_factors(void) {
    const struct {
        uint64_t *pair;
        int bits;
    } folds[] = {
        {factors.by_1024, 1024}, {factors.by_512, 512}, {factors.by_256, 256}, {factors.by_128, 128}};
    for (int i = 0; i < 4; i++) {
        /* The low half stands 64 powers above the high one. */
        folds[i].pair[0] = (uint64_t)power_of_x(folds[i].bits + 64 - 1) << 32;
        folds[i].pair[1] = (uint64_t)power_of_x(folds[i].bits - 1) << 32;
    }
    factors.to_96 = (uint64_t)power_of_x(64 + 32 - 1) << 32;
    factors.to_64 = (uint64_t)power_of_x(64 - 1) << 32;
    /* Long division of x^64 by P: a bit of the quotient for each x that overflows. */
    uint32_t rest = POLYNOMIAL; /* x^32 mod P, the highest bit of the quotient taken */
    factors.quotient = 1;
    for (int i = 1; i <= 32; i++) {
        factors.quotient |= (uint64_t)(rest & 1) << i;
        rest = times_x(rest);
    }
    factors.divisor = (uint64_t)POLYNOMIAL << 1 | 1;
}

#define CARRYLESS __attribute__((target("pclmul,sse4.1")))
#define WIDE __attribute__((target("pclmul,sse4.1,avx2,vpclmulqdq")))

CARRYLESS static inline __m128i load(const void *bytes) { return _mm_loadu_si128(bytes); }

/* 64 reversed bits mod P, by Barrett: the quotient's upper half from a product with x^64 / P. */
CARRYLESS static inline uint32_t remainder_of_64(__m128i value) {
    __m128i constants = load(&factors.quotient);
    __m128i low = _mm_set_epi32(0, 0, 0, -1);
    __m128i quotient = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(value, low), constants, 0x00), low);
    __m128i multiple = _mm_clmulepi64_si128(quotient, constants, 0x10);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(value, multiple), 1);
}

/* 128 reversed bits, times x^32, mod P. */
CARRYLESS static inline uint32_t remainder_of_128(__m128i value) {
    __m128i constants = load(&factors.to_96);
    __m128i bits_96 = _mm_xor_si128(_mm_clmulepi64_si128(value, constants, 0x00),
                                    _mm_slli_si128(_mm_srli_si128(value, 8), 4));
    __m128i bits_64 = _mm_xor_si128(_mm_clmulepi64_si128(bits_96, constants, 0x10), bits_96);
    return remainder_of_64(_mm_srli_si128(bits_64, 8));
}

CARRYLESS static inline __m128i fold(__m128i value, __m128i pair) {
    return _mm_xor_si128(_mm_clmulepi64_si128(value, pair, 0x00), _mm_clmulepi64_si128(value, pair, 0x11));
}

/* The register after `size` more bytes, at least 16. `folded` is what stands for the bytes
 * before them, already carried up to here. */
CARRYLESS static inline uint32_t finish(__m128i folded, const uint8_t *bytes, int64_t size) {
    __m128i by_128 = load(factors.by_128);
    for (; size >= 16; size -= 16, bytes += 16) folded = _mm_xor_si128(fold(folded, by_128), load(bytes));
    if (size > 0) {
        /* The last `size` < 16 bytes: push as many out of the register at its front, and
         * fold those over the 16 bytes that then stand at the end. Shuffles by a cursor
         * into this row shift by any number of bytes; an index with bit 7 set gives 0. */
        static const uint8_t shifts[48] = {128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
                                           128, 128, 128, 128, 0,   1,   2,   3,   4,   5,   6,   7,
                                           8,   9,   10,  11,  12,  13,  14,  15,  128, 128, 128, 128,
                                           128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};
        __m128i front = _mm_shuffle_epi8(folded, load(shifts + size));
        __m128i shift = load(shifts + 16 + size);
        __m128i last = load(bytes + size - 16);
        __m128i rest = _mm_blendv_epi8(_mm_shuffle_epi8(folded, shift), last, shift);
        folded = _mm_xor_si128(fold(front, by_128), rest);
    }
    return remainder_of_128(folded);
}

/* The register after `size` more bytes, at least 16. */
CARRYLESS static uint32_t register_by_products(uint32_t state, const uint8_t *bytes, int64_t size) {
    __m128i first = _mm_xor_si128(load(bytes), _mm_cvtsi32_si128((int)state));
    if (size < 64) return finish(first, bytes + 16, size - 16);

    /* Four lanes hide the latency of the products. */
    __m128i a = first, b = load(bytes + 16), c = load(bytes + 32), d = load(bytes + 48);
    __m128i by_512 = load(factors.by_512);
    for (bytes += 64, size -= 64; size >= 64; bytes += 64, size -= 64) {
        a = _mm_xor_si128(fold(a, by_512), load(bytes));
        b = _mm_xor_si128(fold(b, by_512), load(bytes + 16));
        c = _mm_xor_si128(fold(c, by_512), load(bytes + 32));
        d = _mm_xor_si128(fold(d, by_512), load(bytes + 48));
    }
    __m128i by_128 = load(factors.by_128);
    b = _mm_xor_si128(fold(a, by_128), b);
    c = _mm_xor_si128(fold(b, by_128), c);
    d = _mm_xor_si128(fold(c, by_128), d);
    return finish(d, bytes, size);
}

WIDE static inline __m256i load_wide(const uint8_t *bytes) { return _mm256_loadu_si256((const void *)bytes); }

/* `value` carried over, plus what stands there. */
WIDE static inline __m256i fold_wide(__m256i value, __m256i pair, __m256i there) {
    return _mm256_xor_si256(there, _mm256_xor_si256(_mm256_clmulepi64_epi128(value, pair, 0x00),
                                                    _mm256_clmulepi64_epi128(value, pair, 0x11)));
}

/* The register after `size` more bytes, at least 128: as above, with two lanes in each. */
WIDE static uint32_t register_by_wide_products(uint32_t state, const uint8_t *bytes, int64_t size) {
    __m256i a = _mm256_xor_si256(load_wide(bytes), _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    __m256i b = load_wide(bytes + 32), c = load_wide(bytes + 64), d = load_wide(bytes + 96);
    __m256i by_1024 = _mm256_broadcastsi128_si256(load(factors.by_1024));
    for (bytes += 128, size -= 128; size >= 128; bytes += 128, size -= 128) {
        a = fold_wide(a, by_1024, load_wide(bytes));
        b = fold_wide(b, by_1024, load_wide(bytes + 32));
        c = fold_wide(c, by_1024, load_wide(bytes + 64));
        d = fold_wide(d, by_1024, load_wide(bytes + 96));
    }
    __m256i by_256 = _mm256_broadcastsi128_si256(load(factors.by_256));
    d = fold_wide(fold_wide(fold_wide(a, by_256, b), by_256, c), by_256, d);
    for (; size >= 32; bytes += 32, size -= 32) d = fold_wide(d, by_256, load_wide(bytes));
    __m128i first = fold(_mm256_castsi256_si128(d), load(factors.by_128));
    return finish(_mm_xor_si128(first, _mm256_extracti128_si256(d, 1)), bytes, size);
}

CARRYLESS static uint32_t product_by_carryless(uint32_t a, uint32_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);
    return remainder_of_64(_mm_slli_epi64(product, 1)); /* of 63 bits here: see above */
}
#endif

static uint32_t product(uint32_t a, uint32_t b) {
#if WITH_CARRYLESS
    if (with_carryless) return product_by_carryless(a, b);
#endif
    return product_by_tables(a, b);
}

/* Runs when the library is loaded, before any thread can call it. */
__attribute__((constructor)) static void set_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int i = 0; i < 8; i++) state = times_x(state);
        tables[0][byte] = state;
    }
    for (int k = 1; k < 16; k++)
        for (int byte = 0; byte < 256; byte++)
            tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
#if WITH_CARRYLESS
    __builtin_cpu_init();
    with_carryless = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    with_wide = with_carryless && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
    set_factors();
#endif
    uint32_t step = ONE >> 8; /* x^8, then its 256th power, and so on */
    for (int k = 0; k < 4; k++) {
        powers[k][0] = ONE;
        for (int byte = 1; byte < 256; byte++) powers[k][byte] = product(powers[k][byte - 1], step);
        step = product(powers[k][255], step);
    }
}

uint32_t mq_crc32(uint32_t crc, const void *data, int64_t size) {
#if WITH_CARRYLESS
    if (size >= 128 && with_wide) return ~register_by_wide_products(~crc, data, size);
    if (size >= 16 && with_carryless) return ~register_by_products(~crc, data, size);
#endif
    return ~register_by_tables(~crc, data, size);
}

uint32_t mq_crc32_by_tables(uint32_t crc, const void *data, int64_t size) {
    return ~register_by_tables(~crc, data, size);
}

uint32_t mq_crc32_operator(int64_t size) {
    /* P is primitive: x^(2^32 - 1) is 1, so a size needs no more than four bytes. Sizes
     * below 2^16 take one product, and one byte takes none. */
    uint64_t count = (uint64_t)size;
    if (count > UINT32_MAX) count %= UINT32_MAX;
    uint32_t result = powers[0][count & 255];
    for (int k = 1; count >>= 8; k++)
        if (count & 255) result = product(result, powers[k][count & 255]);
    return result;
}

uint32_t mq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t operator_b) {
    return product(crc_a, operator_b) ^ crc_b;
}

/* The code point of the UTF-8 sequence at `bytes`, and its size. Size 1 and U+FFFD if the
 * bytes there are no whole, shortest sequence of a code point that is not a surrogate. */
static uint32_t decode(const uint8_t *bytes, int64_t room, int *size) {
    static const uint32_t code_min[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t lead = bytes[0];
    int count = lead < 0x80 ? 1 : lead < 0xC0 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF8 ? 4 : 0;
    *size = 1;
    if (count == 0 || count > room) return 0xFFFD;
    uint32_t code = count == 1 ? lead : lead & (0x7Fu >> count);
    for (int i = 1; i < count; i++) {
        if ((bytes[i] & 0xC0) != 0x80) return 0xFFFD;
        code = code << 6 | (bytes[i] & 0x3Fu);
    }
    if (code < code_min[count] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return 0xFFFD;
    *size = count;
    return code;
}

int32_t mq_string_hash_from(int32_t hash, const char *text, int64_t size) {
    const uint8_t *bytes = (const uint8_t *)text;
    const uint8_t *end = bytes + size;
    uint32_t h = (uint32_t)hash;
    while (bytes < end) {
        if (end - bytes >= 4 && ((bytes[0] | bytes[1] | bytes[2] | bytes[3]) & 0x80) == 0) {
            /* Four ASCII characters with one product on the path from hash to hash. */
            h = h * (31u * 31 * 31 * 31) + bytes[0] * (31u * 31 * 31) + bytes[1] * (31u * 31) +
                bytes[2] * 31u + bytes[3];
            bytes += 4;
            continue;
        }
        int count;
        uint32_t code = decode(bytes, end - bytes, &count);
        bytes += count;
        if (code >= 0x10000) {
            h = 31u * h + (0xD800 + ((code - 0x10000) >> 10));
            code = 0xDC00 + ((code - 0x10000) & 0x3FF);
        }
        h = 31u * h + code;
    }
    return (int32_t)h;
}

int32_t mq_string_hash(const char *text, int64_t size) { return mq_string_hash_from(0, text, size); }
