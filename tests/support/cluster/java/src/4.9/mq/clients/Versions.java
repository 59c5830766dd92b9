package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What differs between the versions of the client: this is 4.9. */
final class Versions {
    private Versions() {
    }

    static void setTimes(Message message, Long delayMs, Long deliverAtMs) {
        if (delayMs != null || deliverAtMs != null) {
            throw new UnsupportedOperationException("RocketMQ 4.9 knows delay levels alone");
        }
    }

    static String recallHandle(SendResult result) {
        return null;
    }

    static String recall(DefaultMQProducer producer, String topic, String handle) {
        throw new UnsupportedOperationException("RocketMQ 4.9 cannot recall a message");
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static void createGroup(DefaultMQAdminExt admin, String broker, JSONObject request) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(request.getString("group"));
        if (request.containsKey("retry_max")) {
            config.setRetryMaxTimes(request.getIntValue("retry_max"));
        }
        if (request.containsKey("consume_enable")) {
            config.setConsumeEnable(request.getBooleanValue("consume_enable"));
        }
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }
}
