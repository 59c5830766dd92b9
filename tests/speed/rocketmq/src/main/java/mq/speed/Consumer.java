package mq.speed;

import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** RocketMQ's push consumer with its defaults: a listener for each message, 20 threads. */
final class Consumer {
    private Consumer() {
    }

    static void drain(String nameServer, int count) throws Exception {
        int warmUp = count / 5;
        AtomicInteger taken = new AtomicInteger();
        AtomicLong begin = new AtomicLong();
        AtomicLong end = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = start(nameServer, (messages, context) -> {
            int number = taken.addAndGet(messages.size());
            if (number == warmUp) {
                begin.set(System.nanoTime());
            } else if (number == count) {
                end.set(System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        done.await();
        Peer.answer((count - warmUp) * 1e9 / (end.get() - begin.get()));
        consumer.shutdown();
    }

    static void listen(String nameServer, int count) throws Exception {
        long[] times = new long[count];
        AtomicInteger taken = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = start(nameServer, (messages, context) -> {
            long now = System.nanoTime();
            long sent = ByteBuffer.wrap(messages.get(0).getBody()).getLong();
            int number = taken.getAndIncrement();
            if (number < count) {
                times[number] = now - sent;
            }
            if (number == count - 1) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        // Pulls begin half a second after queues were assigned: what came before them would have waited.
        while (consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().size()
                <= Server.QUEUE_COUNT) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        Peer.answer("ready");
        done.await();
        Peer.answer(LongStream.of(times).mapToObj(Long::toString).collect(Collectors.joining(" ")));
        consumer.shutdown();
    }

    private static DefaultMQPushConsumer start(String nameServer, MessageListenerConcurrently listener)
            throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("billing");
        consumer.setNamesrvAddr(nameServer);
        consumer.setMqClientApiTimeout(30_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(Server.TOPIC, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }
}
