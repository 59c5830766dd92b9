package mq.oracle;

import com.alibaba.fastjson2.JSONObject;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.store.timer.TimerMessageStore;

/**
 * One name server for the life of the process, and at any time at most one broker, as its own start-up makes it; but
 * nobody replicates it (see {@link NoReplication}).
 */
final class Cluster {
    /** The name that mq gives itself: it stands in the handles of recall. */
    static final String BROKER_NAME = "mq";

    private final Path scratch;
    private NamesrvController nameServer;
    private BrokerController broker;

    Cluster(Path scratch) {
        this.scratch = scratch;
    }

    /** Starts a broker over a store; settings are lines of its properties file, its port among them. */
    Map<String, Object> start(Path store, JSONObject settings) throws Exception {
        if (nameServer == null) {
            startNameServer();
        }
        Properties properties = new Properties();
        properties.setProperty("brokerName", BROKER_NAME);
        properties.setProperty("brokerIP1", "127.0.0.1");
        properties.setProperty("namesrvAddr", nameServerAddress());
        properties.setProperty("storePathRootDir", store.toString());
        properties.setProperty("storePathCommitLog", store.resolve("commitlog").toString());
        settings.forEach((name, value) -> properties.setProperty(name, value.toString()));
        Path file = Files.createTempFile(scratch, "broker", ".properties");
        try (Writer writer = Files.newBufferedWriter(file)) {
            properties.store(writer, null);
        }
        broker = BrokerStartup.createBrokerController(new String[] {"-c", file.toString()});
        broker.start();
        awaitRoute("SELF_TEST_TOPIC");
        return Map.of("broker", address(), "name_server", nameServerAddress());
    }

    String address() {
        return broker.getBrokerAddr();
    }

    private void startNameServer() throws Exception {
        NettyServerConfig listening = new NettyServerConfig();
        listening.setListenPort(0);
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(scratch.resolve("kvConfig.json").toString());
        nameServer = new NamesrvController(config, listening);
        if (!nameServer.initialize()) {
            throw new IllegalStateException("the name server does not start");
        }
        nameServer.start();
        System.setProperty("rocketmq.namesrv.addr", nameServerAddress());
    }

    private String nameServerAddress() {
        return "127.0.0.1:" + nameServer.getNettyServerConfig().getListenPort();
    }

    void stop() {
        if (broker != null) {
            broker.shutdown();
            broker = null;
        }
    }

    Object createTopic(String topic, int queueCount) throws InterruptedException {
        TopicConfig config = new TopicConfig(topic, queueCount, queueCount, 6);
        broker.getTopicConfigManager().updateTopicConfig(config);
        awaitRoute(topic);
        return null;
    }

    /** Registers the broker until the name server leads to it: its first try may come before the connection stands. */
    private void awaitRoute(String topic) throws InterruptedException {
        for (;;) {
            broker.registerBrokerAll(true, false, true);
            TopicRouteData route = nameServer.getRouteInfoManager().pickupTopicRouteData(topic);
            if (route != null && route.getBrokerDatas().stream()
                .anyMatch(data -> data.getBrokerAddrs().containsValue(broker.getBrokerAddr()))) {
                return;
            }
            Thread.sleep(20);
        }
    }

    /** The offsets a group has got to, by queue. */
    Map<String, Long> offsets(String group, String topic) {
        Map<Integer, Long> offsets = broker.getConsumerOffsetManager().queryOffset(group, topic);
        Map<String, Long> answer = new TreeMap<>();
        if (offsets != null) {
            offsets.forEach((queue, offset) -> answer.put(queue.toString(), offset));
        }
        return answer;
    }

    /** First and next offset of every queue. */
    Map<String, List<Long>> queues() {
        Map<String, List<Long>> answer = new TreeMap<>();
        broker.getMessageStore().getQueueStore().getConsumeQueueTable().forEach((topic, queues) ->
            queues.forEach((id, queue) -> answer.put(topic + " " + id,
                List.of(queue.getMinOffsetInQueue(), queue.getMaxOffsetInQueue()))));
        return answer;
    }

    /** Where the broker's timer is, and how many bytes of the log are in no queue yet. */
    Map<String, Object> timer() {
        TimerMessageStore timer = broker.getTimerMessageStore();
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("read_time_ms", timer.getCurrReadTimeMs());
        answer.put("commit_read_time_ms", timer.getCommitReadTimeMs());
        answer.put("queue_offset", timer.getQueueOffset());
        answer.put("commit_queue_offset", timer.getCommitQueueOffset());
        answer.put("log_end", timer.getTimerLog().getMappedFileQueue().getMaxOffset());
        answer.put("pending", timer.getAllCongestNum());
        answer.put("undispatched", broker.getMessageStore().dispatchBehindBytes());
        return answer;
    }
}
