/* xxh3.h: XXH3, seed 0, with the results of the package xxhash: what the files of mq's own are checked by.
 *
 * As far as it is needed here, so without its rules for very short input. */

/* Of 17 bytes or more. */
uint64_t mq_xxh3_64(const void *data, int64_t size);

/* Of 4 bytes or more: the 16 bytes of its digest(). */
void mq_xxh3_128(const void *data, int64_t size, uint8_t *digest);
