"""Why is it stuck? Each queue of a group, with words on why it does not move.

It is worked out from what is shared: the owner's status, the lock on the queue, and which members live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mq.api.group import Member, QueueState
from mq.api.results import MessageQueue
from mq.broker.groups.member_table import MemberTable
from mq.store.directory.file_locks import byte_owner
from mq.store.queue.reader import Reader
from mq.store.shared.group_file import LEASE, NAMESPACE, place_word
from mq.store.shared.group_slots import OWNER, TURN, WANTED_BY, queue_byte, reserved_until, slot_word
from mq.store.shared.lease import is_over, now_ns
from mq.store.shared.members import pid_namespace_here
from mq.store.shared.process_state import describe, process_state
from mq.store.shared.queue_table import Numbers

__all__ = ["Owner", "owned", "queue_state", "stopped", "unowned_reason"]

# The owner of a queue, and what is known of why it does not move.
Owner = tuple[Member | None, str]


def stopped(member_table: MemberTable, living: Mapping[int, Member]) -> dict[int, str]:
    """What there is to say of members whose process is stopped, or that do not renew their lease, by their
    place."""
    words = member_table.file.words
    pids = {
        place: member.pid
        for place, member in living.items()
        if words[place_word(place) + NAMESPACE] == pid_namespace_here()
    }
    texts = {pid: describe(pid) for pid in set(pids.values()) if process_state(pid).is_stopped}
    now, found = now_ns(), {}
    for place, member in living.items():
        until = words[place_word(place) + LEASE]
        is_lapsed = until != 0 and is_over(until, now)
        text = texts.get(member.pid) if place in pids else None
        if text is None and is_lapsed:
            text = describe(member.pid if place in pids else None)
        if text is None:
            continue
        if is_lapsed:
            text += "; its lease has lapsed, so other members take over its queues"
        elif until:
            text += f"; its lease lapses in {(until - now) / 1e9:.0f} s"
        found[place] = text
    return found


def owned(
    member_table: MemberTable,
    numbers: Numbers,
    fd: int,
    living: Mapping[int, Member],
    queue: MessageQueue,
    halted: Mapping[int, str],
) -> Owner:
    """The owner of the queue, and what it says about the queue, or what a process that waits for it says.
    halted: see stopped()."""
    file = member_table.file
    number = numbers.find(queue.topic, queue.queue_id)
    if not file.has(number):
        return None, ""
    at = slot_word(number)
    if byte_owner(fd, queue_byte(number, file.words[at + TURN])) is None:
        until = reserved_until(file.words, number)
        if not until:
            return None, ""
        wait = f"nobody else gets it for {(until - now_ns()) / 1e9:.0f} s"
        return None, f"a remote consumer locked it, and is not connected: {wait}"
    owner = living.get(file.words[at + OWNER] - 1)
    if owner is None:
        return None, ""
    text = halted.get(file.words[at + OWNER] - 1)
    if text is not None:
        return owner, text
    status = file.status(number)
    waiting = living.get(file.words[at + WANTED_BY] - 1)
    if not status and waiting is not None and waiting is not owner:
        status = f"process {waiting.pid} is waiting for pid {owner.pid} to release it"
    return owner, status


def unowned_reason(members: Sequence[Member], topic: str) -> str:
    """Why nobody has a queue of this topic."""
    if not members:
        return "no member subscribes: the group has no live consumer"
    mine = [member for member in members if any(topic == wanted.topic for wanted in member.subscriptions)]
    if not mine:
        return "no member subscribes"
    if all(member.model == "broadcasting" for member in mine):
        return "members are broadcasting: each has offsets of its own"
    return "no member has taken it yet"


def queue_state(reader: Reader, queue: MessageQueue, owned_by: Owner, committed: int | None) -> QueueState:
    """owned_by: the owner, and the reason as far as it is known; that an offset is wrong comes before it."""
    owner, reason = owned_by
    begin, end = reader.min_offset(queue), reader.max_offset(queue)
    position = max(begin, committed or 0)
    lag = max(0, end - position)
    oldest = None
    if lag:
        found = reader.pull(queue, position, 1, 1, None, 0.0).messages
        oldest = found[0].store_time_ms if found else None
    if committed is not None and committed > end:
        reason = f"committed {committed:,} is beyond the end {end:,}: reset the group to where it should be"
    elif not lag and owner is None:
        reason = ""
    return QueueState(queue, owner, committed, end, lag, oldest, reason)
