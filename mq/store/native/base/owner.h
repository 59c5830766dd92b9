/* owner.h: files and directories of the store are made here, and belong to the owner of the store.
 *
 * What a root process makes takes the owner and the group of the directory it is made in: the application,
 * which has no right to root's files, goes on. What was there before keeps its owner. */

/* As open() with O_CREAT, O_CLOEXEC and O_NOFOLLOW added to the flags. */
int mq_create_file(const char *path, int flags);
/* As mkdir(). */
int mq_create_directory(const char *path);
