package mq.oracle;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** Answers as JSON lines in UTF-8; the order of the members is the one in which they were put. */
final class Lines implements AutoCloseable {
    private final PrintStream stream;

    Lines(PrintStream stream) {
        this.stream = stream;
    }

    void print(Map<String, ?> line) {
        byte[] text = JSON.toJSONString(line, JSONWriter.Feature.WriteNulls).getBytes(StandardCharsets.UTF_8);
        stream.write(text, 0, text.length);
        stream.write('\n');
    }

    void flush() {
        stream.flush();
    }

    @Override
    public void close() {
        flush();
    }
}
