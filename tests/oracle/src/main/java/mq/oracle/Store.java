package mq.oracle;

import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.SystemClock;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** RocketMQ's store as a broker runs it, of given file sizes, with a clock that can be set, without network. */
final class Store extends DefaultMessageStore {
    /** A look-up by key returns at most this many messages. */
    static final int QUERY_COUNT_MAX = 1024;

    private final SettableClock clock = new SettableClock();

    Store(Path directory, JSONObject sizes) throws IOException {
        this(config(directory, sizes), new BrokerConfig());
    }

    private Store(MessageStoreConfig config, BrokerConfig broker) throws IOException {
        super(config, new BrokerStatsManager(broker), (topic, queueId, offset, tags, time, filter, properties) -> { },
            broker, new ConcurrentHashMap<>());
        if (config.isEnableConsumeQueueExt()) {
            getDispatcherList().addFirst(Store::addBits);
        }
    }

    /** Stands for a broker's filters: a message says itself, in hexadecimal digits, which bits it has. */
    private static void addBits(DispatchRequest request) {
        String bits = request.getPropertiesMap() == null ? null : request.getPropertiesMap().get("BITS");
        if (bits != null) {
            request.setBitMap(HexFormat.of().parseHex(bits));
        }
    }

    private static MessageStoreConfig config(Path directory, JSONObject sizes) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(sizes.getIntValue("commitlog_file_size"));
        config.setMappedFileSizeConsumeQueue(sizes.getIntValue("queue_file_units") * ConsumeQueue.CQ_STORE_UNIT_SIZE);
        config.setMaxHashSlotNum(sizes.getIntValue("index_slot_count"));
        config.setMaxIndexNum(sizes.getIntValue("index_unit_count"));
        config.setEnabledAppendPropCRC(sizes.getBooleanValue("property_crc"));
        config.setForceVerifyPropCRC(sizes.getBooleanValue("property_crc"));
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setMaxMsgsNumBatch(QUERY_COUNT_MAX);
        config.setTimerWheelEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        int extensionFileSize = sizes.getIntValue("consume_queue_ext_file_size");
        config.setEnableConsumeQueueExt(extensionFileSize > 0);
        if (extensionFileSize > 0) {
            config.setMappedFileSizeConsumeQueueExt(extensionFileSize);
        }
        return config;
    }

    @Override
    public SystemClock getSystemClock() {
        // The constructor of the library may ask before the field of this class is set.
        return clock == null ? new SystemClock() : clock;
    }

    /** Loads and recovers; starts only if that succeeded. */
    boolean open() throws Exception {
        if (!load()) {
            return false;
        }
        start();
        return true;
    }

    void setClock(long timeMs) {
        clock.set(timeMs);
    }

    /** Returns when every record of the log is in its queue and in the index. */
    void waitForDispatch() throws InterruptedException {
        while (dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** Forces everything to disk and notes it in the checkpoint, as the flushing threads do over time. */
    void flushAll() throws InterruptedException {
        while (flush() < getMaxPhyOffset()) {
            // One call flushes no further than the end of a segment.
        }
        getStoreCheckpoint().setPhysicMsgTimestamp(getCommitLog().getMappedFileQueue().getStoreTimestamp());
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().equals("FlushIndexFileThread")) {
                thread.join();
            }
        }
        getStoreCheckpoint().flush();
    }

    /** Deletes all commit log segments but the last, and what then points nowhere, as retention does. */
    void deleteOldSegments() {
        getCommitLog().deleteExpiredFile(0, 0, 0, true, Integer.MAX_VALUE);
        long minLogOffset = getCommitLog().getMinOffset();
        getConsumeQueueTable().values().forEach(queues -> queues.values()
            .forEach(queue -> getQueueStore().deleteExpiredFile(queue, minLogOffset)));
        indexService.deleteExpiredFile(minLogOffset);
    }
}
