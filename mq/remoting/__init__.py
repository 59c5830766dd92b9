"""RocketMQ's Remoting wire: the codec both ends share, the client of a cluster, the server of a store, and
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
    """Have programs in any language use a broker object by RocketMQ's own clients, until close().

    They find a name server at server.name_server and a broker at server.address; 0 is a free port. Nobody is
    let in but from this machine, unless host says otherwise.

    ha_port: replicas follow the log of a directory there: mq's (see replicate), and RocketMQ's slaves. It has
    no encryption and asks for no signature: a program that reaches that port reads all messages.

    access_keys: {access_key: secret_key} has every request signed; {access_key: (secret_key, {topic or group:
    "PUB|SUB"})} grants no more than that. tls: an ssl.SSLContext, with which every connection is encrypted;
    True makes a certificate that is signed by itself. shares_ports: several processes that serve one
    directory listen on the same ports, and the system shares out the connections.

    limits: connections, connections_per_address, frame_size, in_flight_size, unsent_size (bytes),
    idle_seconds, held_pulls; see mq.remoting.server.options.Limits.

    Raises AddressInUse (an OSError), OSError, ValueError, TypeError; BrokerClosed.
    """
    # Loaded when it is first used: nothing of mq listens unless it is told to.
    from mq.remoting.server.access import Access
    from mq.remoting.server.certificate import server_context
    from mq.remoting.server.endpoint import Endpoint
    from mq.remoting.server.options import Limits
    from mq.remoting.server.server import Server

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
    """Follow the HA port of a master, "host:port", into a directory, which is made on first use.

    The master is one of RocketMQ's (4.9 or 5.x, with the default HA service), or a store served with
    ha_port. The directory gets a log that is the same byte for byte, queues and index of its own, and the
    master's topics, groups, and offsets. Readers may open it meanwhile (read_only=True); sends into it are
    refused. It follows until close(), over every end of the master.

    broker: the master's own address, for topics and offsets; by default the port before the HA port, as
    RocketMQ and mq have it. False: follow the log alone.
    flush: "sync" acknowledges only what is on disk here. commitlog_file_size: bytes of a file of the master's
    log, where the master cannot be asked. access_key, secret_key, tls: for requests to the broker.
    timeout: seconds for each request, and for the first word of the master: what forbids to follow is raised
    here if it is found by then. Later it is in replica.error.

    Raises ReplicaBehind, ReplicaDiverged, ConfigMismatch; StoreLocked where the directory is a master's that
    is open, or another process follows into it; RemotingError for a new directory, where the sizes of the
    master's files cannot be asked for.
    """
    from mq.remoting.replica.replica import Replica, following

    def begun() -> Replica:
        return following(
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
