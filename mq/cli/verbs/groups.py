"""`groups` and `reset`: consumer groups, their members, the offset of each queue and why it makes no
progress."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import click

import mq
from mq.api.beginning import BEGINNINGS, first_or_last
from mq.api.consumer_groups import Group
from mq.api.group import Member, QueueState
from mq.api.results import MessageQueue
from mq.api.retention import Retention
from mq.cli.printing import counted, emit_json, emit_table, moment, span, visible
from mq.cli.session import Session, with_json
from mq.cli.session import moment as time_of
from mq.cli.verbs.expire import expiring_by_group, retention_of, warn_if_held, warn_of_expiring
from mq.names import DEAD_PREFIX, REDRIVE_GROUP, RETRY_PREFIX

LOOK_SECONDS = 1.0  # between two reads of the offsets
SILENT = "nothing was consumed for a second, and its consumer does not say why: look again"


@click.command()
@click.argument("group", required=False)
@click.option("--delete", "is_delete", is_flag=True, help="Delete GROUP, which has no live members.")
@click.option(
    "--dead-letters", "with_dead_letters", is_flag=True, help="With --delete: its dead letters too."
)
@with_json
@click.pass_obj
def groups(session: Session, group: str | None, is_delete: bool, with_dead_letters: bool) -> int:
    """List the consumer groups, or show the queues of GROUP.

    For each queue of GROUP: its owner, the committed offset, the lag, the age of the oldest unconsumed
    message, and why it makes no progress.

    --delete forgets GROUP: its offsets, and its messages that failed and wait for another attempt. Its dead
    letters stay, unless --dead-letters is given.
    """
    if is_delete and group is None:
        raise click.UsageError("--delete needs the name of a GROUP")
    if with_dead_letters and not is_delete:
        raise click.UsageError("--dead-letters is an option of --delete")
    with session.open() as broker:
        if group is not None and is_delete:
            return _delete(session, broker, group, with_dead_letters)
        kept = retention_of(broker)
        warn_if_held(kept)
        expiring = expiring_by_group(kept)
        if group is None:
            _list(session, broker, kept, expiring)
            return 0
        found = broker.group(group)
        if not known(broker, group):
            return _missing(group)
        members = found.members()
        states, speeds = look(found)
        if session.json:
            retrying = found.retrying()
            emit_json(
                {
                    "group": group,
                    "lag": undone(found.name, states, retrying),
                    "retrying": retrying,
                    "dead_letters": dead_letters(broker, group),
                    "expiring": expiring[group],
                    "members": [member_facts(member) for member in members],
                    "queues": [queue_facts(state, speeds.get(state.queue)) for state in states],
                }
            )
        else:
            _show(broker, found, members, states, speeds)
            warn_of_expiring(kept, group, expiring)
    return 0


def _delete(session: Session, broker: mq.Broker, name: str, with_dead_letters: bool) -> int:
    group = broker.group(name)
    # By its retry topic alone a group is known whose deletion was cut short.
    if not known(broker, name) and not _has_topic(broker, RETRY_PREFIX + name):
        return _missing(name)
    retrying = group.retrying()
    group.delete(dead_letters=with_dead_letters)
    left = dead_letters(broker, name)
    if session.json:
        emit_json({"deleted": name, "retrying": retrying, "dead_letters": left})
        return 0
    if waiting := sum(retrying.values()):
        click.echo(f"{counted(waiting, 'message')} that waited for another attempt went with it")
    if left:
        topic = visible(DEAD_PREFIX + name)
        click.echo(f"{counted(left, 'dead letter')} left; mq DIR delete {topic} deletes them")
    return 0


def _missing(name: str) -> int:
    click.echo(f"mq: there is no group {visible(name)}", err=True)
    return 1


def _has_topic(broker: mq.Broker, name: str) -> bool:
    try:
        broker.topic(name)
    except mq.TopicNotFound:
        return False
    return True


def look(
    group: Group, pause: Callable[[float], object] = time.sleep
) -> tuple[list[QueueState], dict[MessageQueue, float]]:
    """The queues of a group, and their rates in messages per second. The offsets are read a second time only
    if a queue has a lag without a known reason; otherwise no rates are known."""

    def all_states() -> list[QueueState]:
        return [state for topic in group.topics() for state in states_of(group, topic)]

    began, before = time.monotonic(), all_states()
    if not any(state.lag and not state.reason for state in before):
        return before, {}
    pause(LOOK_SECONDS)
    seconds, after = time.monotonic() - began, all_states()
    known = {state.queue: state.committed or 0 for state in before}
    speeds = {
        state.queue: max(0, (state.committed or 0) - known[state.queue]) / seconds
        for state in after
        if state.queue in known
    }
    return [
        replace(state, reason=SILENT) if is_silent(state, speeds.get(state.queue)) else state
        for state in after
    ], speeds


def is_silent(state: QueueState, speed: float | None) -> bool:
    """Whether a queue has a lag and makes no progress, without a known reason."""
    return bool(state.lag) and not state.reason and speed == 0


def undone(name: str, states: Iterable[QueueState], retrying: Mapping[str, int]) -> int:
    """How many messages a group has not consumed. `retrying` covers those in its retry topic."""
    retry_topic = RETRY_PREFIX + name
    return sum(state.lag for state in states if state.queue.topic != retry_topic) + sum(retrying.values())


def known(broker: mq.Broker, name: str) -> bool:
    """Whether the group has, or ever had, a member or an offset."""
    return name in broker.groups() or bool(broker.group(name).members())


def states_of(group: Group, topic: str) -> list[QueueState]:
    """The states of a topic's queues; none if the topic is deleted or not readable."""
    try:
        return group.states(topic)
    except (mq.TopicNotFound, mq.NotPermitted):
        return []


