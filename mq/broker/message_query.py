"""Finding messages by id and by key.

A message has two ids: the offset id names its place in the log, the unique id came with it and is a key of
the index like its other keys. The index is brought up to date first, so that every message sent before is
seen; where there is no space for that, what it lacks is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mq.api.queries import check_query
from mq.broker.delay.recall import MARKS
from mq.broker.topics.config import TopicSettings
from mq.errors import MessageNotFound, StoreFull, TopicNotFound
from mq.message import MessageExt
from mq.names import check_topic
from mq.properties import value_of
from mq.store.directory.settings import STORE_PORT
from mq.store.queue.reader import Reader
from mq.store.store import Store

__all__ = ["Finder"]

LOOPBACK = bytes([127, 0, 0, 1])
PORT = STORE_PORT.to_bytes(4, "big")


class Finder:
    """Finds messages of one store. topics() are the settings of all topics by name."""

    def __init__(
        self, store: Store, reader: Reader, topics: Callable[[], Mapping[str, TopicSettings]]
    ) -> None:
        self._store = store
        self._reader = reader
        self._topics = topics

    def message(self, msg_id: str) -> MessageExt:
        """See LocalBroker.message."""
        self._store.live()
        if not isinstance(msg_id, str):
            raise TypeError(f"a message id is a str, not {type(msg_id).__name__}")
        log_offset = _log_offset(msg_id)
        if log_offset is not None:
            found = self._reader.record(log_offset)
            if found is not None and found.log_offset == log_offset and found.offset_msg_id == msg_id.upper():
                return found
        if 1 <= len(msg_id) <= 256 and msg_id.isprintable():
            unindexed = self._unindexed(msg_id)
            newest: MessageExt | None = None
            for topic in list(self._topics()):  # which may grow meanwhile
                for candidate in self._candidates(topic, msg_id, unindexed):
                    # What recalls a message has its id, and is none.
                    if candidate.msg_id == msg_id and value_of(candidate.encoded, MARKS) is None:
                        if newest is None or candidate.log_offset > newest.log_offset:
                            newest = candidate
                        break
            if newest is not None:
                return newest
        if log_offset is not None and _is_of_another(msg_id, self._store.settings.addresses):
            raise MessageNotFound(
                msg_id,
                f"no message of this store has the id {msg_id!r}: by its first bytes, another store gave it",
            )
        raise MessageNotFound(msg_id)

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int | None
    ) -> list[MessageExt]:
        """See LocalBroker.query."""
        check_topic(topic)
        if topic not in self._topics():
            raise TopicNotFound(topic)
        check_query(key, count_max, begin_ms, end_ms)
        unindexed = self._unindexed(key)
        found: list[MessageExt] = []
        for candidate in self._candidates(topic, key, unindexed, begin_ms, end_ms):
            if _has(candidate, key) and _within(candidate, begin_ms, end_ms):
                found.append(candidate)
                if len(found) == count_max:
                    break
        return found

    def of_unique_id(self, topic: str, unique_id: str) -> Iterator[MessageExt]:
        """All messages of a topic, whichever it is, that have this unique id, the newest first."""
        unindexed = self._unindexed(unique_id)
        if topic in self._topics():
            for candidate in self._candidates(topic, unique_id, unindexed):
                if candidate.msg_id == unique_id:
                    yield candidate

    def _unindexed(self, key: str) -> list[MessageExt]:
        """Bring the index up to date. The messages of a key that it lacks all the same, the newest first."""
        if self._store.read_only:
            return []
        try:
            self._store.bring_index_up()
        except StoreFull:
            return [each for each in self._reader.unindexed() if _has(each, key)][::-1]
        return []

    def _candidates(
        self, topic: str, key: str, unindexed: list[MessageExt], begin_ms: int = 0, end_ms: int | None = None
    ) -> Iterator[MessageExt]:
        """The messages of a topic that may have a key, the newest first. unindexed: see _unindexed()."""
        visible = self._store.visible_end()
        settings = self._topics().get(topic)
        if settings is None:
            return  # It was deleted meanwhile, with all that was in it.
        begin = settings.begin_log_offset
        yield from (each for each in unindexed if each.topic == topic and each.log_offset >= begin)
        # The last of the index may be of a part that it has not got to the end of.
        end = min([visible, *(each.log_offset for each in unindexed)])
        for log_offset in self._store.index.find(topic, key, begin_ms, end_ms):
            if log_offset >= end:
                continue
            if log_offset < begin:
                continue  # of a topic of this name that was deleted
            message = self._reader.record(log_offset)
            if message is not None and message.log_offset == log_offset and message.topic == topic:
                yield message


def _is_of_another(msg_id: str, addresses: set[bytes]) -> bool:
    """Whether mq gave an offset id, in a store whose records carry none of these addresses. Older versions
    wrote 127.0.0.1 in all of them."""
    host = bytes.fromhex(msg_id)[:-8]
    ours = {LOOPBACK, *addresses}
    return host[:1] == LOOPBACK[:1] and host[4:] == PORT and host[:4] not in ours


def _has(message: MessageExt, key: str) -> bool:
    return key in message.keys or key == message.msg_id


def _within(message: MessageExt, begin_ms: int, end_ms: int | None) -> bool:
    return message.store_time_ms >= begin_ms and (end_ms is None or message.store_time_ms <= end_ms)


def _log_offset(msg_id: str) -> int | None:
    """The place in the log that an offset id names; None if it cannot be one."""
    if len(msg_id) not in (32, 56):
        return None
    try:
        offset = int.from_bytes(bytes.fromhex(msg_id)[-8:], "big", signed=True)
    except ValueError:
        return None
    return offset if offset >= 0 else None
