"""Groups of the broker in memory: who is in them, who has which queue, how far each queue is consumed.

Everything is a dict under the broker's one lock. Nobody dies here: a member leaves, or stays.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from mq.api.group import Member, QueueState, Subscription
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.api.waiter import Versioned
from mq.broker.broadcast.text_format import TopicOffsets
from mq.errors import GroupInvalid, NotPermitted, SubscriptionConflict, TopicNotFound
from mq.message import MessageExt
from mq.names import check_group, is_system_group

T = TypeVar("T")

RETRY_PREFIX = "%RETRY%"
MODELS = {"clustering", "broadcasting"}
CONSUME_TYPES = {"push", "pull"}

Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


class Queues(Protocol):
    """What groups ask of their broker, its lock held."""

    def readable(self, topic: str) -> Sequence[MessageQueue]: ...
    def hidden(self, topic: str) -> dict[MessageQueue, list[MessageExt]]: ...
    def messages_of(self, queue: MessageQueue) -> list[MessageExt]: ...
    def matches(self, position: Position) -> bool: ...
    def route_version(self) -> int: ...
    def made_at(self, topic: str) -> int: ...
    def until_due(self) -> float: ...
    def puller(self, queue: MessageQueue) -> Puller: ...
    def send_back(
        self, message: MessageExt, group: str, *, delay_level: int, max_reconsume_times: int
    ) -> bool: ...


@dataclass
class _GroupState:
    name: str
    members: dict[str, MemoryMembership] = field(default_factory=dict)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    resets: defaultdict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    owners: dict[MessageQueue, MemoryClaim] = field(default_factory=dict)
    broadcast_resets: dict[str, TopicOffsets] = field(default_factory=dict)
    version: int = 0


class MemoryGroups:
    """All groups of one broker. `changed` guards everything and is told of every change."""

    def __init__(self, broker: Queues, changed: threading.Condition) -> None:
        self.broker = broker
        self.changed = changed
        self._groups: dict[str, _GroupState] = {}

    def names(self) -> list[str]:
        found = [name for name, state in self._groups.items() if state.members or state.offsets]
        return sorted(name for name in found if not is_system_group(name))

    def state(self, name: str) -> _GroupState:
        check_group(name)
        return self._groups.setdefault(name, _GroupState(name))

    def touch(self, state: _GroupState) -> None:
        state.version += 1
        self.changed.notify_all()

    def join(
        self, name: str, member: Member, subscriptions: Sequence[Subscription], consume_from: str | int
    ) -> MemoryMembership:
        state = self.state(name)
        membership = MemoryMembership(self, state, member, consume_from)
        membership.subscribe(subscriptions)
        return membership

    def members(self, name: str) -> list[Member]:
        return [membership.member for _, membership in sorted(self.state(name).members.items())]

    def topics(self, name: str) -> list[str]:
        state = self.state(name)
        wanted = {
            each.topic for membership in state.members.values() for each in membership.member.subscriptions
        }
        return sorted(wanted | {queue.topic for queue in state.offsets})

    def offsets(self, name: str, topic: str) -> dict[MessageQueue, int]:
        return {
            queue: offset
            for queue, offset in sorted(self.state(name).offsets.items())
            if queue.topic == topic
        }

    def reset(self, name: str, offsets: Mapping[MessageQueue, int]) -> None:
        state = self.state(name)
        if any(membership.member.model == "broadcasting" for membership in state.members.values()):
            for queue, offset in offsets.items():
                made_at = self.broker.made_at(queue.topic)
                fresh = TopicOffsets(made_at, {queue.queue_id: offset}, reset=f"{state.version}")
                known = state.broadcast_resets.setdefault(queue.topic, fresh)
                known.offsets[queue.queue_id] = offset
                known.made_at, known.reset = made_at, fresh.reset
            self.touch(state)
            return
        for queue, offset in offsets.items():
            state.offsets[queue] = offset
            state.resets[queue] += 1
        self.touch(state)

    def forget_topic(self, topic: str) -> None:
        for state in self._groups.values():
            for queue in [queue for queue in state.resets if queue.topic == topic]:
                state.resets[queue] += 1
            for queue in [queue for queue in state.offsets if queue.topic == topic]:
                del state.offsets[queue]

    def start(self, state: _GroupState, topic: str, consume_from: str | int) -> None:
        """Commit where this topic begins for a group that has not begun it."""
        if any(queue.topic == topic for queue in state.offsets):
            return
        try:
            queues = self.broker.readable(topic)
        except (TopicNotFound, NotPermitted):
            return
        for queue in queues:
            stored = self.broker.messages_of(queue)
            # What is in the retry topic was taken by the group before.
            if consume_from == "first" or topic == RETRY_PREFIX + state.name:
                offset = 0
            elif consume_from == "last":
                offset = len(stored)
            else:
                assert isinstance(consume_from, int)
                offset = sum(message.store_time_ms < consume_from for message in stored)
            state.offsets[queue] = offset

    def states(self, name: str, topic: str) -> list[QueueState]:
        state = self.state(name)
        found = []
        for queue in self.broker.readable(topic):
            stored = self.broker.messages_of(queue)
            committed = state.offsets.get(queue)
            claim = state.owners.get(queue)
            unconsumed = stored[committed or 0 :]
            if claim is not None:
                reason = claim.reason
            elif any(_subscribes(membership.member, topic) for membership in state.members.values()):
                reason = "no member has taken it yet"
            else:
                reason = "no member subscribes"
            found.append(
                QueueState(
                    queue,
                    claim.member.member if claim and claim.member else None,
                    committed,
                    len(stored),
                    len(unconsumed),
                    unconsumed[0].store_time_ms if unconsumed else None,
                    reason,
                )
            )
        for queue, stored in self.broker.hidden(topic).items():
            committed = state.offsets.get(queue)
            if lag := len(stored[committed or 0 :]):
                end = len(stored)
                found.append(QueueState(queue, None, committed, end, lag, None, "nobody reads it"))
        return found


class MemoryMembership:
    """See mq.api.broker.Membership."""

    def __init__(
        self, groups: MemoryGroups, state: _GroupState, member: Member, consume_from: str | int
    ) -> None:
        self.client_id = member.client_id
        self.member = member
        self._groups = groups
        self._state = state
        self._consume_from = consume_from

    def members(self) -> list[Member]:
        with self._groups.changed:
            return self._groups.members(self._state.name)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        with self._groups.changed:
            fresh = Member(
                self.member.client_id,
                self.member.pid,
                self.member.host,
                self.member.since_ms,
                self.member.model,
                self.member.consume_type,
                self.member.ordered,
                tuple(sorted(subscriptions)),
            )
            if self._state.members.get(self.client_id, self) is not self:
                raise GroupInvalid(f"group {self._state.name} has a member {self.client_id} already")
            for client_id, other in self._state.members.items():
                if client_id != self.client_id and _kind(other.member) != _kind(fresh):
                    raise SubscriptionConflict(
                        f"{fresh} would join {other.member}: members of a group have the same subscriptions",
                        group=self._state.name,
                        ours=fresh.subscriptions,
                        theirs=other.member.subscriptions,
                        pid=other.member.pid,
                    )
            self.member = fresh
            self._state.members[self.client_id] = self
            if fresh.model == "clustering":
                for subscription in subscriptions:
                    self._groups.start(self._state, subscription.topic, self._consume_from)
            self._groups.touch(self._state)

    def version(self) -> int:
        return self._state.version + self._groups.broker.route_version()

    def claim(self, queue: MessageQueue) -> MemoryClaim | None:
        with self._groups.changed:
            owner = self._state.owners.get(queue)
            if owner is not None:
                return owner if owner.member is self else None
            claim = MemoryClaim(self._groups, self._state, self, queue)
            self._state.owners[queue] = claim
            self._groups.touch(self._state)
            return claim

    def leave(self) -> None:
        with self._groups.changed:
            for claim in [claim for claim in self._state.owners.values() if claim.member is self]:
                claim.release()
            if self._state.members.get(self.client_id) is self:
                del self._state.members[self.client_id]
                self._groups.touch(self._state)


class MemoryAssigned:
    """See mq.api.group.Assigned."""

    def __init__(self, groups: MemoryGroups, group: str) -> None:
        self._groups = groups
        self._state = groups.state(group)

    def version(self) -> int:
        return self._state.version + self._groups.broker.route_version()

    def claim(self, queue: MessageQueue) -> MemoryClaim:
        return MemoryClaim(self._groups, self._state, None, queue)


class MemoryWaiter:
    """See mq.api.group.Waiter."""

    def __init__(self, groups: MemoryGroups) -> None:
        self._groups = groups
        self._poked = False

    def wait(
        self, positions: Sequence[Position], members: Sequence[tuple[Versioned, int]], timeout: float
    ) -> None:
        deadline = time.monotonic() + min(timeout, 3600.0)
        changed, broker = self._groups.changed, self._groups.broker
        with changed:
            while not self._poked and all(member.version() == version for member, version in members):
                if any(broker.matches(position) for position in positions):
                    break
                left = min(deadline - time.monotonic(), broker.until_due())
                if left <= 0:
                    break
                changed.wait(left)
            self._poked = False

    def wakeup(self) -> None:
        with self._groups.changed:
            self._poked = True
            self._groups.changed.notify_all()


class MemoryClaim:
    """See mq.api.broker.Claim."""

    def __init__(
        self, groups: MemoryGroups, state: _GroupState, member: MemoryMembership | None, queue: MessageQueue
    ) -> None:
        self.queue = queue
        self.member = member  # None: it is no member's, see MemoryAssigned
        self.reason = ""
        self._groups = groups
        self._state = state
        self._seen = state.resets[queue]

    def committed(self) -> int | None:
        with self._groups.changed:
            self._seen = self._state.resets[self.queue]
            return self._state.offsets.get(self.queue)

    def is_current(self) -> bool:
        with self._groups.changed:
            return self._state.resets[self.queue] == self._seen

    def is_lost(self) -> bool:
        return False

    def while_held(self, messages: Iterator[T]) -> Iterator[T]:
        return messages

    def commit(self, offset: int) -> bool:
        with self._groups.changed:
            if not self.is_current():
                return False
            raised(self._state.offsets, self.queue, offset)
            return True

    def correct(self, offset: int) -> None:
        with self._groups.changed:
            self._state.offsets[self.queue] = offset

    def puller(self) -> Puller:
        return self._groups.broker.puller(self.queue)

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        return self._groups.broker.send_back(
            message, self._state.name, delay_level=delay_level, max_reconsume_times=max_reconsume_times
        )

    def note(self, reason: str) -> None:
        self.reason = reason

    def release(self) -> None:
        with self._groups.changed:
            if self._state.owners.get(self.queue) is self:
                del self._state.owners[self.queue]
                self._groups.touch(self._state)


def new_member(client_id: str, since_ms: int, model: str, consume_type: str, ordered: bool) -> Member:
    if model not in MODELS or consume_type not in CONSUME_TYPES:
        raise ValueError(f"model is {model!r}, consume_type {consume_type!r}")
    return Member(
        client_id, os.getpid(), socket.gethostname(), since_ms, model, consume_type, ordered, subscriptions=()
    )


def raised(offsets: dict[MessageQueue, int], queue: MessageQueue, offset: int) -> None:
    offsets[queue] = max(offset, offsets.get(queue, offset))


def _subscribes(member: Member, topic: str) -> bool:
    return any(subscription.topic == topic for subscription in member.subscriptions)


def _kind(member: Member) -> tuple[str, bool, tuple[Subscription, ...]]:
    """What all members of a group have in common."""
    return member.model, member.ordered, member.subscriptions
