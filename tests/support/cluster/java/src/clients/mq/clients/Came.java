package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that came to a client, with the time at which they came. */
final class Came {
    private final List<MessageExt> messages = new ArrayList<>();
    private final List<Long> times = new ArrayList<>();

    synchronized void add(MessageExt message) {
        times.add(System.currentTimeMillis());
        messages.add(message);
        notifyAll();
    }

    /** All from number {@code from} on, once there are {@code count} of them or the time is up. */
    synchronized List<Map<String, Object>> await(JSONObject request) throws InterruptedException {
        int from = request.getIntValue("from");
        int count = from + request.getIntValue("count");
        long end = System.nanoTime() + request.getLongValue("wait_ms") * 1_000_000;
        while (messages.size() < count) {
            long leftMs = (end - System.nanoTime()) / 1_000_000;
            if (leftMs <= 0) {
                break;
            }
            wait(leftMs);
        }
        List<Map<String, Object>> answer = new ArrayList<>();
        for (int number = from; number < messages.size(); number++) {
            answer.add(facts(messages.get(number), times.get(number)));
        }
        return answer;
    }

    static Map<String, Object> facts(MessageExt message, long timeMs) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("received_ms", timeMs);
        facts.put("topic", message.getTopic());
        facts.put("broker", message.getBrokerName());
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
        facts.put("store_host", message.getStoreHost().toString());
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        facts.put("properties", new TreeMap<>(message.getProperties()));
        return facts;
    }
}
