package mq.clients;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.sun.management.OperatingSystemMXBean;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * How fast RocketMQ's Java client is. Arguments: the name servers' address and one JSON object; prints one line, a JSON
 * object. Members of both that all cases have: {@code case}, {@code topic} and {@code size}, the bytes of a body.
 * {@code cpu_us} is this process's processor time for a message.
 *
 * <pre>
 * send     {threads, seconds}     sync sends; rate
 * async    {seconds, in_flight}   sends with a callback, at most so many unanswered; rate
 * batch    {count, seconds}       sync sends of so many messages each; rate, in messages
 * fill     {messages}             stores so many in batches of 100; rate
 * drain    {messages, group}      a push consumer takes so many, the first fifth to warm up; rate
 * latency  {messages, pause_us, group}   from send to listener; p50_us, p99_us
 * </pre>
 */
public final class Speed {
    private static final int TIMEOUT_MS = 30_000;

    private final String nameServer;
    private final JSONObject request;
    private final String topic;

    private Speed(String nameServer, JSONObject request) {
        this.nameServer = nameServer;
        this.request = request;
        this.topic = request.getString("topic");
    }

    public static void main(String[] arguments) {
        PrintStream answers = System.out;
        System.setOut(System.err);
        int status = 1;
        try {
            Speed speed = new Speed(arguments[0], JSON.parseObject(arguments[1]));
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("case", speed.request.getString("case"));
            answer.putAll(speed.measure());
            answers.println(JSON.toJSONString(answer));
            answers.flush();
            status = 0;
        } catch (Exception failed) {
            failed.printStackTrace();
        }
        // The client's threads would go on, whether it answers or fails.
        Runtime.getRuntime().halt(status);
    }

    private Map<String, Object> measure() throws Exception {
        return switch (request.getString("case")) {
            case "send" -> send();
            case "async" -> async();
            case "batch" -> batch();
            case "fill" -> fill();
            case "drain" -> drain();
            case "latency" -> latency();
            default -> throw new IllegalArgumentException("unknown case: " + request);
        };
    }

    private Map<String, Object> send() throws Exception {
        DefaultMQProducer producer = producer();
        int threadCount = request.getIntValue("threads");
        repeat(1.0, () -> producer.send(message()), 1);
        AtomicLong sent = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        Span span = new Span();
        for (int number = 0; number < threadCount; number++) {
            Thread thread = new Thread(() -> sent.addAndGet(repeat(seconds(), () -> producer.send(message()), 1)));
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return span.rate(sent.get());
    }

    private Map<String, Object> async() throws Exception {
        DefaultMQProducer producer = producer();
        Semaphore free = new Semaphore(request.getIntValue("in_flight"));
        AtomicLong failures = new AtomicLong();
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                free.release();
            }

            @Override
            public void onException(Throwable failed) {
                failures.incrementAndGet();
                free.release();
            }
        };
        Step step = () -> {
            free.acquire();
            producer.send(message(), callback);
        };
        repeat(2.0, step, 1);
        Span span = new Span();
        long sent = repeat(seconds(), step, 1);
        free.acquire(request.getIntValue("in_flight"));
        Map<String, Object> answer = span.rate(sent);
        answer.put("failures", failures.get());
        return answer;
    }

    private Map<String, Object> batch() throws Exception {
        DefaultMQProducer producer = producer();
        int count = request.getIntValue("count");
        Step step = () -> producer.send(messages(count));
        repeat(1.0, step, count);
        Span span = new Span();
        return span.rate(repeat(seconds(), step, count));
    }

    private Map<String, Object> fill() throws Exception {
        DefaultMQProducer producer = producer();
        int left = request.getIntValue("messages");
        Span span = new Span();
        while (left > 0) {
            int count = Math.min(left, 100);
            producer.send(messages(count));
            left -= count;
        }
        return span.rate(request.getIntValue("messages"));
    }

    private Map<String, Object> drain() throws Exception {
        int count = request.getIntValue("messages");
        int warmUp = count / 5;
        AtomicInteger taken = new AtomicInteger();
        // The thread that took the last message may be here before the one that ended the warm-up.
        CompletableFuture<Span> warm = new CompletableFuture<>();
        CompletableFuture<Map<String, Object>> answer = new CompletableFuture<>();
        consumer((messages, context) -> {
            int number = taken.addAndGet(messages.size());
            if (number == warmUp) {
                warm.complete(new Span());
            } else if (number == count) {
                answer.complete(warm.join().rate(count - warmUp));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return answer.get();
    }

    /** Producer and consumer are in one process, so that both read one clock. */
    private Map<String, Object> latency() throws Exception {
        int count = request.getIntValue("messages");
        int warmUp = count / 5;
        long[] times = new long[count];
        AtomicInteger taken = new AtomicInteger();
        CountDownLatch ready = new CountDownLatch(1);
        CountDownLatch done = new CountDownLatch(1);
        consumer((messages, context) -> {
            long now = System.nanoTime();
            long sent = ByteBuffer.wrap(messages.get(0).getBody()).getLong();
            ready.countDown();
            if (sent != 0) {
                int number = taken.getAndIncrement();
                times[number] = now - sent;
                if (number == count - 1) {
                    done.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = producer();
        // The first pull of each queue has to be waiting; a message of time 0 to each says that it does.
        producer.send(message(0));
        ready.await();
        Thread.sleep(2000);
        for (int number = 0; number < count; number++) {
            LockSupport.parkNanos(request.getLongValue("pause_us") * 1000);
            producer.send(message());
        }
        done.await();
        long[] warm = Arrays.copyOfRange(times, warmUp, count);
        Arrays.sort(warm);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("p50_us", warm[warm.length / 2] / 1000.0);
        answer.put("p99_us", warm[(int) (warm.length * 0.99)] / 1000.0);
        return answer;
    }

    private double seconds() {
        return request.getDoubleValue("seconds");
    }

    /** Takes a step over and over for some seconds, once at least; how many messages that were. */
    private static long repeat(double seconds, Step step, int count) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long done = 0;
        try {
            do {
                step.run();
                done += count;
            } while (System.nanoTime() < end);
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
        return done;
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("speed");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.start();
        return producer;
    }

    private void consumer(MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer-" + System.nanoTime());
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
    }

    private List<Message> messages(int count) {
        List<Message> batch = new ArrayList<>(count);
        for (int number = 0; number < count; number++) {
            batch.add(message());
        }
        return batch;
    }

    private Message message() {
        return message(System.nanoTime());
    }

    private Message message(long timeNs) {
        byte[] body = new byte[request.getIntValue("size")];
        ByteBuffer.wrap(body).putLong(timeNs);
        return new Message(topic, body);
    }

    private interface Step {
        void run() throws Exception;
    }

    /** Wall and processor time since it was made. */
    private static final class Span {
        private final long beginNs = System.nanoTime();
        private final long beginCpuNs = cpuNs();

        Map<String, Object> rate(long count) {
            Map<String, Object> answer = new LinkedHashMap<>();
            answer.put("rate", count * 1e9 / (System.nanoTime() - beginNs));
            answer.put("cpu_us", (cpuNs() - beginCpuNs) / 1000.0 / count);
            return answer;
        }

        private static long cpuNs() {
            return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
        }
    }
}
