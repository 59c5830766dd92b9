"""The internal topics that the leader compacts, each with the rule that selects the messages to keep.

A program writes such a topic, and need not run when its messages grow old: the leader compacts the topic, in
whatever process it is. So the rules stand here, and a broker knows no topic and no program by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from mq import sink_ledger

__all__ = ["RULES", "CompactionRule"]


class CompactionRule(Protocol):
    """The rule for queue 0 of a topic: keep the newest message of each subject, as long as a reader may ask
    for it. Messages are told by their bodies, and have the subject, or what stands for it, as first key."""

    @property
    def topic(self) -> str: ...

    def subject(self, body: bytes) -> str | None:
        """What a message is about; None: it is of no use to anybody."""
        ...

    def newest(self, bodies: Iterable[bytes], subject: str) -> bytes:
        """Of these bodies, in whatever order, the newest one about a subject, which one of them is about."""
        ...

    def is_of_use(self, body: bytes, now_ms: int) -> bool: ...


RULES: Final[Sequence[CompactionRule]] = (sink_ledger.RULE,)
