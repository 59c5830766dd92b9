"""RocketMQ's Remoting wire: the codec both ends share, and the client of a cluster."""
