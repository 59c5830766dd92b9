package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What differs between the versions of the client: this is 5.3. */
final class Versions {
    private Versions() {
    }

    static void setTimes(Message message, Long delayMs, Long deliverAtMs) {
        if (delayMs != null) {
            message.setDelayTimeMs(delayMs);
        }
        if (deliverAtMs != null) {
            message.setDeliverTimeMs(deliverAtMs);
        }
    }

    static String recallHandle(SendResult result) {
        return result.getRecallHandle();
    }

    static String recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        return producer.recallMessage(topic, handle);
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
