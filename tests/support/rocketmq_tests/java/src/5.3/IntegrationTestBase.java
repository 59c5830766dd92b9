package org.apache.rocketmq.test.base;

import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** What RocketMQ's tests of 5.3 call beside BaseConf. */
public class IntegrationTestBase {
    public static boolean initTopic(String topic, String nameServer, String cluster, CQType queues) {
        BaseConf.makeTopic(cluster, topic, Map.of("+queue.type", queues.toString()));
        return true;
    }

    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig broker) {
        throw new UnsupportedOperationException("no broker runs in this process");
    }
}
