package mq.clients;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers by the name that member {@code consumer} gives them, which keep what they receive. */
final class Consumers {
    private final Connecting connecting;
    private final Map<String, Push> pushing = new HashMap<>();

    Consumers(Connecting connecting) {
        this.connecting = connecting;
    }

    Object serve(String verb, JSONObject request) throws Exception {
        String name = request.getString("consumer");
        return switch (verb) {
            case "start" -> {
                Push push = new Push(connecting, request);
                push.consumer.start();
                pushing.put(name, push);
                yield null;
            }
            case "received" -> pushing.get(name).came.await(request);
            case "queues" -> pushing.get(name).queues();
            case "client_id" -> pushing.get(name).consumer.buildMQClientId();
            case "stop" -> {
                Push push = pushing.remove(name);
                push.consumer.shutdown();
                yield push.came.await(new JSONObject());
            }
            default -> throw new IllegalArgumentException("unknown request: consumer." + verb);
        };
    }

    /** The selectors of {@code topics}: a tag expression, or SQL92 where {@code sql} says so. */
    static MessageSelector selector(JSONObject topic) {
        String expression = topic.containsKey("expression") ? topic.getString("expression") : "*";
        return topic.getBooleanValue("sql") ? MessageSelector.bySql(expression) : MessageSelector.byTag(expression);
    }

    private static final class Push {
        final DefaultMQPushConsumer consumer;
        final Came came = new Came();
        private final Set<String> failing;
        private final long slowMs;
        private final String name;
        private final FileOutputStream journal;

        Push(Connecting connecting, JSONObject request) throws Exception {
            failing = new HashSet<>(request.getList("failing", String.class));
            slowMs = request.getLongValue("slow_ms");
            name = request.getString("consumer");
            journal = request.containsKey("journal")
                ? new FileOutputStream(request.getString("journal"), true) : null;
            consumer = new DefaultMQPushConsumer(request.getString("group"), connecting.signing(),
                new AllocateMessageQueueAveragely());
            connecting.prepare(consumer, request);
            consumer.setConsumeFromWhere(request.getBooleanValue("from_last")
                ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setAwaitTerminationMillisWhenShutdown(Connecting.PATIENCE_MS);
            if (request.getBooleanValue("broadcasting")) {
                Versions.broadcast(consumer);
            }
            if (request.containsKey("thread_count")) {
                consumer.setConsumeThreadMin(request.getIntValue("thread_count"));
                consumer.setConsumeThreadMax(request.getIntValue("thread_count"));
            }
            if (request.containsKey("batch_count")) {
                consumer.setConsumeMessageBatchMaxSize(request.getIntValue("batch_count"));
            }
            if (request.containsKey("reconsume_max")) {
                consumer.setMaxReconsumeTimes(request.getIntValue("reconsume_max"));
            }
            if (request.containsKey("suspend_ms")) {
                consumer.setSuspendCurrentQueueTimeMillis(request.getLongValue("suspend_ms"));
            }
            JSONArray topics = request.getJSONArray("topics");
            for (int number = 0; number < topics.size(); number++) {
                JSONObject topic = topics.getJSONObject(number);
                consumer.subscribe(topic.getString("topic"), selector(topic));
            }
            if (request.getBooleanValue("orderly")) {
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> take(messages)
                    ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            } else {
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> take(messages)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
            }
        }

        private boolean take(List<MessageExt> messages) {
            boolean fails = false;
            for (MessageExt message : messages) {
                came.add(message);
                write("begin", message);
                fails |= failing.contains(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            if (slowMs > 0) {
                try {
                    Thread.sleep(slowMs);
                } catch (InterruptedException ending) {
                    Thread.currentThread().interrupt();
                }
            }
            for (MessageExt message : messages) {
                write("end", message);
            }
            return !fails;
        }

        /** A line by one write, so that what several processes append stands in the order in which it happened. */
        private void write(String kind, MessageExt message) {
            if (journal == null) {
                return;
            }
            String line = kind + " " + System.currentTimeMillis() + " " + name + " " + message.getBrokerName() + " " + message.getQueueId() + " "
                + message.getQueueOffset() + " " + new String(message.getBody(), StandardCharsets.UTF_8) + "\n";
            try {
                journal.write(line.getBytes(StandardCharsets.UTF_8));
            } catch (IOException full) {
                throw new UncheckedIOException(full);
            }
        }

        /** The queues that the consumer has now: "topic broker queue", each with the offset that it has got to. */
        Map<String, Long> queues() {
            Map<String, Long> answer = new TreeMap<>();
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, held) -> {
                if (!held.isDropped()) {
                    answer.put(queue.getTopic() + " " + queue.getBrokerName() + " " + queue.getQueueId(),
                        consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
                }
            });
            return answer;
        }
    }
}
