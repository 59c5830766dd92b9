package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
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

/**
 * What RocketMQ's tests inherit, for servers that run already. Tests that name a second broker get the first again.
 * No broker runs in this process: its controllers are null.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = System.getProperty("mq.tests.name-server");
    protected static final String CLUSTER_NAME = "DefaultCluster";
    protected static final String BROKER1_NAME = System.getProperty("mq.tests.broker");
    protected static final String BROKER2_NAME = BROKER1_NAME;
    protected static final int BROKER_NUM = 1;
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 120_000;
    protected static BrokerController brokerController1;
    protected static BrokerController brokerController2;
    protected static BrokerController brokerController3;
    protected static List<BrokerController> brokerControllerList;
    protected static Map<String, BrokerController> brokerControllerMap;
    protected static List<Object> mqClients = new ArrayList<>();

    private static DefaultMQAdminExt admin;

    private static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt();
            made.setInstanceName("topics");
            made.setNamesrvAddr(NAMESRV_ADDR);
            made.start();
            admin = made;
        }
        return admin;
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }

    static void makeTopic(String cluster, String topic, Map<String, String> attributes) {
        // A busy machine may need longer than the client's timeout.
        for (int attempt = 1; ; attempt++) {
            try {
                admin().createTopic(cluster, topic, 8, attributes);
                return;
            } catch (Exception error) {
                if (attempt == 20) {
                    throw new IllegalStateException("topic " + topic + " was not made", error);
                }
            }
        }
    }

    /** The brokers have answered: they are registered. */
    public static void waitBrokerRegistered(String nameServer, String cluster, int brokers) {
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopicWithName(String topic) {
        makeTopic(CLUSTER_NAME, topic, Map.of());
        return topic;
    }

    /** A group is there when its first member comes. */
    public static String initConsumerGroup() {
        return MQRandomUtils.getRandomConsumerGroup();
    }

    /** Not started yet. */
    public static DefaultMQAdminExt getAdmin(String nameServer) {
        DefaultMQAdminExt made = new DefaultMQAdminExt(3000);
        made.setNamesrvAddr(nameServer);
        return kept(made);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic) {
        return getProducer(nameServer, topic, false);
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, boolean useTls) {
        return kept(new RMQNormalProducer(nameServer, topic, useTls));
    }

    public static RMQNormalProducer getProducer(String nameServer, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(nameServer, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
            String nameServer, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(nameServer, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String nameServer, String topic) {
        return kept(new RMQAsyncSendProducer(nameServer, topic));
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String subscribed, AbstractListener listener) {
        return getConsumer(nameServer, topic, subscribed, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String topic, String subscribed, AbstractListener listener, boolean useTls) {
        return getConsumer(nameServer, initConsumerGroup(), topic, subscribed, listener, useTls);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer, String group, String topic, String subscribed, AbstractListener listener) {
        return getConsumer(nameServer, group, topic, subscribed, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
            String nameServer,
            String group,
            String topic,
            String subscribed,
            AbstractListener listener,
            boolean useTls) {
        return kept(
                ConsumerFactory.getRMQNormalConsumer(nameServer, group, topic, subscribed, listener, useTls));
    }

    public static void shutdown() {
        List<Object> clients = mqClients;
        mqClients = new ArrayList<>();
        for (Object client : clients) {
            if (client instanceof MQConsumer) {
                ((MQConsumer) client).shutdown();
            } else if (client instanceof MQProducer) {
                ((MQProducer) client).shutdown();
            } else {
                ((DefaultMQAdminExt) client).shutdown();
            }
        }
    }
}
