package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A consumer that replies to the messages of {@code Producer.request()} by their bodies, twice over. */
final class Replying {
    private final DefaultMQProducer producer;

    Replying(Connecting connecting, JSONObject request) throws Exception {
        String group = request.getString("group");
        producer = new DefaultMQProducer(group + "-replies", connecting.signing());
        connecting.prepare(producer, request);
        producer.start();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, connecting.signing(), new AllocateMessageQueueAveragely());
        connecting.prepare(consumer, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                reply(message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private void reply(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            producer.send(MessageUtil.createReplyMessage(message, (body + body).getBytes(StandardCharsets.UTF_8)),
                Connecting.PATIENCE_MS);
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }
}
