"""Once: what a group has handled is not handled again.

A message comes again where a consumer died before it committed, or failed and was retried, or where the
message was sent twice. Once tells such a message from a fresh one by its key: the dedup key that it was sent
under, with its topic; else the unique id, which a message keeps through all its retries.

    once = mq.Once(broker, "billing")

    @consumer.subscribe("orders")
    def bill(message):
        with once(message) as fresh:
            if fresh:
                charge(message)

What the body has done is marked when it ends. One that raises leaves no mark, and the message is as fresh as
before; so does one whose process dies. Between the end of the body and the mark there is a moment: what the
body does in another system can be done twice by a death just then, and be seen there by the same key.
"""

from __future__ import annotations

from types import TracebackType

from mq.api.broker import Broker
from mq.api.handled_keys import DEDUP_KEY, Handled
from mq.api.local import directory
from mq.client.retry import Retry
from mq.errors import RequestTimeout
from mq.message import MessageExt
from mq.names import check_group
from mq.properties import value_of

__all__ = ["Handling", "Once"]

WAIT = 10.0


class Once:
    """The keys that a group has handled: the last `size` of them, a number that the first to ask decides
    (100,000 if left out); before that, each is forgotten once so many others were marked after it.

    While one consumer is in the body for a key, all others with that key wait, up to `wait` seconds, and
    then raise mq.Retry: the message comes again later. Any thread may use it; it needs no close().
    """

    def __init__(self, broker: Broker, group: str, *, size: int | None = None, wait: float = WAIT) -> None:
        check_group(group)
        if isinstance(wait, bool) or not isinstance(wait, (int, float)):
            raise TypeError(f"wait is a number of seconds, not {type(wait).__name__}")
        if not 0 <= wait < 1e9:
            raise ValueError(f"wait is {wait} s, must be 0 or more")
        self.group = group
        self._wait = wait
        self._broker = broker  # Which would be closed, did nothing refer to it.
        self._handled: Handled = directory(broker, "mq.Once").handled_keys.of(group, size)

    @property
    def size(self) -> int:
        return self._handled.size

    def __call__(self, message: MessageExt | str) -> Handling:
        """To be used in a with statement, whose target says whether the message (or the key) is fresh."""
        return Handling(self._handled, self.key(message), self._wait)

    def seen(self, message: MessageExt | str) -> bool:
        """Whether it was handled, and is not forgotten."""
        return self._handled.seen(self.key(message))

    def clear(self) -> None:
        """Forget all: for a group that was reset, to consume once more."""
        self._handled.clear()

    @staticmethod
    def key(message: MessageExt | str) -> str:
        """What a message goes by: topic/dedup key, or its unique id. A key of your own stands for itself."""
        if isinstance(message, str):
            return message
        if not isinstance(message, MessageExt):
            raise TypeError(f"a message or a key is handled once, not {type(message).__name__}")
        encoded = message.encoded
        key = value_of(encoded, DEDUP_KEY.encode() + b"\x01")
        if key is not None:
            return f"{value_of(encoded, RETRY_TOPIC) or message.topic}/{key}"
        # One that came without a unique id is known through its retries by where it was stored first.
        return value_of(encoded, UNIQUE_ID) or value_of(encoded, ORIGIN) or message.offset_msg_id

    def __repr__(self) -> str:
        return f"Once({self.group!r}, size={self.size})"


UNIQUE_ID, ORIGIN, RETRY_TOPIC = b"UNIQ_KEY\x01", b"ORIGIN_MESSAGE_ID\x01", b"RETRY_TOPIC\x01"


class Handling:
    """One key, from the beginning of a with statement to its end; or of this object, where an interrupt comes
    in between."""

    __slots__ = ("__weakref__", "_handled", "_is_fresh", "_key", "_wait")

    def __init__(self, handled: Handled, key: str, wait: float) -> None:
        self._handled = handled
        self._key = key
        self._wait = wait
        self._is_fresh = False

    def __enter__(self) -> bool:
        try:
            self._is_fresh = self._handled.begin(self._key, self._wait, self)
        except RequestTimeout as error:
            raise Retry from error
        return self._is_fresh

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_fresh:
            return
        self._is_fresh = False
        if kind is None:
            self._handled.finish(self._key)
        else:
            self._handled.abandon(self._key)
