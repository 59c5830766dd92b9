"""What a listener raises to say when it wants a message again, and how such a message looks then. Pure."""

from __future__ import annotations

from operator import index

from mq.message import MessageExt
from mq.properties import value_of

DELAY_LEVEL_MAX = 18
# RocketMQ's, for what waits in a consumer: the delays of a broker may be others, and it does not tell them.
DELAY_SECONDS = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
SUSPEND_MS_MIN, SUSPEND_MS_MAX = 10, 30_000


class Retry(Exception):
    """Raised by a listener: the message is not consumed, and comes again.

    `from_index`: of a list of messages, those before it are consumed; None is none of them, and so is an
    index beyond the end of the list.
    `delay_level`: when it comes again, by RocketMQ's levels 1 to 18; None chooses by how often it came
    already; -1 is the dead letters, at once.
    `suspend_ms`: how long an ordered consumer leaves the queue alone, 10 to 30,000; None is the consumer's
    own. A consumer that is not ordered takes no notice of it, and an ordered one none of a level above 0.
    """

    def __init__(
        self,
        *,
        from_index: int | None = None,
        delay_level: int | None = None,
        suspend_ms: int | None = None,
    ) -> None:
        super().__init__()
        self.from_index = None if from_index is None else index(from_index)
        self.delay_level = None if delay_level is None else index(delay_level)
        self.suspend_ms = None if suspend_ms is None else int(suspend_ms)
        if self.from_index is not None and self.from_index < 0:
            raise ValueError(f"from_index is {from_index}: the first message has the index 0")
        if self.delay_level is not None and not -1 <= self.delay_level <= DELAY_LEVEL_MAX:
            raise ValueError(f"delay_level is {delay_level}: there are 1 to 18, and -1 for the dead letters")
        if self.suspend_ms is not None and self.suspend_ms < 0:
            raise ValueError(f"suspend_ms is {suspend_ms}: a time to come cannot be negative")

    def failed(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Those of a list that are not consumed."""
        begin = self.from_index or 0
        return messages[begin:] if begin <= len(messages) else messages

    def __repr__(self) -> str:
        return f"mq.Retry({self})"

    def __str__(self) -> str:
        given = {
            "from_index": self.from_index,
            "delay_level": self.delay_level,
            "suspend_ms": self.suspend_ms,
        }
        return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


class RetriedMessage(MessageExt):
    """A message that comes again. It has the topic it was sent to, though it may lie in the retry topic, to
    which queue_id and queue_offset belong."""

    __slots__ = ("_reconsume_times", "_topic")

    def __init__(self, message: MessageExt, reconsume_times: int | None = None) -> None:
        super().__init__(message.record, message.broker_name)
        self._topic = value_of(message.encoded, b"RETRY_TOPIC\x01") or message.topic
        self._reconsume_times = message.reconsume_times if reconsume_times is None else reconsume_times

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def reconsume_times(self) -> int:
        return self._reconsume_times


def suspend_seconds(suspend_ms: int) -> float:
    """How long a queue is left alone, within RocketMQ's bounds."""
    return max(SUSPEND_MS_MIN, min(suspend_ms, SUSPEND_MS_MAX)) / 1000
