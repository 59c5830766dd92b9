"""What memberships and assigned queues ask of Groups, which has the files of all groups open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.groups.member_table import MemberTable
from mq.broker.groups.retry import SendBack
from mq.broker.groups.takeover import Takeover
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store

__all__ = ["OpenGroups"]


class OpenGroups(Protocol):
    """See Groups."""

    store: Store
    numbers: Numbers
    is_closed: bool

    @property
    def takeover(self) -> Takeover: ...

    @property
    def puller(self) -> Callable[[MessageQueue, Any], Puller]:
        """What pulls from a queue, for the membership that owns it; None: for any reader."""
        ...

    @property
    def send_back(self) -> SendBack: ...

    def number(self, queue: MessageQueue) -> int:
        """The number of a queue that may be read, made if it has none."""
        ...

    def member_table(self, group: str) -> MemberTable | None:
        """Of the group's file; None if there is no current one."""
        ...

    def made(self, group: str) -> MemberTable:
        """The same, made if need be. Raises StoreFull."""
        ...

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """What is committed of one queue; None where nothing is."""
        ...

    def left(self, membership: Any) -> None:
        """A membership has given up its place."""
        ...
