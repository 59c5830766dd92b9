"""What `top` shows: all topics and groups as of one moment, and how fast they moved since another.

A sample is made of values alone; how they are laid out on a screen is the dashboard's affair.
"""

from collections import Counter
from dataclasses import dataclass

import mq
from mq.api.group import Member
from mq.cli.verbs.groups import dead_letters, states_of


@dataclass(frozen=True, slots=True)
class TopicSample:
    """One topic."""

    name: str
    queue_count: int
    kept: int  # messages that are there
    ended: int  # messages that ever were


@dataclass(frozen=True, slots=True)
class GroupSample:
    """One topic of one group."""

    name: str
    topic: str
    member_count: int
    consumed: int  # the sum of what is committed
    lag: int  # of the queues of the topic
    oldest_unconsumed_ms: int | None
    dead_letters: int
    reasons: tuple[str, ...]  # why queues do not move, the most frequent first
    retrying: int = 0  # messages of the topic that failed and wait for another attempt


@dataclass(frozen=True, slots=True)
class MemberSample:
    """One member, with all queues that it owns; or None with those that nobody owns."""

    group: str
    member: Member | None
    queue_count: int
    lag: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything as of one moment."""

    time_ms: int
    topics: tuple[TopicSample, ...]
    groups: tuple[GroupSample, ...]
    members: tuple[MemberSample, ...]


def take(broker: mq.Broker, time_ms: int) -> Sample:
    """Look at everything once."""
    topics = []
    for name in sorted(broker.topics()):
        try:
            queues = broker.topic(name).queues
        except (mq.TopicNotFound, mq.NotPermitted):
            continue
        ends = [(queue.min_offset, queue.max_offset) for queue in queues]
        kept, ended = sum(end - begin for begin, end in ends), sum(end for _, end in ends)
        topics.append(TopicSample(name, len(queues), kept, ended))
    groups: list[GroupSample] = []
    members: list[MemberSample] = []
    for name in broker.groups():
        of_group, of_members = _group(broker, name)
        groups += of_group
        members += of_members
    return Sample(time_ms, tuple(topics), tuple(groups), tuple(members))


def _group(broker: mq.Broker, name: str) -> tuple[list[GroupSample], list[MemberSample]]:
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
            GroupSample(
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
        MemberSample(name, member, queue_counts[owner], lags[owner], _frequent(reasons.get(owner, Counter())))
        for owner, member in members.items()
    ]
    return groups, rows


def _frequent(reasons: Counter[str]) -> tuple[str, ...]:
    return tuple(reason for reason, _ in reasons.most_common() if reason)


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages a second between two samples: sent to a topic, consumed by a group of a topic."""

    sent: dict[str, float]
    consumed: dict[tuple[str, str], float]


def rates(before: Sample | None, after: Sample) -> Rates:
    """How fast everything moved. What is not in both samples has no rate; what went backwards, after a
    reset or because a topic was made anew, has none either."""
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
