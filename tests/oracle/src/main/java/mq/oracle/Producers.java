package mq.oracle;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** RocketMQ's own producers: one for plain messages, and one for transactions of each group. */
final class Producers {
    /** A machine that stands still for some seconds shall not fail a send, nor have the client send it once more. */
    static final int PATIENCE_MS = 60_000;

    private final Map<String, Transactional> transactional = new HashMap<>();
    private DefaultMQProducer plain;

    Map<String, Object> send(JSONObject request) throws Exception {
        Message message = message(request);
        Integer queueId = request.getInteger("queue_id");
        if (queueId == null) {
            return facts(plain().send(message));
        }
        return facts(plain().send(message, new MessageQueue(message.getTopic(), Cluster.BROKER_NAME, queueId)));
    }

    String recall(String topic, String handle) throws Exception {
        return plain().recallMessage(topic, handle);
    }

    /** Sends a half message; member {@code state} is what the local transaction answers. */
    Map<String, Object> transact(JSONObject request) throws Exception {
        Transactional of = of(request.getString("group"), request.getString("topic"));
        LocalTransactionState state = LocalTransactionState.valueOf(request.getString("state"));
        return facts(of.producer.sendMessageInTransaction(message(request), state));
    }

    /**
     * Starts a group's producer, which from now on answers by the bodies given, each once, and UNKNOW for others: where
     * a round of checks comes before the op record of an answer, the broker asks again, and would commit twice.
     */
    Object beAsked(String group, String topic, JSONObject answers) throws MQClientException {
        Transactional of = of(group, topic);
        answers.forEach((body, state) -> of.answers.put(body, LocalTransactionState.valueOf(state.toString())));
        return null;
    }

    /** What the group's producer was asked about, once it is so many or the time is up. */
    List<Map<String, Object>> asked(String group, int count, long waitMs) throws InterruptedException {
        return Received.await(transactional.get(group).asked, count, waitMs);
    }

    /** An operator's order to check a transaction again that was given up, by the offset id of its record. */
    boolean resume(String address, String topic, String offsetMsgId) throws Exception {
        return plain().getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .resumeCheckHalfMessage(address, topic, offsetMsgId, PATIENCE_MS);
    }

    void shutdown() {
        transactional.values().forEach(of -> of.producer.shutdown());
        transactional.clear();
        if (plain != null) {
            plain.shutdown();
            plain = null;
        }
    }

    private DefaultMQProducer plain() throws MQClientException {
        if (plain == null) {
            plain = new DefaultMQProducer("oracle");
            plain.setSendMsgTimeout(PATIENCE_MS);
            plain.setMqClientApiTimeout(PATIENCE_MS);
            plain.setInstanceName("plain-" + System.nanoTime());
            plain.start();
        }
        return plain;
    }

    private Transactional of(String group, String topic) throws MQClientException {
        Transactional of = transactional.get(group);
        if (of == null) {
            of = new Transactional(group, topic);
            of.producer.start();
            transactional.put(group, of);
        }
        return of;
    }

    private static Message message(JSONObject request) {
        Message message = new Message(request.getString("topic"), Base64.getDecoder().decode(request.getString("body")));
        if (request.containsKey("tags")) {
            message.setTags(request.getString("tags"));
        }
        if (request.containsKey("keys")) {
            message.setKeys(request.getString("keys"));
        }
        if (request.containsKey("delay_level")) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        if (request.containsKey("delay_ms")) {
            message.setDelayTimeMs(request.getLongValue("delay_ms"));
        }
        if (request.containsKey("deliver_at_ms")) {
            message.setDeliverTimeMs(request.getLongValue("deliver_at_ms"));
        }
        JSONObject properties = request.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, value.toString()));
        }
        message.setFlag(request.getIntValue("flag"));
        return message;
    }

    private static Map<String, Object> facts(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getSendStatus().name());
        facts.put("msg_id", result.getMsgId());
        facts.put("offset_msg_id", result.getOffsetMsgId());
        facts.put("topic", result.getMessageQueue().getTopic());
        facts.put("queue_id", result.getMessageQueue().getQueueId());
        facts.put("queue_offset", result.getQueueOffset());
        facts.put("transaction_id", result.getTransactionId());
        facts.put("recall_handle", result.getRecallHandle());
        return facts;
    }

    private static final class Transactional implements TransactionListener {
        final TransactionMQProducer producer;
        final Map<String, LocalTransactionState> answers = new ConcurrentHashMap<>();
        final List<Map<String, Object>> asked = new ArrayList<>();

        /** A producer that sends nothing is known to those brokers that have its topics, and is asked by them. */
        Transactional(String group, String topic) {
            producer = new TransactionMQProducer(group, List.of(topic));
            producer.setInstanceName(group + "-" + System.nanoTime());
            producer.setSendMsgTimeout(PATIENCE_MS);
            producer.setMqClientApiTimeout(PATIENCE_MS);
            producer.setTransactionListener(this);
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object state) {
            return (LocalTransactionState) state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            Received.add(asked, message);
            LocalTransactionState answer = answers.remove(new String(message.getBody(), StandardCharsets.UTF_8));
            return answer == null ? LocalTransactionState.UNKNOW : answer;
        }
    }
}
