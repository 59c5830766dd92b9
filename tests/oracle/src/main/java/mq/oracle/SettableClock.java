package mq.oracle;

import org.apache.rocketmq.common.SystemClock;

/** The clock that stamps stored records: the wall clock until it is set, then what it was set to. */
final class SettableClock extends SystemClock {
    private volatile long fixed = -1;

    void set(long timeMs) {
        fixed = timeMs;
    }

    @Override
    public long now() {
        return fixed < 0 ? super.now() : fixed;
    }
}
