package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.MQConsumer;
import org.apache.rocketmq.test.clientinterface.MQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What RocketMQ's tests inherit, for servers that run already. Tests that name a second broker get the first again. */
public class BaseConf {
    public static final String nsAddr = System.getProperty("mq.tests.name-server");
    protected static final String clusterName = "DefaultCluster";
    protected static final String broker1Name = System.getProperty("mq.tests.broker");
    protected static final String broker2Name = broker1Name;
    protected static final int brokerNum = 1;
    protected static final int waitTime = 5;
    protected static final int consumeTime = 120_000;
    protected static List<Object> mqClients = new ArrayList<>();

    private static DefaultMQAdminExt admin;

    private static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt();
            made.setInstanceName("topics");
            made.setNamesrvAddr(nsAddr);
            made.start();
            admin = made;
        }
        return admin;
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        // A busy machine may need longer than the client's timeout.
        for (int attempt = 1; ; attempt++) {
            try {
                admin().createTopic(clusterName, topic, 8);
                return topic;
            } catch (Exception error) {
                if (attempt == 20) {
                    throw new IllegalStateException("topic " + topic + " was not made", error);
                }
            }
        }
    }

    /** A group is there when its first member comes. */
    public static String initConsumerGroup() {
        return MQRandomUtils.getRandomConsumerGroup();
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic) {
        return getProducer(nsAddr, topic, false);
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, boolean useTls) {
        return kept(new RMQNormalProducer(nsAddr, topic, useTls));
    }

    public static RMQNormalProducer getProducer(String nsAddr, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nsAddr, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nsAddr, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nsAddr, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nsAddr, String topic) {
        return kept(new RMQAsyncSendProducer(nsAddr, topic));
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String subscribed, AbstractListener listener) {
        return getConsumer(nsAddr, topic, subscribed, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String topic, String subscribed, AbstractListener listener, boolean useTls) {
        return getConsumer(nsAddr, initConsumerGroup(), topic, subscribed, listener, useTls);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String group, String topic, String subscribed, AbstractListener listener) {
        return getConsumer(nsAddr, group, topic, subscribed, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nsAddr, String group, String topic, String subscribed, AbstractListener listener, boolean useTls) {
        return kept(
                ConsumerFactory.getRMQNormalConsumer(nsAddr, group, topic, subscribed, listener, useTls));
    }

    public static void shutdown() {
        List<Object> clients = mqClients;
        mqClients = new ArrayList<>();
        for (Object client : clients) {
            if (client instanceof MQConsumer) {
                ((MQConsumer) client).shutdown();
            } else {
                ((MQProducer) client).shutdown();
            }
        }
    }
}
