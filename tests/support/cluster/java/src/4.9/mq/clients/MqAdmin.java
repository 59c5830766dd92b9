package mq.clients;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's command line tool for operators, one command after the other in this process. */
final class MqAdmin extends MQAdminStartup {
    private MqAdmin() {
    }

    static String run(String[] arguments, RPCHook signing) throws IOException {
        // The tool reads how to log from here, and nowhere else.
        Path logging = Path.of(System.getProperty("rocketmq.home.dir"), "conf", "logback_tools.xml");
        if (!Files.exists(logging)) {
            Files.createDirectories(logging.getParent());
            Files.copy(Path.of(URI.create(System.getProperty("logback.configurationFile"))), logging);
        }
        // A command keeps the clients of its first run, which are closed by then.
        subCommandList.clear();
        try (Printed printed = new Printed()) {
            main0(arguments, signing);
            return printed.text();
        }
    }
}
