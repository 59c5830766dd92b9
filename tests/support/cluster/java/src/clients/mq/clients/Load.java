package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * A thread that sends until it is ended: bodies {@code <prefix>0}, {@code <prefix>1} and so on, at most
 * {@code per_second} of them. With {@code keys}, message n has the sharding key n modulo keys and goes to its queue.
 */
final class Load {
    private final DefaultMQProducer producer;
    private final JSONObject request;
    private final List<String> acknowledged = new ArrayList<>();
    private final List<String> failed = new ArrayList<>();
    private final Thread thread = new Thread(this::run, "load");
    private volatile boolean ending;

    Load(DefaultMQProducer producer, JSONObject request) {
        this.producer = producer;
        this.request = request;
        thread.start();
    }

    /** The bodies that the brokers acknowledged, and those of which it is not known whether they were stored. */
    Map<String, Object> end() throws InterruptedException {
        ending = true;
        thread.join();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("acknowledged", acknowledged);
        answer.put("failed", failed);
        return answer;
    }

    private void run() {
        String prefix = request.getString("prefix");
        long pauseNs = (long) (1e9 / request.getDoubleValue("per_second"));
        int keys = request.getIntValue("keys");
        long next = System.nanoTime();
        for (int number = 0; !ending; number++) {
            String body = prefix + number;
            Message message = new Message(request.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
            try {
                int key = keys > 0 ? number % keys : 0;
                var result = keys > 0
                    ? producer.send(message, (queues, sent, of) -> queues.get((int) of % queues.size()), key)
                    : producer.send(message);
                (result.getSendStatus() == SendStatus.SEND_OK ? acknowledged : failed).add(body);
            } catch (Exception refused) {
                failed.add(body);
            }
            next += pauseNs;
            LockSupport.parkNanos(next - System.nanoTime());
        }
    }
}
