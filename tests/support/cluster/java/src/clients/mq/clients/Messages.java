package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Messages out of requests, and what is said of those that were sent. */
final class Messages {
    private Messages() {
    }

    static Message of(JSONObject request) {
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
        Versions.setTimes(message, request.getLong("delay_ms"), request.getLong("deliver_at_ms"));
        JSONObject properties = request.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) -> message.putUserProperty(name, value.toString()));
        }
        message.setFlag(request.getIntValue("flag"));
        return message;
    }

    static Map<String, Object> facts(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getSendStatus().name());
        facts.put("msg_id", result.getMsgId());
        facts.put("offset_msg_id", result.getOffsetMsgId());
        facts.put("topic", result.getMessageQueue().getTopic());
        facts.put("broker", result.getMessageQueue().getBrokerName());
        facts.put("queue_id", result.getMessageQueue().getQueueId());
        facts.put("queue_offset", result.getQueueOffset());
        facts.put("transaction_id", result.getTransactionId());
        facts.put("recall_handle", Versions.recallHandle(result));
        return facts;
    }
}
