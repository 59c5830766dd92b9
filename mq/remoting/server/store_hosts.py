"""Translate the store host in records and offset ids, which clients use as the broker's address.

The records of a directory have a made-up address (docs/files.md). A client connects to the address in an
offset id to fetch the message. So records that are sent out get the address that the client has connected to,
and an offset id from a client is looked up under the addresses that were replaced.

Of a record: the store host is at byte 64 where both addresses are IPv4, and records of mq end in a checksum
of all bytes before it, as a property.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from socket import AF_INET, inet_pton

from mq.api.broker import Broker
from mq.errors import MessageNotFound, MQError
from mq.message import MessageExt
from mq.store.log.records import with_store_host

__all__ = ["StoreHosts", "packed"]

HOST_AT, HOST_END = 64, 72
ORIGIN_NAME = b"ORIGIN_MESSAGE_ID\x01"  # and the end of DLQ_ORIGIN_MESSAGE_ID
KNOWN_MAX = 64  # addresses of one store
OFFSET_ID_SIZE = 32


def packed(host: str, port: int) -> bytes | None:
    """An address in the format of a record; None if it is not IPv4."""
    try:
        return inet_pton(AF_INET, host) + port.to_bytes(4, "big")
    except OSError:
        return None


def _with_origin(message: MessageExt, host: bytes) -> bytes:
    """The record with this address in its origin's offset ids; the checksum is not updated."""
    record = message.record
    at = len(record) - len(message.encoded)
    old, new = (ORIGIN_NAME + each.hex().upper().encode() for each in (record[HOST_AT:HOST_END], host))
    return record[:at] + record[at:].replace(old, new)


class StoreHosts:
    """The store hosts in the records of one broker, as far as they are known."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[bytes, None] = {}

    def records(self, messages: Sequence[MessageExt], host: bytes | None) -> bytes:
        """The concatenated records of messages, for a client that has connected to `host`."""
        records = [message.record for message in messages]
        joined = b"".join(records)
        if host is None:
            return joined
        for own in {record[HOST_AT:HOST_END] for record in records}:
            self._note(own)
        if ORIGIN_NAME in joined:
            joined = b"".join([_with_origin(message, host) for message in messages])
        return with_store_host(joined, host)

    def offset_id(self, offset_msg_id: str, host: bytes | None) -> str:
        """The offset id for this client; for a batch all of them, separated by commas."""
        if host is None:
            return offset_msg_id
        shown = host.hex().upper()
        out = []
        for each in offset_msg_id.split(","):
            if len(each) != OFFSET_ID_SIZE:
                return offset_msg_id
            self._note(bytes.fromhex(each[:16]))
            out.append(shown + each[16:])
        return ",".join(out)

    def message(self, log_offset: int, unique_id: str | None = None) -> MessageExt:
        """The message whose record begins at a log offset. Raises MessageNotFound."""
        if log_offset >= 0:
            if not self._known:
                self._discover()
            for host in list(self._known):
                found = self._look(host.hex() + log_offset.to_bytes(8, "big").hex(), log_offset)
                if found is not None:
                    return found
            if unique_id:
                found = self._look(unique_id, log_offset)
                if found is not None:
                    return found
        raise MessageNotFound(
            str(log_offset),
            f"look message by offset failed, {log_offset}: no message is stored there, or retention took it",
        )

    def _look(self, msg_id: str, log_offset: int) -> MessageExt | None:
        try:
            found = self._broker.message(msg_id.upper())
        except MQError:
            return None
        return found if found.log_offset == log_offset else None

    def _note(self, host: bytes) -> None:
        if host not in self._known and len(self._known) < KNOWN_MAX:
            self._known[host] = None

    def _discover(self) -> None:
        """Learn the store host from any message."""
        for topic in self._broker.topics():
            with suppress(MQError):
                if self._look_in(topic):
                    return

    def _look_in(self, topic: str) -> bool:
        for queue in self._broker.readable(topic):
            for message in self._broker.puller(queue)(self._broker.min_offset(queue), 1, 1, None, 0).messages:
                self._note(message.record[HOST_AT:HOST_END])
                return True
        return False
