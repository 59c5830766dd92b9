/* reference.h: what the machine itself can do, without a queue around it.
 *
 * A map is a file, allocated in full and mapped shared. Touched: its pages were written and flushed, one small
 * page at a time, so that a later store neither faults nor allocates. Fresh: no page of it was ever touched.
 *
 * The text is read by the compiler and by cffi alike.
 */
typedef struct {
    char *base;
    uint64_t size;
    uint64_t at;
    int descriptor;
} reference_map;

/* 0, or -errno. */
int reference_open(reference_map *map, const char *path, uint64_t size, int touched);
void reference_close(reference_map *map);

/* Copy one record to the map, behind the last; begins again at the end of the map. */
void reference_append(reference_map *map, const char *record, uint64_t record_size);

/* Fill the whole map with copies of a record; the seconds it took. */
double reference_fill(reference_map *map, const char *record, uint64_t record_size);

/* Copy the whole map out, chunk by chunk into the same place; the seconds it took. */
double reference_copy_out(const reference_map *map, char *into, uint64_t chunk_size);

/* Store one page and fdatasync, page after page; the seconds of each. 0, or -errno. */
int reference_sync(reference_map *map, int count, double *seconds);
