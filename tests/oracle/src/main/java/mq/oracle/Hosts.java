package mq.oracle;

import com.google.common.net.InetAddresses;
import java.net.InetSocketAddress;
import java.net.SocketAddress;

/** Hosts as text: {@code 10.0.0.5:10911}, {@code [2001:db8::2]:10911}. */
final class Hosts {
    private Hosts() {
    }

    static InetSocketAddress parse(String text) {
        int colon = text.lastIndexOf(':');
        String address = text.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddresses.forString(address), Integer.parseInt(text.substring(colon + 1)));
    }

    static String format(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        String text = InetAddresses.toAddrString(address.getAddress());
        return (text.contains(":") ? "[" + text + "]" : text) + ":" + address.getPort();
    }
}
