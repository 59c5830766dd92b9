package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator does, through RocketMQ's own tools. */
final class Admin {
    private final Connecting connecting;
    private DefaultMQAdminExt admin;

    Admin(Connecting connecting) {
        this.connecting = connecting;
    }

    Object serve(String verb, JSONObject request) throws Exception {
        if (verb.equals("run")) {
            return MqAdmin.run(request.getList("arguments", String.class).toArray(String[]::new), connecting.signing());
        }
        DefaultMQAdminExt tools = tools();
        String topic = request.getString("topic");
        String group = request.getString("group");
        String broker = request.getString("broker");
        switch (verb) {
            case "create_topic" -> createTopic(request);
            case "delete_topic" -> {
                Set<String> masters = masters(null);
                tools.deleteTopicInBroker(masters, topic);
                for (String nameServer : tools.getNamesrvAddr().split(";")) {
                    tools.deleteTopicInNameServer(Set.of(nameServer), clusterName(), topic);
                }
            }
            case "create_group" -> {
                for (String master : masters(broker)) {
                    Versions.createGroup(tools, master, request);
                }
            }
            case "delete_group" -> {
                for (String master : masters(broker)) {
                    tools.deleteSubscriptionGroup(master, group, true);
                }
            }
            case "route" -> {
                return route(topic);
            }
            case "cluster" -> {
                return cluster();
            }
            case "topics" -> {
                return new TreeSet<>(tools.fetchAllTopicList().getTopicList());
            }
            case "topic_offsets" -> {
                return topicOffsets(topic);
            }
            case "offsets" -> {
                return offsets(group, topic);
            }
            case "set_offset" -> tools.updateConsumeOffset(address(broker), group,
                new MessageQueue(topic, broker, request.getIntValue("queue_id")), request.getLongValue("offset"));
            case "reset" -> {
                Map<String, Long> answer = new TreeMap<>();
                tools.resetOffsetByTimestamp(topic, group, request.getLongValue("time_ms"), true)
                    .forEach((queue, offset) -> answer.put(name(queue), offset));
                return answer;
            }
            case "members" -> {
                List<String> ids = new ArrayList<>();
                tools.examineConsumerConnectionInfo(group).getConnectionSet().forEach(one -> ids.add(one.getClientId()));
                ids.sort(null);
                return ids;
            }
            case "set_write" -> {
                for (String nameServer : tools.getNamesrvAddr().split(";")) {
                    if (request.getBooleanValue("allowed")) {
                        tools.addWritePermOfBroker(nameServer, broker);
                    } else {
                        tools.wipeWritePermOfBroker(nameServer, broker);
                    }
                }
            }
            case "configure" -> {
                Properties lines = new Properties();
                request.getJSONObject("settings").forEach((name, value) -> lines.setProperty(name, value.toString()));
                tools.updateBrokerConfig(address(broker), lines);
            }
            case "find_key" -> {
                return messages(tools.queryMessage(topic, request.getString("key"), request.getIntValue("count"),
                    0, System.currentTimeMillis() + 60_000).getMessageList());
            }
            case "find_id" -> {
                return Came.facts(tools.viewMessage(topic, request.getString("id")), System.currentTimeMillis());
            }
            default -> throw new IllegalArgumentException("unknown request: admin." + verb);
        }
        return null;
    }

    private DefaultMQAdminExt tools() throws Exception {
        if (admin == null) {
            DefaultMQAdminExt made = new DefaultMQAdminExt(connecting.signing(), Connecting.PATIENCE_MS);
            connecting.prepare(made, new JSONObject());
            made.start();
            admin = made;
        }
        return admin;
    }

    /** On one broker, or on all masters; also changes a topic that exists. */
    private void createTopic(JSONObject request) throws Exception {
        int queueCount = request.getIntValue("queue_count");
        TopicConfig config = new TopicConfig(request.getString("topic"), queueCount, queueCount,
            request.containsKey("permission") ? request.getIntValue("permission") : 6);
        if (request.containsKey("write_queue_count")) {
            config.setWriteQueueNums(request.getIntValue("write_queue_count"));
        }
        config.setOrder(request.getBooleanValue("order"));
        for (String master : masters(request.getString("broker"))) {
            tools().createAndUpdateTopicConfig(master, config);
        }
    }

    private Object route(String topic) throws Exception {
        var route = tools().examineTopicRouteInfo(topic);
        Map<String, Object> brokers = new TreeMap<>();
        route.getBrokerDatas().forEach(one -> brokers.put(one.getBrokerName(), addresses(one.getBrokerAddrs())));
        Map<String, Object> queues = new TreeMap<>();
        route.getQueueDatas().forEach(one -> queues.put(one.getBrokerName(),
            List.of(one.getReadQueueNums(), one.getWriteQueueNums(), one.getPerm())));
        return Map.of("brokers", brokers, "queues", queues);
    }

    private Object cluster() throws Exception {
        Map<String, Object> brokers = new TreeMap<>();
        tools().examineBrokerClusterInfo().getBrokerAddrTable().forEach((name, one) ->
            brokers.put(name, addresses(one.getBrokerAddrs())));
        return brokers;
    }

    private static Map<String, String> addresses(Map<Long, String> byId) {
        Map<String, String> answer = new TreeMap<>();
        byId.forEach((id, address) -> answer.put(id.toString(), address));
        return answer;
    }

    private String clusterName() throws Exception {
        return tools().examineBrokerClusterInfo().getClusterAddrTable().keySet().iterator().next();
    }

    /** The addresses of one master, or of all. */
    private Set<String> masters(String broker) throws Exception {
        Set<String> answer = new TreeSet<>();
        tools().examineBrokerClusterInfo().getBrokerAddrTable().forEach((name, one) -> {
            String master = one.getBrokerAddrs().get(0L);
            if (master != null && (broker == null || broker.equals(name))) {
                answer.add(master);
            }
        });
        return answer;
    }

    private String address(String broker) throws Exception {
        return masters(broker).iterator().next();
    }

    private Object topicOffsets(String topic) throws Exception {
        Map<String, Object> answer = new TreeMap<>();
        tools().examineTopicStats(topic).getOffsetTable().forEach((queue, offsets) ->
            answer.put(name(queue), List.of(offsets.getMinOffset(), offsets.getMaxOffset())));
        return answer;
    }

    /** By queue, the offset that the group has got to and the next one of the queue. */
    private Object offsets(String group, String topic) throws Exception {
        Map<String, Object> answer = new TreeMap<>();
        tools().examineConsumeStats(group, topic).getOffsetTable().forEach((queue, offsets) ->
            answer.put(name(queue), List.of(offsets.getConsumerOffset(), offsets.getBrokerOffset())));
        return answer;
    }

    private static List<Object> messages(List<MessageExt> found) {
        List<Object> answer = new ArrayList<>();
        found.forEach(message -> answer.add(Came.facts(message, System.currentTimeMillis())));
        return answer;
    }

    private static String name(MessageQueue queue) {
        return queue.getBrokerName() + " " + queue.getQueueId();
    }
}
