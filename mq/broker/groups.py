"""Consumer groups of a store: members, ownership of queues, offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mq.broker.membership import Member, Membership, QueueState, Subscription
from mq.broker.results import MessageQueue
from mq.errors import NotPermitted
from mq.store.store import Store

__all__ = ["Groups"]


class Groups:
    """The consumer groups of one store, for one broker."""

    def __init__(self, store: Store, readable: Callable[[str], Sequence[MessageQueue]]) -> None:
        self._store = store
        self._readable = readable

    def _not_yet(self) -> NotPermitted:
        return NotPermitted(f"{self._store.root}: consumer groups are not in this release")

    def names(self) -> list[str]:
        raise self._not_yet()

    def join(
        self,
        group: str,
        *,
        client_id: str,
        model: str,
        consume_type: str,
        ordered: bool,
        subscriptions: Sequence[Subscription],
        consume_from: str | int = "first",
    ) -> Membership:
        raise self._not_yet()

    def members(self, group: str) -> list[Member]:
        raise self._not_yet()

    def topics(self, group: str) -> list[str]:
        raise self._not_yet()

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        raise self._not_yet()

    def states(self, group: str, topic: str) -> list[QueueState]:
        raise self._not_yet()

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        raise self._not_yet()

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        raise self._not_yet()

    def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        raise self._not_yet()
