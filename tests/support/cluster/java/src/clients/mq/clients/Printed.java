package mq.clients;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** What a program prints: the text on standard output, and on standard error the first exception. */
final class Printed implements AutoCloseable {
    private final PrintStream out = System.out;
    private final PrintStream err = System.err;
    private final ByteArrayOutputStream text = new ByteArrayOutputStream();
    private Throwable failure;

    Printed() {
        System.setOut(new PrintStream(text, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8) {
            // Stack traces are printed so; what is logged comes as bytes.
            @Override
            public void println(Object line) {
                if (failure == null && line instanceof Throwable thrown) {
                    failure = thrown;
                }
                super.println(line);
            }
        });
    }

    /** The text; throws what the program caught and printed. */
    String text() {
        String printed = text.toString(StandardCharsets.UTF_8);
        if (failure != null) {
            throw new IllegalStateException(printed, failure);
        }
        return printed;
    }

    @Override
    public void close() {
        System.setOut(out);
        System.setErr(err);
    }
}