def lag_of(group: Group, topic: str) -> int:
    try:
        return group.lag(topic)
    except (mq.TopicNotFound, mq.NotPermitted):
        return 0


def dead_letters(broker: mq.Broker, group: str) -> int:
    """How many dead letters the group has that were not redriven."""
    try:
        queues = broker.readable(DEAD_PREFIX + group)
    except (mq.TopicNotFound, mq.NotPermitted):
        return 0
    sent = broker.consumer_groups.offsets(REDRIVE_GROUP, DEAD_PREFIX + group)
    return sum(broker.max_offset(each) - max(broker.min_offset(each), sent.get(each, 0)) for each in queues)


def member_facts(member: Member) -> dict[str, Any]:
    """The attributes of a member, for JSON."""
    return {
        "client_id": member.client_id,
        "pid": member.pid,
        "host": member.host,
        "since_ms": member.since_ms,
        "model": member.model,
        "consume_type": member.consume_type,
        "ordered": member.ordered,
        "subscriptions": [each._asdict() for each in member.subscriptions],
    }


def queue_facts(state: QueueState, speed: float | None = None) -> dict[str, Any]:
    """The state of a group's queue, for JSON."""
    owner = state.owner
    return {
        **state.queue._asdict(),
        "owner": owner
        and {
            "client_id": owner.client_id,
            "pid": owner.pid,
            "host": owner.host,
            "since_ms": owner.since_ms,
        },
        "committed": state.committed,
        "end": state.end,
        "lag": state.lag,
        "consumed_per_s": speed,
        "oldest_unconsumed_ms": state.oldest_unconsumed_ms,
        "reason": state.reason,
    }


def _list(session: Session, broker: mq.Broker, kept: Retention | None, expiring: Mapping[str, int]) -> None:
    rows: list[tuple[str, ...]] = []
    for name in broker.groups():
        group = broker.group(name)
        members = group.members()
        lags = {topic: lag_of(group, topic) for topic in group.topics()}
        retrying = group.retrying()
        if session.json:
            emit_json(
                {
                    "group": name,
                    "members": len(members),
                    "model": members[0].model if members else None,
                    "ordered": members[0].ordered if members else None,
                    "topics": lags,
                    "lag": _sum_of(name, lags, retrying),
                    "retrying": retrying,
                    "dead_letters": dead_letters(broker, name),
                    "expiring": expiring[name],
                }
            )
            continue
        kind = model_of(members)
        rows += [
            (name, f"{len(members)}", kind, topic, f"{lag:,}", f"{retrying.get(topic, 0):,}")
            for topic, lag in lags.items()
        ] or [(name, f"{len(members)}", kind, "", "", "")]
    if rows:
        emit_table(
            ("group", "members", "model", "topic", "lag", "retry"),
            rows,
            numbers={"members", "lag", "retry"},
            below=("topic",),
        )
    for name in () if session.json else sorted(expiring):
        warn_of_expiring(kept, name, expiring)


def _sum_of(name: str, lags: Mapping[str, int], retrying: Mapping[str, int]) -> int:
    """The lag of all topics together, as in Group.lag: a message in the retry topic counts for its own
    topic."""
    own = sum(lag for topic, lag in lags.items() if topic != RETRY_PREFIX + name)
    return own + sum(count for topic, count in retrying.items() if topic not in lags)


def model_of(members: list[Member]) -> str:
    """The message model of a group, which is the same for all members."""
    if not members:
        return "nobody"
    return f"{members[0].model}, in order" if members[0].ordered else members[0].model


