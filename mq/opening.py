"""mq.open: the broker of a directory, or of a cluster, and the options of each.

The options stand in Options and RemoteOptions, with their defaults; the overloads say the same to editors and
type checkers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from mq.api.broker import Broker
from mq.broker.local import LocalBroker
from mq.broker.options import Options, known_options, options_signature
from mq.uninterrupted import uninterrupted

if TYPE_CHECKING:
    import ssl

__all__ = ["RemoteOptions", "open"]

SCHEME = "rocketmq://"
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteOptions:
    """What mq.open takes for a cluster."""

    access_key: str | None = None
    secret_key: str | None = None
    tls: bool | ssl.SSLContext = False
    namespace: str = ""
    timeout: float = 3.0


@overload
def open(  # noqa: A001 - mq.open is the API
    target: str | os.PathLike[str],
    *,
    flush: Literal["async", "sync"] = "async",
    replicas: int = 0,
    flush_interval: float | None = None,
    commitlog_file_size: int | None = None,
    queue_file_units: int | None = None,
    index_slot_count: int | None = None,
    index_unit_count: int | None = None,
    retention_hours: float | None = None,
    disk_ratio_max: float | None = None,
    auto_create_topics: bool = True,
    default_queue_count: int = 4,
    message_size_max: int = 4 << 20,
    reserve_size: int = 1 << 30,
    message_delay_level: str | None = None,
    timer_precision_ms: int | None = None,
    timer_max_delay_ms: int = 259_200_000,
    transaction_timeout: float | None = None,
    transaction_check_interval: float | None = None,
    transaction_check_max: int | None = None,
    duties_lease: float = 10.0,
    queue_lease: float = 30.0,
    change_settings: bool = False,
    enable_consume_queue_ext: bool = False,
    consume_queue_ext_file_size: int | None = None,
    read_only: bool = False,
    create: bool = True,
    duties: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> LocalBroker: ...
@overload
def open(  # noqa: A001 - mq.open is the API
    target: str,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    tls: bool | ssl.SSLContext = False,
    namespace: str = "",
    timeout: float = 3.0,
) -> Broker: ...
def open(target: str | os.PathLike[str], **options: Any) -> Broker:  # noqa: A001 - as above
    """Open a directory, which is made on first use; or a cluster, as "rocketmq://host:port;host:port".

    Options of a directory. Of those with None as default, a new directory has the value in parentheses.

    For this process:
    flush: "async" (a send returns at once, the leader flushes), or "sync" (it waits until the disk has it).
    replicas: with flush="sync", how many followers a send waits for, too (see docs/standby.md). Its status is
    SLAVE_NOT_AVAILABLE where there are not as many, FLUSH_SLAVE_TIMEOUT after 3 s; it is stored all the same.
    auto_create_topics: whether the first message makes its topic. default_queue_count: with so many queues.
    message_size_max: bytes of a body, or of a batch.
    reserve_size: bytes of the disk to hold beyond the log's end, at most commitlog_file_size and an eighth of
    what is free; given back after ten seconds without a send, and when the directory is closed.
    timer_max_delay_ms: how far ahead a message may be due, in ms.
    queue_lease, duties_lease: seconds after which a stopped process loses its queues, and the leadership.
    enable_consume_queue_ext: store with each message which SQL92 consumers want it.
    read_only: write nothing, and consume nothing. create: make the directory. duties: take part in electing
    the leader, which flushes, delivers what was delayed, and deletes what is old.
    progress: called with (what, done, total) while a directory is recovered.
    change_settings: have the options of the store, below, changed where the directory has others.

    Of the store, for all processes:
    retention_hours: how long messages are kept (72). disk_ratio_max: how full the disk may be, from 0 to 1,
    before the oldest go early (1: never).
    flush_interval: seconds between two flushes (0.5).
    message_delay_level: the delays of the levels, as RocketMQ writes them ("1s 5s ... 2h").
    timer_precision_ms: ms of a slot of the timer wheel (1000).
    transaction_timeout: seconds until an undecided transaction is checked (6). transaction_check_interval:
    seconds between two checks (30). transaction_check_max: how many there are (15).

    Of the files, fixed when the directory is made: another value later raises ConfigMismatch.
    commitlog_file_size: bytes of a file of the log (1 GiB). queue_file_units: messages of a file of a queue
    (300,000). index_slot_count, index_unit_count: of a file of the index (5,000,000 and 20,000,000).
    consume_queue_ext_file_size: bytes of a file of extensions (48 MiB).

    Options of a cluster.

    access_key, secret_key: sign each request. tls: whether, or with which ssl.SSLContext, to encrypt.
    namespace: put before the names of topics and groups. timeout: seconds for each request.

    Raises TypeError for another option, TypeError and ValueError for a value out of range, ConfigMismatch,
    StoreLocked, StoreCorrupted, VersionMismatch, and ValueError for what is no address. A cluster is
    connected to when it is first used.
    """
    if isinstance(target, str) and target.startswith(SCHEME):
        given = RemoteOptions(**known_options(options, RemoteOptions, "mq.open for a cluster"))
        return _open_cluster(target.removeprefix(SCHEME), given)
    if URL.match(os.fsdecode(target)):
        raise ValueError(f"{target!r} is neither a directory nor a cluster: that is rocketmq://host:port")
    return uninterrupted(lambda: LocalBroker(target, **options), LocalBroker.close)


def _open_cluster(name_servers: str, options: RemoteOptions) -> Broker:
    # Loaded when it is first used: a program that opens directories alone needs none of it.
    from mq.remoting.client.broker import RemoteBroker
    from mq.remoting.client.connections.options import RemotingOptions, tls_context
    from mq.remoting.codec.signature import Credentials

    if (options.access_key is None) != (options.secret_key is None):
        raise ValueError("access_key and secret_key belong together: give both, or none")
    credentials = None
    if options.access_key is not None and options.secret_key is not None:
        credentials = Credentials(options.access_key, options.secret_key)
    remoting = RemotingOptions(timeout=options.timeout, tls=tls_context(options.tls), credentials=credentials)
    return uninterrupted(lambda: RemoteBroker(name_servers, remoting, options.namespace), RemoteBroker.close)


# All options, as help() shows them.
vars(open)["__signature__"] = options_signature("target", Options, RemoteOptions, returns="LocalBroker")
