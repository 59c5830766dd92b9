"""Groups of the broker in memory: members, owners of queues, offsets.

All of it is dicts under the broker's one lock. Members do not die here: they leave or stay.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mq.api.beginning import first_offset
from mq.api.broker import Assigned, ConsumerGroups, Member, MessageQueue, Puller, QueueState, Subscription
from mq.api.group import LastingClaim, Resets
from mq.api.joining import check_agreement, check_deletable, check_unused
from mq.api.waiter import Versioned
from mq.broker.broadcast.offsets import BroadcastOffsets, Source
from mq.broker.broadcast.text_format import TopicOffsets
from mq.errors import NotPermitted, TopicNotFound
from mq.filter.tags import tag_hash
from mq.message import MessageExt
from mq.names import DEAD_PREFIX, RETRY_PREFIX, check_group, is_system_group

if TYPE_CHECKING:
    from tests.support.memory.broker import MemoryBroker

Position = tuple[MessageQueue, int, "frozenset[int] | bytes | None"]


@dataclass
class _Group:
    """One group, with its lock held; and its Assigned: see mq.api.group."""

    name: str
    broker: MemoryBroker
    members: dict[str, MemoryMembership] = field(default_factory=dict)
    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    reset_counts: defaultdict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    applied: defaultdict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    owners: dict[MessageQueue, MemoryClaim] = field(default_factory=dict)
    broadcast_resets: dict[str, TopicOffsets] = field(default_factory=dict)
    changes: int = 0
    deletions: int = 0

    def touch(self) -> None:
        self.changes += 1
        self.broker.changed.notify_all()

    def version(self) -> int:
        return self.changes + self.broker.route_version()

    def claim(self, queue: MessageQueue) -> MemoryClaim:
        return MemoryClaim(self, queue)

    def resets(self, queue: MessageQueue) -> Resets:
        return Resets(0, self.reset_counts[queue], self.reset_counts[queue] != self.applied[queue])

    def subscribed(self) -> set[str]:
        """The topics that members subscribe to."""
        return {each.topic for one in self.members.values() for each in one.member.subscriptions}

    def start(self, topic: str, consume_from: str | int | None) -> None:
        """Commit where the group begins with a topic that it has not begun."""
        # What is in the retry topic was taken by the group before.
        begin = "first" if topic == RETRY_PREFIX + self.name else consume_from
        with suppress(TopicNotFound, NotPermitted):
            if begin is not None and all(queue.topic != topic for queue in self.offsets):
                for queue in self.broker.readable(topic):
                    self.offsets[queue] = first_offset(self.broker, queue, begin)

    def state(self, queue: MessageQueue, is_read: bool) -> QueueState:
        stored, committed = self.broker.queues[queue], self.offsets.get(queue)
        claim, unconsumed = self.owners.get(queue), stored[committed or 0 :]
        reason = "no member has taken it yet" if queue.topic in self.subscribed() else "no member subscribes"
        reason = claim.reason if claim else reason if is_read else "nobody reads it"
        owner = claim.member.member if claim and claim.member else None
        oldest_ms = unconsumed[0].store_time_ms if unconsumed else None
        return QueueState(queue, owner, committed, len(stored), len(unconsumed), oldest_ms, reason)


class MemoryConsumerGroups(ConsumerGroups):
    """See mq.api.consumer_groups.ConsumerGroups."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._groups: dict[str, _Group] = {}
        self._directory: tempfile.TemporaryDirectory[str] | None = None  # of broadcasting consumers

    @contextmanager
    def _locked(self, group: str) -> Iterator[_Group]:
        check_group(group)
        with self._broker.changed:
            self._broker.check_open()
            yield self._groups.setdefault(group, _Group(group, self._broker))

    def names(self) -> list[str]:
        with self._broker.changed:
            self._broker.check_open()
            used = [name for name, group in self._groups.items() if group.members or group.offsets]
            return sorted(name for name in used if not is_system_group(name))

    def admit(self, group: str, member: Member, consume_from: str | int | None) -> MemoryMembership:
        with self._locked(group) as state:
            membership = MemoryMembership(state, member, consume_from)
            membership.subscribe(member.subscriptions)
            return membership

    def assigned(self, group: str) -> Assigned:
        with self._locked(group) as state:
            return state

    def broadcast_offsets(
        self, group: str, client_id: str | None, directory: Path | None
    ) -> BroadcastOffsets:
        with self._locked(group) as state:
            if directory is None:
                self._directory = self._directory or tempfile.TemporaryDirectory()
                directory = Path(self._directory.name)
            made_at, puller = self._broker.made_at, self._broker.puller
            source = Source(self._begin, puller, made_at, lambda: state.broadcast_resets)
            return BroadcastOffsets(directory / f"memory-{state.deletions}" / group, group, client_id, source)

    def _begin(self, topic: str, consume_from: str | int) -> dict[int, int]:
        queues = self._broker.readable(topic)
        return {queue.queue_id: first_offset(self._broker, queue, consume_from) for queue in queues}

    def members(self, group: str) -> list[Member]:
        with self._locked(group) as state:
            return [state.members[client_id].member for client_id in sorted(state.members)]

    def topics(self, group: str) -> list[str]:
        with self._locked(group) as state:
            return sorted(state.subscribed() | {queue.topic for queue in state.offsets})

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        with self._locked(group) as state:
            return {queue: state.offsets[queue] for queue in sorted(state.offsets) if queue.topic == topic}

    def states(self, group: str, topic: str) -> list[QueueState]:
        with self._locked(group) as state:
            self._broker.deliver_due()
            read = self._broker.readable(topic)
            queues = sorted({*read, *(queue for queue in self._broker.queues if queue.topic == topic)})
            states = [state.state(queue, queue in read) for queue in queues]
            return [each for each in states if each.lag or each.queue in read]

    def retrying(self, group: str) -> dict[str, int]:
        with self._locked(group) as state:
            return self._broker.retrying(group, state.offsets)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        with self._locked(group) as state:
            is_broadcasting = any(one.member.model == "broadcasting" for one in state.members.values())
            for queue, offset in offsets.items():
                if is_broadcasting:
                    made_at = self._broker.made_at(queue.topic)
                    known = state.broadcast_resets.setdefault(queue.topic, TopicOffsets(made_at))
                    known.offsets[queue.queue_id] = offset
                    known.made_at, known.reset = made_at, f"{state.changes}"
                else:
                    state.offsets[queue] = offset
                    state.reset_counts[queue] += 1
            state.touch()

    def delete(self, group: str, *, dead_letters: bool = False) -> None:
        check_deletable(group)
        with self._locked(group) as state:
            check_unused(group, self.members(group))
            state.offsets.clear()
            state.broadcast_resets.clear()
            state.deletions += 1
            for prefix in (RETRY_PREFIX, DEAD_PREFIX)[: 1 + dead_letters]:
                with suppress(TopicNotFound):
                    self._broker.delete_topic(prefix + group)
            state.touch()

    def forget_topic(self, topic: str) -> None:
        for state in self._groups.values():
            for queue in [queue for queue in state.reset_counts if queue.topic == topic]:
                state.reset_counts[queue] += 1
            state.offsets = {queue: at for queue, at in state.offsets.items() if queue.topic != topic}

    def close(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()


class MemoryMembership:
    """See mq.api.group.Membership."""

    def __init__(self, state: _Group, member: Member, consume_from: str | int | None) -> None:
        self.client_id, self.member, self.version = member.client_id, member, state.version
        self._state, self._changed, self._consume_from = state, state.broker.changed, consume_from

    def members(self) -> list[Member]:
        return self._state.broker.consumer_groups.members(self._state.name)

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        state, fresh = self._state, replace(self.member, subscriptions=tuple(sorted(subscriptions)))
        with self._changed:
            others = [one.member for one in state.members.values() if one is not self]
            check_agreement(state.name, dict(enumerate(others)), fresh)
            self.member, state.members[self.client_id] = fresh, self
            for subscription in subscriptions if fresh.model == "clustering" else ():
                state.start(subscription.topic, self._consume_from)
            state.touch()

    def claim(self, queue: MessageQueue) -> MemoryClaim | None:
        with self._changed:
            owners = self._state.owners
            if queue not in owners:
                owners[queue] = MemoryClaim(self._state, queue, self)
                self._state.touch()
            return owners[queue] if owners[queue].member is self else None

    def unreserve(self, queue: MessageQueue) -> None: ...

    def leave(self) -> None:
        with self._changed:
            for claim in [claim for claim in self._state.owners.values() if claim.member is self]:
                claim.release()
            if self._state.members.get(self.client_id) is self:
                del self._state.members[self.client_id]
                self._state.touch()


class MemoryClaim(LastingClaim):
    """See mq.api.group.Claim. Without a member it is of a consumer that was told its queues."""

    def __init__(self, state: _Group, queue: MessageQueue, member: MemoryMembership | None = None) -> None:
        self.queue, self.member = queue, member
        self._state, self._broker, self._seen = state, state.broker, 0
        self.committed()

    def committed(self) -> int | None:
        with self._broker.changed:
            self._seen = self._state.reset_counts[self.queue]
            if self.member is not None:
                self._state.applied[self.queue] = self._seen
            return self._state.offsets.get(self.queue)

    def is_current(self) -> bool:
        return self._state.reset_counts[self.queue] == self._seen

    def commit(self, offset: int) -> bool:
        with self._broker.changed:
            if is_current := self.is_current():
                self._state.offsets[self.queue] = max(offset, self._state.offsets.get(self.queue, offset))
            return is_current

    def correct(self, offset: int) -> None:
        with self._broker.changed:
            if self.is_current():
                self._state.offsets[self.queue] = offset

    def puller(self) -> Puller:
        return self._broker.puller(self.queue)

    def send_back(self, message: MessageExt, **given: Any) -> bool:
        return self._broker.send_back(message, self._state.name, **given)

    def release(self) -> None:
        with self._broker.changed:
            if self._state.owners.get(self.queue) is self:
                del self._state.owners[self.queue]
                self._state.touch()


class MemoryWaiter:
    """See mq.api.waiter.Waiter."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker, self._is_woken = broker, False

    def wait(
        self, positions: Sequence[Position], members: Sequence[tuple[Versioned, int]], timeout: float
    ) -> None:
        deadline = time.monotonic() + min(timeout, 3600.0)
        with self._broker.changed:
            while not self._is_woken and all(member.version() == seen for member, seen in members):
                left = min(deadline - time.monotonic(), self._broker.until_due())
                if left <= 0 or any(self._has_matching(*position) for position in positions):
                    break
                self._broker.changed.wait(left)
            self._is_woken = False

    def _has_matching(self, queue: MessageQueue, offset: int, hashes: frozenset[int] | bytes | None) -> bool:
        try:
            stored = self._broker.messages_of(queue)[offset:]
        except (TopicNotFound, NotPermitted, ValueError):
            return True  # The consumer of it has something to do about it.
        wanted = hashes if isinstance(hashes, frozenset) else None
        return any(wanted is None or tag_hash(each.tags or "") in wanted for each in stored)

    def wakeup(self) -> None:
        with self._broker.changed:
            self._is_woken = True
            self._broker.changed.notify_all()
