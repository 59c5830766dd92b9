package mq.oracle;

import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

/**
 * Opens a store as a broker does and tells everything that can be found in it.
 *
 * <p>Config: {@code sizes}, the file sizes; {@code close}, whether to shut down cleanly afterwards.
 *
 * <p>Answers, each with a member {@code kind}:
 * <ul>
 * <li>{@code store}: whether it loaded, where the log begins and ends;
 * <li>{@code queue}: one for each queue, with its first and next offset;
 * <li>{@code message}: one for each queue offset, as a pull finds it, with the unit of the queue;
 * <li>{@code missing}: a queue offset where a pull finds nothing, with the reason;
 * <li>{@code unqueued}: a record of the log that has no place in a queue (prepared and rolled back);
 * <li>{@code damaged}: where the log goes on but not with a record;
 * <li>{@code key}: the records found for one key or unique id of any message;
 * <li>{@code id}: the record found for one offset id.
 * </ul>
 */
final class Reader {
    private static final int BLANK_MAGIC = 0xCBD43194;

    private final Store store;
    private final JSONObject config;
    private final Lines lines;
    private final Map<String, TreeSet<String>> keysByTopic = new TreeMap<>();
    private final List<String> offsetIds = new ArrayList<>();

    Reader(Path directory, JSONObject config, Lines lines) throws IOException {
        this.store = new Store(directory, config.getJSONObject("sizes"));
        this.config = config;
        this.lines = lines;
    }

    void run() throws Exception {
        boolean loaded = store.open();
        line("store", "loaded", loaded, "min_log_offset", store.getMinPhyOffset(),
            "max_log_offset", store.getMaxPhyOffset());
        if (!loaded) {
            return;
        }
        store.waitForDispatch();
        readQueues();
        readUnqueued();
        lookUpKeys();
        lookUpIds();
        if (config.getBooleanValue("close")) {
            store.shutdown();
        }
    }

    private void readQueues() {
        for (var topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (var queue : new TreeMap<>(topic.getValue()).entrySet()) {
                readQueue(topic.getKey(), queue.getKey(), queue.getValue());
            }
        }
    }

    private void readQueue(String topic, int queueId, ConsumeQueueInterface queue) {
        long minOffset = queue.getMinOffsetInQueue();
        long maxOffset = queue.getMaxOffsetInQueue();
        line("queue", "topic", topic, "queue_id", queueId, "min_offset", minOffset, "max_offset", maxOffset);
        for (long offset = minOffset; offset < maxOffset; offset++) {
            GetMessageResult result = store.getMessage("oracle", topic, queueId, offset, 1, null);
            try {
                boolean found = result.getStatus() == GetMessageStatus.FOUND;
                Map<String, Object> facts = found ? Facts.of(result.getMessageBufferList().get(0)) : null;
                if (facts == null) {
                    line("missing", "topic", topic, "queue_id", queueId, "queue_offset", offset,
                        "reason", found ? "NOT_A_RECORD" : result.getStatus().name());
                    continue;
                }
                CqUnit unit = queue.get(offset);
                facts.put("unit_log_offset", unit.getPos());
                facts.put("unit_size", unit.getSize());
                facts.put("tags_code", unit.getTagsCode());
                ConsumeQueueExt.CqExtUnit extension = unit.getCqExtUnit();
                if (extension != null) {
                    byte[] bits = extension.getFilterBitMap();
                    facts.put("extension_tags_code", extension.getTagsCode());
                    facts.put("extension_time_ms", extension.getMsgStoreTime());
                    facts.put("extension_bits", bits == null ? "" : HexFormat.of().formatHex(bits));
                }
                remember(facts);
                print("message", facts);
            } finally {
                result.release();
            }
        }
    }

    private void readUnqueued() {
        int fileSize = store.getMessageStoreConfig().getMappedFileSizeCommitLog();
        long end = store.getMaxPhyOffset();
        // A log without files begins at -1.
        for (long offset = Math.max(store.getMinPhyOffset(), 0); offset < end; ) {
            SelectMappedBufferResult record = store.getCommitLogData(offset);
            try {
                ByteBuffer buffer = record.getByteBuffer();
                if (buffer.getInt(buffer.position() + 4) == BLANK_MAGIC) {
                    offset += fileSize - offset % fileSize;
                    continue;
                }
                int size = buffer.getInt(buffer.position());
                if (size <= 0) {
                    line("damaged", "log_offset", offset);
                    return;
                }
                offset += size;
                int type = buffer.getInt(buffer.position() + MessageDecoder.SYSFLAG_POSITION) & 0xC;
                if (type == 0x4 || type == 0xC) {
                    Map<String, Object> facts = Facts.of(buffer);
                    remember(facts);
                    print("unqueued", facts);
                }
            } finally {
                record.release();
            }
        }
    }

    private void remember(Map<String, Object> facts) {
        @SuppressWarnings("unchecked")
        Map<String, String> properties = (Map<String, String>) facts.get("properties");
        TreeSet<String> keys = keysByTopic.computeIfAbsent((String) facts.get("topic"), topic -> new TreeSet<>());
        String uniqueId = properties.get(MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX);
        if (uniqueId != null) {
            keys.add(uniqueId);
        }
        for (String key : properties.getOrDefault(MessageConst.PROPERTY_KEYS, "").split(" ")) {
            if (!key.isEmpty()) {
                keys.add(key);
            }
        }
        offsetIds.add((String) facts.get("offset_msg_id"));
    }

    private void lookUpKeys() {
        keysByTopic.forEach((topic, keys) -> {
            for (String key : keys) {
                QueryMessageResult result = store.queryMessage(topic, key, Store.QUERY_COUNT_MAX, 0, Long.MAX_VALUE);
                try {
                    List<Long> logOffsets = new ArrayList<>();
                    for (ByteBuffer buffer : result.getMessageBufferList()) {
                        // The index may lead to bytes that are no record: nothing is found there.
                        if (buffer.remaining() > MessageDecoder.SYSFLAG_POSITION) {
                            logOffsets.add(buffer.getLong(buffer.position() + MessageDecoder.PHY_POS_POSITION));
                        }
                    }
                    line("key", "topic", topic, "key", key, "log_offsets", logOffsets);
                } finally {
                    result.release();
                }
            }
        });
    }

    private void lookUpIds() throws UnknownHostException {
        for (String id : offsetIds) {
            MessageExt message = store.lookMessageByOffset(MessageDecoder.decodeMessageId(id).getOffset());
            line("id", "offset_msg_id", id, "log_offset", message == null ? null : message.getCommitLogOffset());
        }
    }

    private void print(String kind, Map<String, Object> facts) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(facts);
        lines.print(line);
    }

    private void line(String kind, Object... members) {
        Map<String, Object> facts = new LinkedHashMap<>();
        for (int number = 0; number < members.length; number += 2) {
            facts.put((String) members[number], members[number + 1]);
        }
        print(kind, facts);
    }
}
