package mq.clients;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * RocketMQ's own clients, told what to do by lines: each line of standard input is a JSON object whose member
 * {@code do} names a request, and is answered by one line, {@code answer} or {@code failure}.
 *
 * <p>Arguments: the name servers' address, and, where access is controlled, an access key and a secret key.
 */
public final class Clients {
    private final Producers producers;
    private final Consumers consumers;
    private final Pulling pulling;
    private final Admin admin;

    private Clients(Connecting connecting) {
        producers = new Producers(connecting);
        consumers = new Consumers(connecting);
        pulling = new Pulling(connecting);
        admin = new Admin(connecting);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        // What a library prints does not belong among the answers.
        System.setOut(System.err);
        Connecting connecting = arguments.length > 1
            ? new Connecting(arguments[0], arguments[1], arguments[2]) : new Connecting(arguments[0], null, null);
        Clients clients = new Clients(connecting);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("answer", clients.serve(JSON.parseObject(line)));
            } catch (Exception failed) {
                answer.put("failure", text(failed));
                answer.put("code", code(failed));
            }
            answers.write((JSON.toJSONString(answer, JSONWriter.Feature.WriteNulls) + "\n")
                .getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
        // Threads of the library outlive its shutdown for seconds.
        Runtime.getRuntime().halt(0);
    }

    private Object serve(JSONObject request) throws Exception {
        String verb = request.getString("do");
        return switch (verb.substring(0, Math.max(0, verb.indexOf('.')))) {
            case "producer" -> producers.serve(verb.substring(9), request);
            case "consumer" -> consumers.serve(verb.substring(9), request);
            case "pull" -> pulling.serve(verb.substring(5), request);
            case "admin" -> admin.serve(verb.substring(6), request);
            default -> throw new IllegalArgumentException("unknown request: " + verb);
        };
    }

    private static String text(Throwable failed) {
        StringBuilder text = new StringBuilder(failed.toString());
        for (Throwable cause = failed.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" <- ").append(cause);
        }
        return text.toString();
    }

    /** The response code behind a failure, or null. */
    private static Integer code(Throwable failed) {
        for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException refused) {
                return refused.getResponseCode();
            }
            if (cause instanceof MQClientException refused && refused.getResponseCode() >= 0) {
                return refused.getResponseCode();
            }
        }
        return null;
    }
}