def _show(
    broker: mq.Broker,
    group: Group,
    members: list[Member],
    states: list[QueueState],
    speeds: Mapping[MessageQueue, float],
) -> None:
    retrying = group.retrying()
    lag, waiting = undone(group.name, states, retrying), sum(retrying.values())
    click.echo(
        f"{visible(group.name)}: {counted(len(members), 'member')} ({model_of(members)}), lag {lag:,}"
        + (f", {waiting:,} of which failed and wait for another attempt" if waiting else "")
    )
    if dead := dead_letters(broker, group.name):
        click.echo(f"{counted(dead, 'dead letter')}; mq DIR redrive {visible(group.name)} sends them back")
    if members:
        click.echo()
        owned = Counter(state.owner.client_id for state in states if state.owner)
        emit_table(
            ("member", "pid", "host", "since", "queues", "subscribes to"),
            (
                (
                    member.client_id,
                    f"{member.pid}",
                    member.host,
                    moment(member.since_ms),
                    f"{owned[member.client_id]}",
                    subscribed(member),
                )
                for member in members
            ),
            numbers={"pid", "queues"},
            below=("subscribes to", "since", "host"),
        )
    if states:
        click.echo()
        now_ms = int(time.time() * 1000)
        labels = _labels(state.queue for state in states)
        pids = Counter(member.pid for member in members)
        emit_table(
            ("queue", "owner", "committed", "end", "lag", "consumed", "oldest", "reason"),
            (
                (
                    labels[state.queue],
                    _owner(state.owner, pids) if state.owner else "-",
                    "-" if state.committed is None else f"{state.committed:,}",
                    f"{state.end:,}",
                    f"{state.lag:,}",
                    f"{speeds[state.queue]:,.0f}/s" if state.queue in speeds else "-",
                    "-" if state.oldest_unconsumed_ms is None else span(now_ms - state.oldest_unconsumed_ms),
                    state.reason,
                )
                for state in states
            ),
            numbers={"committed", "end", "lag", "consumed", "oldest"},
            below=("reason", "owner"),
        )


def _owner(owner: Member, pids: Mapping[int, int]) -> str:
    """The process of an owner; its client id where the process is unknown, or has several members, as a
    server has."""
    return f"pid {owner.pid}" if owner.pid and pids.get(owner.pid, 0) <= 1 else owner.client_id


def _labels(queues: Iterable[MessageQueue]) -> dict[MessageQueue, str]:
    """By queue: topic and queue id, and its broker where there are several."""
    found = list(queues)
    several = len({queue.broker_name for queue in found}) > 1
    return {
        queue: f"{queue.topic}/{queue.queue_id}" + (f" on {queue.broker_name}" if several else "")
        for queue in found
    }


def subscribed(member: Member) -> str:
    """The subscriptions of a member: topics and expressions."""
    return ", ".join(
        each.topic if each.expression == "*" else f"{each.topic} ({each.expression})"
        for each in member.subscriptions
    )


def _position(text: str) -> str | int:
    """`earliest`, `latest`, or a time; `first` and `last` are accepted too, as in `consume`."""
    return text if text in BEGINNINGS else time_of(text)


@click.command()
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to",
    "position",
    type=_position,
    metavar="earliest|latest|TIME",
    default="earliest",
    show_default=True,
    help="Where to continue: earliest, latest, or a TIME such as 10m (ago) or 2026-01-31T12:00.",
)
@click.option("--create", is_flag=True, help="Allow a GROUP that has never consumed.")
@with_json
@click.pass_obj
def reset(session: Session, group: str, topic: str, position: str | int, create: bool) -> int:
    """Reset the offsets of GROUP for TOPIC.

    Running members continue from there at once, after the messages that they are consuming now. In a
    broadcasting group this applies to every consumer; those not running now continue from there when they
    start.
    """
    with session.open() as broker:
        broker.topic(topic)
        found = broker.group(group)
        if not create and not known(broker, group):
            click.echo(f"mq: there is no group {visible(group)} (--create resets it all the same)", err=True)
            return 1
        before = found.offsets(topic)
        if isinstance(position, int):
            found.reset(topic, to_ms=position)
        else:
            found.reset(topic, to=first_or_last("--to", position))
        after = found.offsets(topic)
        if session.json and not after:
            emit_json({"group": group, "topic": topic, "model": "broadcasting"})
        elif session.json:
            for queue, offset in after.items():
                emit_json({**queue._asdict(), "before": before.get(queue), "committed": offset})
        elif not after:
            click.echo(
                f"{visible(group)} is broadcasting: each of its consumers continues from there,"
                " those that are not running when they start"
            )
        else:
            labels = _labels(after)
            rows = (
                (
                    labels[queue],
                    f"{before[queue]:,}" if queue in before else "-",
                    f"{offset:,}",
                )
                for queue, offset in after.items()
            )
            emit_table(("queue", "before", "now"), rows, numbers={"before", "now"})
    return 0
