/* group_slots.h: what is committed of a queue, in its slot of a group file. mq/store/shared/group_file.py has
 * the layout.
 *
 * Only the owner of a queue commits, for the turn in which it owns it. A process that was stopped may go on
 * in the middle of a commit after others have taken its queue over. So each word that says what is committed
 * bears the last bits of the turn that it was written for (its epoch), the next owner marks it with its own
 * before it reads it, and a commit is one compare-and-swap: it takes place before that mark, or not at all.
 */
enum {
    MQ_SLOT_COMMITTED = 0, /* words of a slot */
    MQ_SLOT_RESET_TO = 1,
    MQ_SLOT_RESETS = 2,
    MQ_SLOT_APPLIED = 3,
    MQ_SLOT_TURN = 6,
    MQ_SLOT_CHECK = 7,
    MQ_SLOT_OFFSET_BITS = 48 /* then 8 bits of the turn, then 6 of the use of the place */
};

/* What is committed plus one; 0 for nothing. */
int64_t mq_slot_value(const int64_t *slot);
/* Commit an offset, unless a greater one is. 1: one of the two; 0: this is another's turn, or there was
 * another reset. resets below 0: however many there were. */
int mq_slot_commit(int64_t *slot, int64_t turn, int64_t resets, int64_t offset);
/* The same, also downwards. */
int mq_slot_correct(int64_t *slot, int64_t turn, int64_t resets, int64_t offset);
/* Have a reset be what is committed, and what is committed be of this turn. How many resets there were, or
 * -1: this is another's turn. */
int64_t mq_slot_apply(int64_t *slot, int64_t turn);
/* Change a word that still says `was`. Whether it did. */
int mq_word_swap(int64_t *word, int64_t was, int64_t value);
