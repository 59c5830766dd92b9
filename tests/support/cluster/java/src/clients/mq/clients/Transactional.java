package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** A producer of transactions, which answers checks by what it was told of the bodies. */
final class Transactional implements TransactionListener {
    final TransactionMQProducer producer;
    final Came asked = new Came();
    private final Map<String, LocalTransactionState> answers = new ConcurrentHashMap<>();

    Transactional(Connecting connecting, JSONObject request) throws MQClientException {
        producer = new TransactionMQProducer(request.getString("group"), connecting.signing());
        connecting.prepare(producer, request);
        producer.setSendMsgTimeout(Connecting.PATIENCE_MS);
        producer.setTransactionListener(this);
        producer.start();
        // One that sends nothing is known to the brokers of the topics that it has looked up, and is asked by them.
        if (request.containsKey("topic")) {
            producer.getDefaultMQProducerImpl().getTopicPublishInfoTable().put(request.getString("topic"),
                new org.apache.rocketmq.client.impl.producer.TopicPublishInfo());
            producer.getDefaultMQProducerImpl().getMqClientFactory()
                .updateTopicRouteInfoFromNameServer(request.getString("topic"));
            producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
        }
    }

    /** Sends a half message; member {@code state} is what the local transaction answers. */
    Object transact(JSONObject request) throws MQClientException {
        return Messages.facts(producer.sendMessageInTransaction(
            Messages.of(request), Producers.state(request.getString("state"))));
    }

    /** Each answer is given once, and UNKNOW for other bodies: a second answer might end a transaction twice. */
    Object learn(JSONObject states) {
        states.forEach((body, state) -> answers.put(body, Producers.state(state)));
        return null;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object state) {
        return (LocalTransactionState) state;
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        asked.add(message);
        LocalTransactionState answer = answers.remove(new String(message.getBody(), StandardCharsets.UTF_8));
        return answer == null ? LocalTransactionState.UNKNOW : answer;
    }
}
