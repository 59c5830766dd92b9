package mq.speed;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/** RocketMQ's producer. The first 8 bytes of a body are the time at which it was sent. */
final class Sender {
    private static final int BATCH_COUNT = 100;

    private Sender() {
    }

    static void fill(String nameServer, int count, int size) throws Exception {
        DefaultMQProducer producer = started(nameServer);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < BATCH_COUNT; number++) {
            batch.add(message(size));
        }
        for (int done = 0; done < count; done += batch.size()) {
            require(producer.send(batch.subList(0, Math.min(BATCH_COUNT, count - done))).getSendStatus());
        }
        producer.shutdown();
    }

    static void send(String nameServer, int count, int size, long pause) throws Exception {
        DefaultMQProducer producer = started(nameServer);
        for (int number = 0; number < count; number++) {
            LockSupport.parkNanos(pause);
            Message message = message(size);
            require(producer.send(message).getSendStatus());
        }
        producer.shutdown();
    }

    private static DefaultMQProducer started(String nameServer) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("senders");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.setMqClientApiTimeout(30_000);
        producer.start();
        return producer;
    }

    private static Message message(int size) {
        byte[] body = new byte[size];
        ByteBuffer.wrap(body).putLong(System.nanoTime());
        return new Message(Server.TOPIC, "paid", "order-20061", body);
    }

    private static void require(SendStatus status) {
        if (status != SendStatus.SEND_OK) {
            throw new IllegalStateException("a send ended with " + status);
        }
    }
}
