"""What a broker answers: queues by name, and what became of a send or a read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from mq.api.recall import RecallHandle
from mq.fastpath import PullFields, SendFields, Signature, added_state, bind
from mq.message import MessageExt

__all__ = ["MessageQueue", "PullResult", "PullStatus", "SendResult", "SendStatus"]


class MessageQueue(NamedTuple):
    """One queue of a topic, by name: a value that can be sorted, hashed, and sent elsewhere."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(Enum):
    """How safe a message is that was stored. Whatever it says, the message is in the log."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class PullStatus(Enum):
    """What a read found."""

    FOUND = 0
    NO_NEW_MESSAGE = 19
    NO_MATCHED_MESSAGE = 20
    OFFSET_ILLEGAL = 21


Place = tuple[bytes, "int | Sequence[int]"]


class SendResult(SendFields):
    """Where a message, or a batch, was stored; taken out of the receipt when it is asked for.

    `ids` is the unique id, `place` the store host (address and port as in a record) and the log offset.
    Of a batch, `ids` are all of them, or a function that makes them; `place` has all log offsets, or is a
    function that makes it. `out_ms` is the slot of one that waits for its time.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _ids: str | Sequence[str] | Callable[[], Sequence[str]]
        _place: Place | Callable[[], Place]

        @property
        def status(self) -> SendStatus: ...
        @property
        def queue(self) -> MessageQueue: ...

    def __init__(
        self,
        status: SendStatus,
        queue: MessageQueue,
        queue_offset: int,
        ids: str | Sequence[str] | Callable[[], Sequence[str]],
        place: Place | Callable[[], Place],
        transaction_id: str | None = None,
        out_ms: int = 0,
    ) -> None: ...

    __signature__ = Signature(__init__)
    if not TYPE_CHECKING:
        del __init__  # It is in C.

    @property
    def msg_ids(self) -> tuple[str, ...]:
        """One unique id per message, in order."""
        ids = self._ids
        if isinstance(ids, str):
            return (ids,)
        if callable(ids):
            self._ids = ids = tuple(ids())
        return tuple(ids)

    @property
    def msg_id(self) -> str:
        """The unique id; of a batch all of them, with commas between, as RocketMQ has it."""
        ids = self._ids
        return ids if isinstance(ids, str) else ",".join(self.msg_ids)

    @property
    def offset_msg_id(self) -> str:
        """The offset id; of a batch all of them, with commas between."""
        host, offsets = self._placed()
        return ",".join((host + offset.to_bytes(8, "big")).hex().upper() for offset in offsets)

    @property
    def recall_handle(self) -> str | None:
        """For broker.recall; None of a message that does not wait for a time of its own."""
        if not self._out_ms:
            return None
        queue = self.queue
        return str(RecallHandle(queue.topic, queue.broker_name, self._out_ms, self.msg_id))

    def split(self) -> list[SendResult]:
        """One result for each message of a batch."""
        host, offsets = self._placed()
        return [
            SendResult(self.status, self.queue, self.queue_offset + at, msg_id, (host, offset))
            for at, (msg_id, offset) in enumerate(zip(self.msg_ids, offsets, strict=True))
        ]

    def _placed(self) -> tuple[bytes, Sequence[int]]:
        if callable(self._place):
            self._place = self._place()
        host, offsets = self._place
        return host, ((offsets,) if isinstance(offsets, int) else offsets)

    def __reduce__(self) -> tuple[Any, ...]:
        self._placed()
        ids = self._ids if isinstance(self._ids, str) else self.msg_ids
        host, offsets = self._placed()
        place = host, (offsets[0] if len(offsets) == 1 else tuple(offsets))
        fields = self.status, self.queue, self.queue_offset, ids, place, self.transaction_id, self._out_ms
        return type(self).restored, fields, added_state(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SendResult):
            return NotImplemented
        return self._told() == other._told()

    def __hash__(self) -> int:
        return hash(self._told())

    def _told(self) -> tuple[Any, ...]:
        return (
            self.status,
            self.queue,
            self.queue_offset,
            self.msg_id,
            self.offset_msg_id,
            self.transaction_id,
        )

    def __repr__(self) -> str:
        return (
            f"SendResult({self.status.name}, {self.msg_id}, {self.queue}, queue_offset={self.queue_offset})"
        )


class PullResult(PullFields):
    """What one read of a queue gave: go on at next_offset, whatever the status."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def status(self) -> PullStatus: ...
        @property
        def messages(self) -> Sequence[MessageExt]: ...

    def __init__(
        self,
        status: PullStatus,
        messages: Sequence[MessageExt],
        next_offset: int,
        min_offset: int,
        max_offset: int,
    ) -> None: ...

    __signature__ = Signature(__init__)
    if not TYPE_CHECKING:
        del __init__  # It is in C.

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self.status, self.messages, self.next_offset, self.min_offset, self.max_offset
        return type(self).restored, fields, added_state(self)

    def __repr__(self) -> str:
        return (
            f"PullResult({self.status.name}, {len(self.messages)} messages, next_offset={self.next_offset},"
            f" min_offset={self.min_offset}, max_offset={self.max_offset})"
        )


bind("send_result", SendResult)
bind("send_ok", SendStatus.SEND_OK)
bind("pull_result", PullResult)
