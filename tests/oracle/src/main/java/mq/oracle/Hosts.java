package mq.oracle;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;

/** Hosts as text: {@code 10.0.0.5:10911}, {@code [2001:db8::2]:10911}. Names are not resolved. */
final class Hosts {
    private Hosts() {
    }

    static InetSocketAddress parse(String text) throws UnknownHostException {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(text.substring(colon + 1)));
    }

    static String format(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        String text = address.getAddress().getHostAddress();
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + address.getPort();
    }
}
