package mq.oracle;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A whole RocketMQ in one process, name server, broker and clients, told what to do by lines on standard input.
 *
 * <p>Argument: a directory for whatever the broker wants to keep outside its store. Each request is a JSON object on a
 * line, its member {@code do} one of the names below; each is answered by one line, with member {@code answer}, or
 * {@code failure} where something was thrown. At the end of the input everything is halted.
 */
public final class Server {
    private static final List<String> SLEEPERS = List.of("NettyEventExecutor", "Pop");

    private final Cluster cluster;
    private final Producers producers = new Producers();
    private final Consumers consumers = new Consumers();

    private Server(Path scratch) {
        this.cluster = new Cluster(scratch);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Server server = new Server(Path.of(arguments[0]));
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Lines lines = new Lines(answers);
        for (String text = requests.readLine(); text != null; text = requests.readLine()) {
            Map<String, Object> line = new LinkedHashMap<>();
            try {
                line.put("answer", server.answer(JSON.parseObject(text)));
            } catch (Throwable failure) {
                failure.printStackTrace();
                line.put("failure", failure.toString());
            }
            lines.print(line);
            lines.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private Object answer(JSONObject request) throws Exception {
        return switch (request.getString("do")) {
            case "start" -> cluster.start(Path.of(request.getString("store")), request.getJSONObject("settings"));
            case "stop" -> {
                stop();
                yield null;
            }
            case "create_topic" -> cluster.createTopic(request.getString("topic"), request.getIntValue("queue_count"));
            case "send" -> producers.send(request);
            case "recall" -> producers.recall(request.getString("topic"), request.getString("handle"));
            case "transact" -> producers.transact(request);
            case "be_asked" -> producers.beAsked(request.getString("group"), request.getString("topic"),
                request.getJSONObject("answers"));
            case "asked" -> producers.asked(request.getString("group"), request.getIntValue("count"),
                request.getLongValue("wait_ms"));
            case "resume" -> producers.resume(cluster.address(), request.getString("topic"),
                request.getString("offset_msg_id"));
            case "consume" -> consumers.start(request);
            case "received" -> consumers.received(request.getString("group"), request.getIntValue("count"),
                request.getLongValue("wait_ms"));
            case "stop_consumer" -> consumers.stop(request.getString("group"));
            case "offsets" -> cluster.offsets(request.getString("group"), request.getString("topic"));
            case "queues" -> cluster.queues();
            case "timer" -> cluster.timer();
            default -> throw new IllegalArgumentException("unknown request: " + request);
        };
    }

    /**
     * Shuts everything down but the name server. RocketMQ waits at its shutdown, one after the other, for threads which
     * sleep out their seconds; they are woken.
     */
    private void stop() throws InterruptedException {
        Thread hurry = new Thread(() -> {
            while (true) {
                for (Thread thread : Thread.getAllStackTraces().keySet()) {
                    if (SLEEPERS.stream().anyMatch(thread.getName()::startsWith)) {
                        thread.interrupt();
                    }
                }
                try {
                    Thread.sleep(50);
                } catch (InterruptedException done) {
                    return;
                }
            }
        }, "hurry");
        hurry.start();
        try {
            producers.shutdown();
            consumers.shutdown();
            cluster.stop();
        } finally {
            hurry.interrupt();
            hurry.join();
        }
    }
}
