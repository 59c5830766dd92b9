import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends orders with RocketMQ's own client to the store that billing.py serves; see there.
 *
 * <p>Arguments: the address of the name server, and how many orders to send.
 */
public final class SendOrders {
    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments.length > 0 ? arguments[0] : "127.0.0.1:9876";
        int count = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 10;
        DefaultMQProducer producer = new DefaultMQProducer("shop");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        try {
            for (int number = 1; number <= count; number++) {
                String tag = number % 5 == 0 ? "cancelled" : "paid";
                byte[] body = ("order " + number).getBytes(StandardCharsets.UTF_8);
                SendResult result = producer.send(new Message("orders", tag, "O" + number, body));
                System.out.println("order " + number + " " + tag + " " + result.getSendStatus());
            }
        } finally {
            producer.shutdown();
        }
    }
}
