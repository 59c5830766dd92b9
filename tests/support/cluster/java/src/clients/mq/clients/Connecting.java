package mq.clients;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** Where the cluster is and as whom clients come to it. */
final class Connecting {
    /** A machine that stands still for some seconds shall not fail a call, nor have the client repeat it. */
    static final int PATIENCE_MS = 60_000;

    private final String nameServer;
    private final String accessKey;
    private final String secretKey;

    Connecting(String nameServer, String accessKey, String secretKey) {
        this.nameServer = nameServer;
        this.accessKey = accessKey;
        this.secretKey = secretKey;
    }

    /** What signs requests; null where access is free. */
    RPCHook signing() {
        return accessKey == null ? null : new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    /** Prepares a client before its start. Two clients of one process are two members of their group. */
    void prepare(ClientConfig client, JSONObject request) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName("tests-" + ProcessHandle.current().pid() + "-" + System.nanoTime());
        client.setMqClientApiTimeout(PATIENCE_MS);
        if (request.containsKey("namespace")) {
            client.setNamespace(request.getString("namespace"));
        }
        if (request.containsKey("route_ms")) {
            client.setPollNameServerInterval(request.getIntValue("route_ms"));
        }
        if (request.containsKey("heartbeat_ms")) {
            client.setHeartbeatBrokerInterval(request.getIntValue("heartbeat_ms"));
        }
    }
}
