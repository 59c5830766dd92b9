package mq.oracle;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.body.RegisterBrokerBody;

/**
 * What RocketMQ's classes of the wire make of bytes. Bytes are Base64 in both directions. Members of a task: {@code do},
 * one of the names below, and what it needs:
 *
 * <ul>
 * <li>{@code fields}: of {@code type}, a class of headers, its fields, with their types and whether each is required.
 * <li>{@code frame}: reads {@code bytes}, a whole frame, with {@code type} for its header, and writes it again.
 * <li>{@code body}: reads {@code bytes} as {@code type}, a class of bodies, and writes them again.
 * <li>{@code batch}: the same with the messages of a batch.
 * <li>{@code registration}: the same with a compressed registration of a broker of {@code version}.
 * <li>{@code sign}: the signature of {@code content} by {@code secret}.
 * </ul>
 */
final class Wire {
    private static final List<String> PACKAGES = List.of("", "header.", "header.namesrv.", "body.", "heartbeat.", "route.",
        "admin.", "subscription.");

    private final Lines lines;

    Wire(Lines lines) {
        this.lines = lines;
    }

    void run(JSONArray tasks) {
        for (int i = 0; i < tasks.size(); i++) {
            Map<String, Object> line = new LinkedHashMap<>();
            try {
                line.put("answer", answer(tasks.getJSONObject(i)));
            } catch (Throwable failure) {
                line.put("failure", failure.toString());
            }
            lines.print(line);
        }
    }

    private static Object answer(JSONObject task) throws Exception {
        return switch (task.getString("do")) {
            case "fields" -> fields(task.getString("type"));
            case "frame" -> frame(bytes(task), task.getString("type"));
            case "body" -> text(RemotingSerializable.encode(RemotingSerializable.decode(bytes(task),
                typeOf(task.getString("type")))));
            case "batch" -> batch(bytes(task));
            case "registration" -> registration(bytes(task), task.getIntValue("version"));
            case "sign" -> AclUtils.calSignature(Base64.getDecoder().decode(task.getString("content")),
                task.getString("secret"));
            default -> throw new IllegalArgumentException("unknown task: " + task);
        };
    }

    private static byte[] bytes(JSONObject task) {
        return Base64.getDecoder().decode(task.getString("bytes"));
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    private static Class<?> typeOf(String name) throws ClassNotFoundException {
        for (String inside : PACKAGES) {
            try {
                return Class.forName("org.apache.rocketmq.remoting.protocol." + inside + name);
            } catch (ClassNotFoundException elsewhere) {
                continue;
            }
        }
        return Class.forName("org.apache.rocketmq.common." + name);
    }

    private static Map<String, Object> fields(String name) throws ClassNotFoundException {
        Map<String, Object> found = new TreeMap<>();
        for (Class<?> type = typeOf(name); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !field.getName().startsWith("this")) {
                    found.put(field.getName(), List.of(field.getType().getSimpleName(),
                        field.isAnnotationPresent(CFNotNull.class)));
                }
            }
        }
        return found;
    }

    private static Map<String, Object> frame(byte[] bytes, String name) throws Exception {
        RemotingCommand read = RemotingCommand.decode(Arrays.copyOfRange(bytes, 4, bytes.length));
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("code", read.getCode());
        facts.put("language", read.getLanguage().name());
        facts.put("version", read.getVersion());
        facts.put("opaque", read.getOpaque());
        facts.put("flags", read.getFlag());
        facts.put("remark", read.getRemark());
        facts.put("fields", read.getExtFields());
        facts.put("body", text(read.getBody()));
        CommandCustomHeader header = null;
        if (name != null) {
            header = read.decodeCommandCustomHeader(typeOf(name).asSubclass(CommandCustomHeader.class));
        }
        for (SerializeType encoding : SerializeType.values()) {
            RemotingCommand made = RemotingCommand.createRequestCommand(read.getCode(), header);
            made.setLanguage(LanguageCode.PYTHON);
            made.setVersion(read.getVersion());
            made.setOpaque(read.getOpaque());
            made.setFlag(read.getFlag());
            made.setRemark(read.getRemark());
            made.setBody(read.getBody());
            made.setSerializeTypeCurrentRPC(encoding);
            ByteBuffer written = made.encode();
            byte[] whole = new byte[written.remaining()];
            written.get(whole);
            facts.put(encoding.name(), text(whole));
        }
        return facts;
    }

    private static String batch(byte[] bytes) throws Exception {
        return text(MessageDecoder.encodeMessages(MessageDecoder.decodeMessages(ByteBuffer.wrap(bytes))));
    }

    private static String registration(byte[] bytes, int version) throws IOException {
        MQVersion.Version speaks = MQVersion.value2Version(version);
        return text(RegisterBrokerBody.decode(bytes, true, speaks).encode(true));
    }
}
