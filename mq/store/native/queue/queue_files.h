/* queue_files.h: one look at the files of all queues, before a control file is believed (see
 * mq/store/recovery/plausibility.py). `directory` is an open one, with a directory for each topic, in which
 * each queue has one. */

/* How many queues of the table have a directory, if all files are there that they need, each of file_size
 * bytes. Otherwise MQ_MISSING; MQ_CORRUPT if the table contradicts itself; MQ_IO. */
int mq_queue_files_count(mq_control *control, int directory, int64_t file_size);

/* How many directories there are in those of `directory`, by their link counts: 2, and one for each that is
 * in it. MQ_GONE where that cannot be so: some file systems have 1 for all. */
int64_t mq_queue_directories_count(int directory);
