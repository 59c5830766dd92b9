package mq.oracle;

import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageVersion;

/** What the library says of one stored record, as the members of an answer. */
final class Facts {
    private Facts() {
    }

    /**
     * Decodes the record at the buffer's position. The body is described twice: as stored, and as a consumer gets
     * it (decompressed). The library decodes an empty body, and a record without properties, to null; both are
     * described as empty. The answer is null where the library cannot decode the bytes.
     */
    static Map<String, Object> of(ByteBuffer record) {
        int start = record.position();
        MessageExt stored = MessageDecoder.decode(record, true, false);
        record.position(start);
        MessageExt message = MessageDecoder.decode(record, true, true);
        if (stored == null || message == null) {
            return null;
        }
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("queue_id", message.getQueueId());
        facts.put("queue_offset", message.getQueueOffset());
        facts.put("log_offset", message.getCommitLogOffset());
        facts.put("store_size", message.getStoreSize());
        facts.put("version", record.getInt(start + 4) == MessageVersion.MESSAGE_VERSION_V2.getMagicCode() ? 2 : 1);
        facts.put("flag", message.getFlag());
        facts.put("sys_flag", stored.getSysFlag());
        facts.put("born_time_ms", message.getBornTimestamp());
        facts.put("born_host", Hosts.format(message.getBornHost()));
        facts.put("store_time_ms", message.getStoreTimestamp());
        facts.put("store_host", Hosts.format(message.getStoreHost()));
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        facts.put("body_crc", message.getBodyCRC());
        facts.put("stored_body_size", size(stored.getBody()));
        facts.put("stored_body_sha256", sha256(stored.getBody()));
        facts.put("body_size", size(message.getBody()));
        facts.put("body_sha256", sha256(message.getBody()));
        Map<String, String> properties = message.getProperties();
        facts.put("properties", properties == null ? Map.of() : new TreeMap<>(properties));
        facts.put("offset_msg_id",
            MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        return facts;
    }

    private static int size(byte[] body) {
        return body == null ? 0 : body.length;
    }

    private static String sha256(byte[] body) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            return HexFormat.of().formatHex(digest.digest(body == null ? new byte[0] : body));
        } catch (NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
