package mq.watched;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

/**
 * Runs the main method of another class, and halts when standard input ends: so nothing outlives the process that
 * started it, however that one died.
 */
public final class Watched {
    private Watched() {
    }

    public static void main(String[] arguments) throws ReflectiveOperationException {
        Thread watch = new Thread(Watched::haltAtEndOfInput, "watch");
        watch.setDaemon(true);
        watch.start();
        String[] rest = Arrays.copyOfRange(arguments, 1, arguments.length);
        try {
            Class.forName(arguments[0]).getMethod("main", String[].class).invoke(null, (Object) rest);
        } catch (InvocationTargetException failed) {
            failed.getCause().printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void haltAtEndOfInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException gone) {
            // As good as the end.
        }
        Runtime.getRuntime().halt(137);
    }
}
