package mq.clients;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Producers by the name that member {@code producer} gives them; one that was not started is, by the first send. Its
 * group is its name unless {@code producer.start} says another.
 */
final class Producers {
    private final Connecting connecting;
    private final Map<String, DefaultMQProducer> plain = new HashMap<>();
    private final Map<String, Transactional> transactional = new HashMap<>();
    private final Map<String, Load> loads = new HashMap<>();
    private final List<Replying> replying = new ArrayList<>();

    Producers(Connecting connecting) {
        this.connecting = connecting;
    }

    Object serve(String verb, JSONObject request) throws Exception {
        return switch (verb) {
            case "start" -> start(request);
            case "send" -> Messages.facts(send(request));
            case "send_all" -> sendAll(request);
            case "send_async" -> sendAsync(request);
            case "send_batch" -> sendBatch(request);
            case "send_oneway" -> {
                of(request).sendOneway(Messages.of(request));
                yield null;
            }
            case "request" -> Base64.getEncoder().encodeToString(requested(request).getBody());
            case "reply" -> {
                replying.add(new Replying(connecting, request));
                yield null;
            }
            case "recall" -> Versions.recall(of(request), request.getString("topic"), request.getString("handle"));
            case "transact" -> transactional(request).transact(request);
            case "be_asked" -> transactional(request).learn(request.getJSONObject("answers"));
            case "asked" -> transactional(request).asked.await(request);
            case "load" -> {
                loads.put(name(request), new Load(of(request), request));
                yield null;
            }
            case "end_load" -> loads.remove(name(request)).end();
            case "stop" -> stop(name(request));
            default -> throw new IllegalArgumentException("unknown request: producer." + verb);
        };
    }

    private Object start(JSONObject request) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(
            request.containsKey("group") ? request.getString("group") : name(request), connecting.signing());
        connecting.prepare(producer, request);
        producer.setSendMsgTimeout(
            request.containsKey("timeout_ms") ? request.getIntValue("timeout_ms") : Connecting.PATIENCE_MS);
        if (request.containsKey("retry_count")) {
            producer.setRetryTimesWhenSendFailed(request.getIntValue("retry_count"));
            producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retry_count"));
        }
        producer.start();
        plain.put(name(request), producer);
        return null;
    }

    /** To the queue that {@code queue_id} and {@code broker} name, else to that of a {@code sharding_key}, else to any. */
    private SendResult send(JSONObject request) throws Exception {
        DefaultMQProducer producer = of(request);
        Message message = Messages.of(request);
        if (request.containsKey("queue_id")) {
            int queueId = request.getIntValue("queue_id");
            return producer.send(message,
                new MessageQueue(message.getTopic(), request.getString("broker"), queueId));
        }
        if (request.containsKey("sharding_key")) {
            return producer.send(message, (queues, sent, key) -> queues.get(Math.floorMod(key.hashCode(), queues.size())),
                request.getString("sharding_key"));
        }
        return producer.send(message);
    }

    /** Each of {@code messages} by a send of its own; members that they do not have are the request's. */
    private Object sendAll(JSONObject request) throws Exception {
        List<Object> answers = new ArrayList<>();
        for (JSONObject one : messages(request)) {
            answers.add(Messages.facts(send(one)));
        }
        return answers;
    }

    private Object sendAsync(JSONObject request) throws Exception {
        List<CompletableFuture<SendResult>> pending = new ArrayList<>();
        for (JSONObject one : messages(request)) {
            CompletableFuture<SendResult> future = new CompletableFuture<>();
            pending.add(future);
            of(request).send(Messages.of(one), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    future.complete(result);
                }

                @Override
                public void onException(Throwable failed) {
                    future.completeExceptionally(failed);
                }
            });
        }
        List<Object> answers = new ArrayList<>();
        for (CompletableFuture<SendResult> future : pending) {
            answers.add(Messages.facts(future.get()));
        }
        return answers;
    }

    /** The reply. By a callback: the call that waits for it returns in 5.3 as soon as the request is sent. */
    private Message requested(JSONObject request) throws Exception {
        CompletableFuture<Message> reply = new CompletableFuture<>();
        of(request).request(Messages.of(request), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) { // It is also called, without one, once the request is sent.
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable failed) {
                reply.completeExceptionally(failed);
            }
        }, Connecting.PATIENCE_MS);
        return reply.get();
    }

    private Object sendBatch(JSONObject request) throws Exception {
        List<Message> batch = new ArrayList<>();
        for (JSONObject one : messages(request)) {
            batch.add(Messages.of(one));
        }
        return Messages.facts(of(request).send(batch));
    }

    private static List<JSONObject> messages(JSONObject request) {
        List<JSONObject> messages = new ArrayList<>();
        JSONArray given = request.getJSONArray("messages");
        for (int number = 0; number < given.size(); number++) {
            JSONObject one = new JSONObject(request);
            one.putAll(given.getJSONObject(number));
            messages.add(one);
        }
        return messages;
    }

    private Object stop(String name) {
        DefaultMQProducer producer = plain.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
        Transactional asked = transactional.remove(name);
        if (asked != null) {
            asked.producer.shutdown();
        }
        return null;
    }

    private DefaultMQProducer of(JSONObject request) throws MQClientException {
        if (!plain.containsKey(name(request))) {
            JSONObject nothing = new JSONObject();
            nothing.put("producer", name(request));
            start(nothing);
        }
        return plain.get(name(request));
    }

    private Transactional transactional(JSONObject request) throws MQClientException {
        Transactional found = transactional.get(name(request));
        if (found == null) {
            found = new Transactional(connecting, request);
            transactional.put(name(request), found);
        }
        return found;
    }

    private static String name(JSONObject request) {
        return request.containsKey("producer") ? request.getString("producer") : "tests";
    }

    /** The states of a local transaction, by RocketMQ's names. */
    static LocalTransactionState state(Object name) {
        return LocalTransactionState.valueOf(name.toString());
    }
}
