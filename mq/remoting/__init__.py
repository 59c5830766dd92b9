"""RocketMQ's Remoting protocol: the shared codec, the client of a cluster, the server of a store,
replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from mq.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import os
    import ssl

    from mq.api.broker import Broker
    from mq.remoting.replica.replica import Replica
    from mq.remoting.server.access import AccessKeys
    from mq.remoting.server.server import Server

__all__ = ["replicate", "serve"]


def serve(
    broker: Broker,
    host: str = "127.0.0.1",
    port: int = 10911,
    namesrv_port: int = 9876,
    *,
    ha_port: int | None = None,
    access_keys: AccessKeys | None = None,
    tls: bool | ssl.SSLContext | None = None,
    shares_ports: bool = False,
    **limits: Any,
) -> Server:
    """Serve a broker object to RocketMQ's clients in any language, until close().

    Clients use the name server at server.name_server and the broker at server.address; port 0 picks a free
    port. The default host accepts connections from this machine only.

    ha_port: the port at which replicas follow the log of a directory: mq's (see replicate) and RocketMQ's
    slaves. It has no encryption and no authentication: any program that reaches the port can read all
    messages.

    access_keys: {access_key: secret_key} requires a signature on every request; {access_key: (secret_key,
    {topic or group: "PUB|SUB"})} grants only these rights. tls: an ssl.SSLContext that encrypts every
    connection; True makes a self-signed certificate. shares_ports: several processes that serve one directory
    may listen on the same ports, and the kernel distributes the connections.

    limits: connections, connections_per_address, frame_size, in_flight_size, received_total, unsent_size
    (bytes), idle_seconds, held_pulls, held_pulls_total; see mq.remoting.server.options.Limits.

    Raises AddressInUse (an OSError), OSError, ValueError, TypeError; BrokerClosed; NotSupported for the
    broker object of a cluster.
    """
    # Imported here, so that `import mq` does not load the server.
    from mq.remoting.server.access import Access
    from mq.remoting.server.endpoint import Endpoint
    from mq.remoting.server.options import Limits
    from mq.remoting.server.server import Server
    from mq.remoting.server.transport.certificate import server_context

    _refuse_cluster(broker)

    def listening() -> Server:
        endpoint = Endpoint(
            broker,
            host,
            port,
            namesrv_port,
            limits=Limits(**limits),
            tls=server_context(tls, host),
            access=None if access_keys is None else Access(access_keys),
            shares_ports=shares_ports,
            ha_port=ha_port,
        )
        return Server(endpoint)

    return uninterrupted(listening, Server.close)


def _refuse_cluster(broker: Broker) -> None:
    """A cluster's queues lie on brokers of several names; clients of a server find only one."""
    from mq.errors import NotSupported
    from mq.remoting.client.broker import RemoteBroker

    if isinstance(broker, RemoteBroker):
        raise NotSupported(
            f"serve needs a store directory: {broker!r} is a cluster, with name servers of its own"
        )


def replicate(
    address: str,
    directory: str | os.PathLike[str],
    *,
    broker: str | Literal[False] | None = None,
    flush: Literal["async", "sync"] = "async",
    commitlog_file_size: int | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    tls: bool | ssl.SSLContext = False,
    timeout: float = 3.0,
) -> Replica:
    """Replicate a master into a directory, which is created on first use. address: "host:port" of its HA
    port.

    The master is a RocketMQ broker (4.9 or 5.x, with the default HA service), or a store served with ha_port.
    The directory gets a byte-for-byte copy of the log, its own queues and index, and the master's topics,
    groups and offsets. Other processes may open it with read_only=True; it refuses sends. The replica runs
    until close(), and reconnects whenever the master goes away.

    broker: the master's own address, for topics and offsets; by default the port before the HA port, as
    RocketMQ and mq have it. False: follow the log alone. flush: "sync" acknowledges only bytes that are on
    disk here. commitlog_file_size: the size of the master's log files, if the master cannot be asked.
    access_key, secret_key, tls: for requests to the broker. timeout: seconds for each request, and for the
    first data of the master. An error found by then is raised here; a later one is in replica.error.

    Raises ReplicaBehind, ReplicaDiverged, ConfigMismatch; StoreLocked if the directory is an open master, or
    another process replicates into it; RemotingError for a new directory if the master cannot be asked for
    its file sizes.
    """
    from mq.remoting.replica.replica import Replica, start_replica

    def begun() -> Replica:
        return start_replica(
            address,
            directory,
            broker=broker,
            flush=flush,
            commitlog_file_size=commitlog_file_size,
            access_key=access_key,
            secret_key=secret_key,
            tls=tls,
            timeout=timeout,
        )

    return uninterrupted(begun, Replica.close)
