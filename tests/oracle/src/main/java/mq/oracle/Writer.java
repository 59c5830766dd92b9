package mq.oracle;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Opens or creates a store and does what the spec lists, in order.
 *
 * <p>Spec: {@code sizes}, the file sizes; {@code steps}, a list of objects whose member {@code do} is one of
 * <ul>
 * <li>{@code put}: one message, its body in Base64, its properties as the text to be stored;
 * <li>{@code batch}: the messages of {@code messages} as one client batch, with topic, queue and hosts of the step;
 * <li>{@code flush}: everything to disk, checkpoint included;
 * <li>{@code delete_old_segments}: all commit log segments but the last, with what points into them;
 * </ul>
 * {@code end}: {@code close} for a clean shutdown, {@code kill} to halt at once.
 *
 * <p>Answers with one line for each stored record.
 */
final class Writer {
    private final Store store;
    private final JSONObject spec;
    private final Lines lines;

    Writer(Path directory, JSONObject spec, Lines lines) throws IOException {
        this.store = new Store(directory, spec.getJSONObject("sizes"));
        this.spec = spec;
        this.lines = lines;
    }

    void run() throws Exception {
        if (!store.open()) {
            throw new IllegalStateException("the store refuses to load");
        }
        JSONArray steps = spec.getJSONArray("steps");
        for (int number = 0; number < steps.size(); number++) {
            JSONObject step = steps.getJSONObject(number);
            switch (step.getString("do")) {
                case "put" -> put(step);
                case "batch" -> batch(step);
                case "flush" -> {
                    store.waitForDispatch();
                    store.flushAll();
                }
                case "delete_old_segments" -> {
                    store.waitForDispatch();
                    store.deleteOldSegments();
                }
                default -> throw new IllegalArgumentException("unknown step: " + step);
            }
        }
        store.waitForDispatch();
        switch (spec.getString("end")) {
            case "close" -> store.shutdown();
            case "kill" -> { }
            default -> throw new IllegalArgumentException("unknown end: " + spec.getString("end"));
        }
    }

    private void put(JSONObject step) throws IOException {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, step);
        int sysFlag = step.getIntValue("sys_flag");
        byte[] body = body(step);
        String compression = step.getString("compression");
        if (compression != null) {
            CompressionType type = CompressionType.of(compression);
            body = CompressorFactory.getCompressor(type).compress(body, 5);
            // The flag of zlib may be left out: clients older than the choice of a compressor wrote none.
            int typeFlag = step.getBooleanValue("old_compression_flag") ? 0 : type.getCompressionFlag();
            sysFlag |= MessageSysFlag.COMPRESSED_FLAG | typeFlag;
        }
        message.setBody(body);
        message.setFlag(step.getIntValue("flag"));
        message.setSysFlag(sysFlag);
        message.setReconsumeTimes(step.getIntValue("reconsume_times"));
        message.setPreparedTransactionOffset(step.getLongValue("prepared_transaction_offset"));
        message.setPropertiesString(step.getString("properties"));
        MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(message.getPropertiesString()));
        report(store.putMessage(message));
    }

    private void batch(JSONObject step) throws UnknownHostException {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, step);
        batch.setSysFlag(step.getIntValue("sys_flag"));
        ByteArrayOutputStream members = new ByteArrayOutputStream();
        JSONArray messages = step.getJSONArray("messages");
        for (int number = 0; number < messages.size(); number++) {
            members.writeBytes(member(messages.getJSONObject(number)));
        }
        batch.setBody(members.toByteArray());
        report(store.putMessages(batch));
    }

    /** One message of a batch, as a client lays it out; the library's own encoder would reorder the properties. */
    private static byte[] member(JSONObject message) {
        byte[] body = body(message);
        byte[] properties = message.getString("properties").getBytes(StandardCharsets.UTF_8);
        int size = 5 * Integer.BYTES + body.length + Short.BYTES + properties.length;
        return ByteBuffer.allocate(size)
            .putInt(size)
            .putInt(0)
            .putInt(0)
            .putInt(message.getIntValue("flag"))
            .putInt(body.length)
            .put(body)
            .putShort((short) properties.length)
            .put(properties)
            .array();
    }

    private void fill(MessageExtBrokerInner message, JSONObject step) {
        if (step.containsKey("store_time_ms")) {
            store.setClock(step.getLongValue("store_time_ms"));
        }
        message.setTopic(step.getString("topic"));
        message.setQueueId(step.getIntValue("queue_id"));
        message.setBornTimestamp(step.getLongValue("born_time_ms"));
        message.setBornHost(Hosts.parse(step.getString("born_host")));
        message.setStoreHost(Hosts.parse(step.getString("store_host")));
    }

    private static byte[] body(JSONObject message) {
        return Base64.getDecoder().decode(message.getString("body"));
    }

    private void report(PutMessageResult result) throws UnknownHostException {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("the store refuses a message: " + result);
        }
        for (String id : result.getAppendMessageResult().getMsgId().split(",")) {
            SelectMappedBufferResult record =
                store.selectOneMessageByOffset(MessageDecoder.decodeMessageId(id).getOffset());
            try {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("kind", "stored");
                line.putAll(Facts.of(record.getByteBuffer()));
                lines.print(line);
            } finally {
                record.release();
            }
        }
    }
}
