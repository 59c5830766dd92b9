package mq.speed;

import java.io.PrintStream;

/**
 * RocketMQ as a peer of the speed benchmark. Each verb is a process of its own:
 *
 * <pre>
 * serve DIRECTORY                   name server and broker on loopback; prints the name server's address,
 *                                   and ends with its standard input
 * fill NAMESRV COUNT SIZE           stores COUNT messages of SIZE bytes
 * drain NAMESRV COUNT               a push consumer takes COUNT messages, the first fifth to warm up;
 *                                   prints how many a second of the rest
 * listen NAMESRV COUNT              a push consumer that prints "ready", and after COUNT messages one line
 *                                   with the nanoseconds that each took from its send
 * send NAMESRV COUNT SIZE PAUSE     sends COUNT messages one by one, each PAUSE nanoseconds after the last
 * </pre>
 */
public final class Peer {
    /** The only thing on standard output are answers; what the library says goes to standard error. */
    private static final PrintStream ANSWERS = System.out;

    private Peer() {
    }

    static void answer(Object what) {
        ANSWERS.println(what);
        ANSWERS.flush();
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        switch (arguments[0]) {
            case "serve" -> Server.run(arguments[1]);
            case "fill" -> Sender.fill(arguments[1], Integer.parseInt(arguments[2]), Integer.parseInt(arguments[3]));
            case "drain" -> Consumer.drain(arguments[1], Integer.parseInt(arguments[2]));
            case "listen" -> Consumer.listen(arguments[1], Integer.parseInt(arguments[2]));
            case "send" -> Sender.send(
                    arguments[1],
                    Integer.parseInt(arguments[2]),
                    Integer.parseInt(arguments[3]),
                    Long.parseLong(arguments[4]));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        // Threads of the library outlive its shutdown for seconds.
        Runtime.getRuntime().halt(0);
    }
}
