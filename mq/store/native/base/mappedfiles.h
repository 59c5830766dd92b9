/* mappedfiles.h: equal-sized files in one directory as one range of offsets.
 *
 *      offset 0          file_size         2 * file_size
 *      |-- 000…000 ------|-- 000…file_size-|-- …
 *
 * A file is named by the offset of its first byte, 20 digits. Files are mapped when
 * first touched and stay mapped until released; a pin keeps a mapping in place while
 * its bytes are read or written, so that another thread may release what is too old.
 * Unlinking a file never disturbs processes that have it mapped. A file of another length
 * than file_size is refused, so no byte beyond its end is ever touched.
 *
 * Look-ups take no lock: the table of files is replaced as a whole when it grows and
 * the old one kept until the end. Mapping, releasing and growing take a lock that is
 * local to the process.
 */
typedef struct mq_files mq_files;

/* Of the directory's path the last `own_levels` names are the store's own and made when they are missing.
 * What is above them is not: a store that was moved away leaves no second, empty one behind. */
int mq_files_open(const char *directory, int own_levels, int64_t file_size, int writable, mq_files **files);
void mq_files_close(mq_files *files);

/* Make the file that holds `offset`, with its full length and no blocks, and its
 * directory if need be. 0 if made, 1 if it was there. */
int mq_files_create(mq_files *files, int64_t offset);

/* Remove the file that holds `offset`, and unmap it here unless it is pinned; in other processes mappings of
 * it live on. 0 or 1 if there was none. */
int mq_files_remove(mq_files *files, int64_t offset);

/* Reserve blocks for [from, to), which lies in one file; have reserved ones ready for a store through the
 * map; or both. */
int mq_files_reserve(mq_files *files, int64_t from, int64_t to);
int mq_files_touch(mq_files *files, int64_t from, int64_t to);
int mq_files_allocate(mq_files *files, int64_t from, int64_t to);

/* Give the blocks of [from, end of its file) back and make it read as zeros. */
int mq_files_clear(mq_files *files, int64_t from);

/* Write [from, to) to disk: whole pages around it, over as many files as it spans. MQ_UNSYNCED where that
 * failed; MQ_IO where a file cannot even be opened now, for want of a descriptor, say: the next one may
 * try. */
int mq_files_sync(mq_files *files, int64_t from, int64_t to);

/* Unmap files that lie wholly below `offset` and are not pinned. Returns how many. */
int mq_files_release(mq_files *files, int64_t offset);

/* Unmap the one file that holds `offset`, unless it is pinned. */
void mq_files_forget(mq_files *files, int64_t offset);

/* How many files are mapped. */
int mq_files_mapped(mq_files *files);

/* Where the last byte that was written to the file that holds `offset` ends, as an offset of this log. What
 * lies behind is a hole, and reading it may take space that a full disk does not have. Holes before it are
 * zeros that a copy left out (cp --sparse, rsync -S), or what a power cut took. */
int64_t mq_files_data_end(mq_files *files, int64_t offset);

/* Copy `size` bytes at `offset` out of, or into, one file. MQ_MISSING if there is no such file. */
int mq_files_read(mq_files *files, int64_t offset, char *bytes, int64_t size);
int mq_files_write(mq_files *files, int64_t offset, const char *bytes, int64_t size);
