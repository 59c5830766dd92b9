package mq.oracle;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The command line: {@code write DIR SPEC.json}, {@code read DIR CONFIG.json} and {@code wire DIR TASKS.json}, which
 * leaves the directory alone.
 *
 * <p>Answers are JSON objects on standard output, one a line; whatever the library logs goes to standard error.
 * The process ends by halting, so that no thread of the library outlives the answer.
 */
public final class Oracle {
    private Oracle() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        if (arguments.length != 3) {
            System.err.println("usage: oracle (write DIR SPEC.json | read DIR CONFIG.json | wire DIR TASKS.json)");
            Runtime.getRuntime().halt(2);
        }
        int status = 1;
        try (Lines lines = new Lines(answers)) {
            run(arguments[0], Path.of(arguments[1]), Path.of(arguments[2]), lines);
            status = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.err.flush();
        Runtime.getRuntime().halt(status);
    }

    private static void run(String command, Path directory, Path request, Lines lines) throws Exception {
        JSONObject spec = JSON.parseObject(Files.readString(request, StandardCharsets.UTF_8));
        switch (command) {
            case "write" -> new Writer(directory, spec, lines).run();
            case "read" -> new Reader(directory, spec, lines).run();
            case "wire" -> new Wire(lines).run(spec.getJSONArray("tasks"));
            default -> throw new IllegalArgumentException("unknown command: " + command);
        }
    }
}
