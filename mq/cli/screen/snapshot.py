"""The data of `top`: a snapshot of all topics and groups, and the rates between two snapshots.

A snapshot contains only values; the dashboard lays them out.
"""

from collections import Counter
from dataclasses import dataclass

import mq
from mq.api.group import Member
from mq.cli.verbs.groups import dead_letters, states_of


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic."""

    name: str
    queue_count: int
    kept: int  # the number of stored messages
    ended: int  # the number of messages ever sent


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One topic of one group."""

    name: str
    topic: str
    member_count: int
    consumed: int  # the sum of the committed offsets
    lag: int  # of the queues of the topic
    oldest_unconsumed_ms: int | None
    dead_letters: int
    reasons: tuple[str, ...]  # why queues make no progress, the most frequent reason first
    retrying: int = 0  # messages of the topic that failed and wait for another attempt


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """One member with the queues that it owns; None stands for queues without an owner."""

    group: str
    member: Member | None
    queue_count: int
    lag: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics, groups and members at one moment."""

    time_ms: int
    topics: tuple[TopicSnapshot, ...]
    groups: tuple[GroupSnapshot, ...]
    members: tuple[MemberSnapshot, ...]


def take_snapshot(broker: mq.Broker, time_ms: int) -> Snapshot:
    """Take a snapshot of a broker."""
    topics = []
    for name in sorted(broker.topics()):
        try:
            queues = broker.topic(name).queues
        except (mq.TopicNotFound, mq.NotPermitted):
            continue
        ends = [(queue.min_offset, queue.max_offset) for queue in queues]
        kept, ended = sum(end - begin for begin, end in ends), sum(end for _, end in ends)
        topics.append(TopicSnapshot(name, len(queues), kept, ended))
    groups: list[GroupSnapshot] = []
    members: list[MemberSnapshot] = []
    for name in broker.groups():
        of_group, of_members = _group(broker, name)
        groups += of_group
        members += of_members
    return Snapshot(time_ms, tuple(topics), tuple(groups), tuple(members))


def _group(broker: mq.Broker, name: str) -> tuple[list[GroupSnapshot], list[MemberSnapshot]]:
    group = broker.group(name)
    members: dict[str | None, Member | None] = {member.client_id: member for member in group.members()}
    queue_counts: Counter[str | None] = Counter()
    lags: Counter[str | None] = Counter()
    reasons: dict[str | None, Counter[str]] = {}
    dead, retrying = dead_letters(broker, name), group.retrying()
    groups = []
    for topic in group.topics():
        states = states_of(group, topic)
        oldest = [state.oldest_unconsumed_ms for state in states if state.oldest_unconsumed_ms is not None]
        groups.append(
            GroupSnapshot(
                name,
                topic,
                len(members),
                sum(state.committed or 0 for state in states),
                sum(state.lag for state in states),
                min(oldest, default=None),
                dead,
                _frequent(Counter(state.reason for state in states)),
                retrying.get(topic, 0),
            )
        )
        for state in states:
            owner = state.owner.client_id if state.owner else None
            members.setdefault(owner, state.owner)
            queue_counts[owner] += 1
            lags[owner] += state.lag
            reasons.setdefault(owner, Counter())[state.reason] += 1
    rows = [
        MemberSnapshot(
            name, member, queue_counts[owner], lags[owner], _frequent(reasons.get(owner, Counter()))
        )
        for owner, member in members.items()
    ]
    return groups, rows


def _frequent(reasons: Counter[str]) -> tuple[str, ...]:
    return tuple(reason for reason, _ in reasons.most_common() if reason)


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages per second between two snapshots: sent to a topic, and consumed by a group from a topic."""

    sent: dict[str, float]
    consumed: dict[tuple[str, str], float]


def rates(before: Snapshot | None, after: Snapshot) -> Rates:
    """The rates between two snapshots. An entry has no rate if it is not in both, or if it went backwards
    after a reset or because the topic was re-created."""
    seconds = (after.time_ms - before.time_ms) / 1000 if before else 0.0
    if before is None or seconds <= 0:
        return Rates({}, {})
    ended = {topic.name: topic.ended for topic in before.topics}
    consumed = {(group.name, group.topic): group.consumed for group in before.groups}
    return Rates(
        {
            topic.name: (topic.ended - ended[topic.name]) / seconds
            for topic in after.topics
            if topic.ended >= ended.get(topic.name, topic.ended + 1)
        },
        {
            key: (group.consumed - consumed[key]) / seconds
            for group in after.groups
            if (key := (group.name, group.topic)) in consumed and group.consumed >= consumed[key]
        },
    )
