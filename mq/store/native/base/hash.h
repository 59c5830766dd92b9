/* hash.h: the two hashes that RocketMQ's format is built on.
 *
 *   CRC-32    zlib's polynomial; of bodies and of whole records
 *   strings   Java's String.hashCode: tags codes and index keys
 */

/* CRC-32 as zlib's crc32(): start with 0, go on with the last result. Carry-less
 * multiplication where the CPU has it, slicing tables otherwise. */
uint32_t mq_crc32(uint32_t crc, const void *data, int64_t size);

/* As above, by tables alone: what mq_crc32 uses without the instruction. */
uint32_t mq_crc32_by_tables(uint32_t crc, const void *data, int64_t size);

/* The operator that carries a CRC over `size` more bytes, for mq_crc32_join.
 * A handful of carry-less products: cheap enough to be made once a message. */
uint32_t mq_crc32_operator(int64_t size);

/* CRC of A followed by B, from the CRCs of both and the operator of B's size. */
uint32_t mq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t operator_b);

/* Java's String.hashCode of UTF-8 text, over UTF-16 code units. Malformed UTF-8
 * hashes as U+FFFD for each bad byte; nothing outside the text is read. */
int32_t mq_string_hash(const char *text, int64_t size);

/* The same, going on from the hash of what came before (31 * h + unit). */
int32_t mq_string_hash_from(int32_t hash, const char *text, int64_t size);
