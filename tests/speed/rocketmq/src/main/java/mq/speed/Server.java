package mq.speed;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A name server and a broker with asynchronous flush, RocketMQ's defaults, that listen on loopback alone. */
final class Server {
    static final String TOPIC = "orders";
    static final String LOOPBACK = "127.0.0.1";
    static final int QUEUE_COUNT = 4;

    private Server() {
    }

    static void run(String directory) throws Exception {
        // What the start-up classes do: requests of version 0 are taken for those of an old broker.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        NettyServerConfig nameServerNet = net(freePort());
        NamesrvConfig nameServerConfig = new NamesrvConfig();
        nameServerConfig.setKvConfigPath(directory + "/kvConfig.json");
        nameServerConfig.setConfigStorePath(directory + "/namesrv.properties");
        NamesrvController nameServer = new NamesrvController(nameServerConfig, nameServerNet);
        require(nameServer.initialize(), "the name server");
        nameServer.start();
        String address = LOOPBACK + ":" + nameServerNet.getListenPort();

        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerName("peer");
        brokerConfig.setBrokerIP1(LOOPBACK);
        brokerConfig.setBrokerIP2(LOOPBACK);
        brokerConfig.setNamesrvAddr(address);
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        storeConfig.setStorePathRootDir(directory + "/store");
        storeConfig.setStorePathCommitLog(directory + "/store/commitlog");
        BrokerController broker = new BrokerController(
                brokerConfig, net(freePort()), new NettyClientConfig(), storeConfig);
        require(broker.initialize(), "the broker");
        broker.start();
        broker.getTopicConfigManager().updateTopicConfig(new TopicConfig(TOPIC, QUEUE_COUNT, QUEUE_COUNT));
        while (nameServer.getRouteInfoManager().pickupTopicRouteData(TOPIC) == null) {
            broker.registerBrokerAll(true, false, true);
            Thread.sleep(100);
        }

        Peer.answer(address);
        while (System.in.read() >= 0) {
            continue;
        }
    }

    private static NettyServerConfig net(int port) {
        NettyServerConfig config = new NettyServerConfig();
        config.setBindAddress(LOOPBACK);
        config.setListenPort(port);
        return config;
    }

    /** The broker listens at the port two below as well, for clients that ask for its fast lane. */
    private static int freePort() throws IOException {
        while (true) {
            try (ServerSocket one = new ServerSocket(0, 1, InetAddress.getByName(LOOPBACK));
                    ServerSocket below =
                            new ServerSocket(one.getLocalPort() - 2, 1, InetAddress.getByName(LOOPBACK))) {
                return one.getLocalPort();
            } catch (IOException taken) {
                continue;
            }
        }
    }

    private static void require(boolean done, String what) {
        if (!done) {
            throw new IllegalStateException(what + " does not start");
        }
    }
}
