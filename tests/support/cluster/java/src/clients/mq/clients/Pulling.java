package mq.clients;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull consumers by the name that member {@code consumer} gives them. */
final class Pulling {
    private final Connecting connecting;
    private final Map<String, DefaultLitePullConsumer> pulling = new HashMap<>();

    Pulling(Connecting connecting) {
        this.connecting = connecting;
    }

    Object serve(String verb, JSONObject request) throws Exception {
        String name = request.getString("consumer");
        DefaultLitePullConsumer consumer = pulling.get(name);
        switch (verb) {
            case "start" -> pulling.put(name, start(request));
            case "poll" -> {
                List<Object> answer = new ArrayList<>();
                for (MessageExt message : consumer.poll(request.getLongValue("wait_ms"))) {
                    answer.add(Came.facts(message, System.currentTimeMillis()));
                }
                return answer;
            }
            case "assign" -> {
                List<MessageQueue> queues = new ArrayList<>();
                JSONArray given = request.getJSONArray("queues");
                for (int number = 0; number < given.size(); number++) {
                    queues.add(queue(given.getJSONObject(number)));
                }
                consumer.assign(queues);
            }
            case "assignment" -> {
                return consumer.assignment().stream().map(Pulling::facts).toList();
            }
            case "queues" -> {
                return consumer.fetchMessageQueues(request.getString("topic")).stream().map(Pulling::facts).toList();
            }
            case "seek" -> consumer.seek(queue(request), request.getLongValue("offset"));
            case "committed" -> {
                return consumer.committed(queue(request));
            }
            case "offset_for_time" -> {
                return consumer.offsetForTimestamp(queue(request), request.getLongValue("time_ms"));
            }
            case "commit" -> consumer.commitSync();
            case "stop" -> pulling.remove(name).shutdown();
            default -> throw new IllegalArgumentException("unknown request: pull." + verb);
        }
        return null;
    }

    /** Subscribed to {@code topics}; without any it waits for an assign. */
    private DefaultLitePullConsumer start(JSONObject request) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(request.getString("group"), connecting.signing());
        connecting.prepare(consumer, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(request.getBooleanValue("auto_commit"));
        JSONArray topics = request.getJSONArray("topics");
        for (int number = 0; topics != null && number < topics.size(); number++) {
            JSONObject topic = topics.getJSONObject(number);
            consumer.subscribe(topic.getString("topic"), Consumers.selector(topic));
        }
        consumer.start();
        return consumer;
    }

    private static MessageQueue queue(JSONObject of) {
        return new MessageQueue(of.getString("topic"), of.getString("broker"), of.getIntValue("queue_id"));
    }

    private static Map<String, Object> facts(MessageQueue queue) {
        return Map.of("topic", queue.getTopic(), "broker", queue.getBrokerName(), "queue_id", queue.getQueueId());
    }
}
