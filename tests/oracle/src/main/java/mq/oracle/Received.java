package mq.oracle;

import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that came to a client, with the time at which they came. */
final class Received {
    private Received() {
    }

    static void add(List<Map<String, Object>> list, MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("received_ms", System.currentTimeMillis());
        facts.put("topic", message.getTopic());
        facts.put("queue_id", message.getQueueId());
        facts.put("queue_offset", message.getQueueOffset());
        facts.put("log_offset", message.getCommitLogOffset());
        facts.put("msg_id", message.getMsgId());
        facts.put("transaction_id", message.getTransactionId());
        facts.put("prepared_transaction_offset", message.getPreparedTransactionOffset());
        facts.put("sys_flag", message.getSysFlag());
        facts.put("flag", message.getFlag());
        facts.put("born_time_ms", message.getBornTimestamp());
        facts.put("store_time_ms", message.getStoreTimestamp());
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        facts.put("properties", new TreeMap<>(message.getProperties()));
        synchronized (list) {
            list.add(facts);
            list.notifyAll();
        }
    }

    /** All of a list, once it is so many or the time is up. */
    static List<Map<String, Object>> await(List<Map<String, Object>> list, int count, long waitMs)
        throws InterruptedException {
        long end = System.nanoTime() + waitMs * 1_000_000;
        synchronized (list) {
            for (long left = waitMs; list.size() < count && left > 0; left = (end - System.nanoTime()) / 1_000_000) {
                list.wait(left);
            }
            return new ArrayList<>(list);
        }
    }
}
