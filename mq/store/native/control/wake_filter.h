/* wake_filter.h: which messages may concern a sleeper that selects by properties.
 *
 * A test says of the properties of a message that no consumer that gave it wants the message, or that one
 * may. It is kept in the control file, where each sender finds it; as a number there it never changes, for as
 * long as the file is used.
 *
 *     node = kind (1 byte), size (2 bytes, big-endian, of the whole node), and behind them
 *         MQ_TEST_MAY      nothing             always
 *         MQ_TEST_NEVER    nothing
 *         MQ_TEST_ALL      nodes               all of them
 *         MQ_TEST_ANY      nodes               one of them
 *         MQ_TEST_THERE    name                the property is there, and not empty
 *         MQ_TEST_TEXT     name, text          it is this text
 *         MQ_TEST_NUMBER   name, order, value  compares so with the value (a BE double); or it is not a plain
 *                                              decimal number of at most 15 digits
 *
 * with a name as its size (1 byte) and its bytes. A node that makes no sense counts as MQ_TEST_MAY. */
enum {
    MQ_TESTS_MAX = 32, /* of one control file; a later one is woken by every message */
    MQ_TEST_SIZE_MAX = 508,
    MQ_TEST_DEPTH_MAX = 40,

    MQ_TEST_MAY = 1,
    MQ_TEST_NEVER = 2,
    MQ_TEST_ALL = 3,
    MQ_TEST_ANY = 4,
    MQ_TEST_THERE = 5,
    MQ_TEST_TEXT = 6,
    MQ_TEST_NUMBER = 7,

    MQ_ORDER_LESS = 1, /* bits of an order: the property may be less than the value, equal to it, greater */
    MQ_ORDER_EQUAL = 2,
    MQ_ORDER_GREATER = 4
};

/* The number of a test, for mq_wait; it is added if need be. MQ_TABLE_FULL if there is no room for it,
 * MQ_INVALID for one that is too long, MQ_READ_ONLY. Takes the append lock to add. */
int mq_wake_test(mq_log *log, const uint8_t *test, int32_t size);

/* Whether a message with this property string may be selected by the condition of the test. */
int mq_test_holds(const uint8_t *test, int32_t size, const uint8_t *properties, int32_t properties_size);
