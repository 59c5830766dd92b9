package mq.clients;

import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's command line tool for operators, one command after the other in this process. */
final class MqAdmin extends MQAdminStartup {
    private MqAdmin() {
    }

    static String run(String[] arguments, RPCHook signing) {
        // A command keeps the clients of its first run, which are closed by then.
        SUB_COMMANDS.clear();
        try (Printed printed = new Printed()) {
            main0(arguments, signing);
            return printed.text();
        }
    }
}
