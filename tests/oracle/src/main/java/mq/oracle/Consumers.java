package mq.oracle;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** RocketMQ's own push consumers, one for each group, which keep what they receive. */
final class Consumers {
    private final Map<String, Push> pushing = new HashMap<>();

    /** Starts a consumer; those messages whose bodies {@code failing} lists are given back to be retried. */
    Object start(JSONObject request) throws Exception {
        String group = request.getString("group");
        Push push = new Push(group, new HashSet<>(request.getList("failing", String.class)));
        for (String topic : request.getList("topics", String.class)) {
            push.consumer.subscribe(topic, "*");
        }
        push.consumer.start();
        pushing.put(group, push);
        return null;
    }

    /** What a group has received since its start, once it is so many or the time is up. */
    List<Map<String, Object>> received(String group, int count, long waitMs) throws InterruptedException {
        return Received.await(pushing.get(group).received, count, waitMs);
    }

    /** Ends a group's consumer, which writes down its offsets; everything that it has received. */
    List<Map<String, Object>> stop(String group) throws InterruptedException {
        Push push = pushing.remove(group);
        push.consumer.shutdown();
        return Received.await(push.received, 0, 0);
    }

    void shutdown() {
        pushing.values().forEach(push -> push.consumer.shutdown());
        pushing.clear();
    }

    private static final class Push {
        final DefaultMQPushConsumer consumer;
        final List<Map<String, Object>> received = new ArrayList<>();

        Push(String group, Set<String> failing) {
            consumer = new DefaultMQPushConsumer(group);
            consumer.setInstanceName(group + "-" + System.nanoTime());
            consumer.setMqClientApiTimeout(Producers.PATIENCE_MS);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAwaitTerminationMillisWhenShutdown(Producers.PATIENCE_MS);
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean fails = false;
                for (var message : messages) {
                    Received.add(received, message);
                    fails |= failing.contains(new String(message.getBody(), StandardCharsets.UTF_8));
                }
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
    }
}
