"""The members of a group: those as the group's file has them, and which of them live.

A member lives while its place is locked, by a descriptor of its own; what it says of itself is JSON beside
its place, read once for each life of it. A copy of the descriptor in a forked child that nobody closed keeps
a lock, so a member whose pid with its start time is gone is dead as well, judged within one pid namespace.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from typing import Any

from mq.api.group import Member, Subscription
from mq.errors import MQError
from mq.fastpath import Guard
from mq.store.directory.file_locks import byte_owner, lock_byte
from mq.store.directory.owner import opened_file
from mq.store.os_errors import named_errors
from mq.store.shared.group_file import (
    EVICTED,
    HIGH,
    LEASE,
    LIFE,
    NAMESPACE,
    NEWS,
    PID,
    PLACE_COUNT,
    SINCE,
    START_TIME,
    GroupFile,
    place_byte,
    place_word,
)
from mq.store.shared.members import pid_namespace_here, start_time_of
from mq.store.shared.process_state import describe

__all__ = ["MemberTable", "check_room", "log_deaths", "log_eviction", "role_of"]

log = logging.getLogger("mq.groups")


class MemberTable:
    """The members of one group file. Methods take a descriptor of it: locks of that one do not show."""

    def __init__(self, file: GroupFile) -> None:
        self.file = file
        self._known: dict[int, tuple[int, Member]] = {}

    def looking(self) -> Guard:
        """For a with statement: a descriptor to look at locks with."""
        with named_errors(self.file.path):
            return opened_file(self.file.path)

    def listed(self, fd: int) -> dict[int, Member]:
        """Place to member, of all that joined and did not leave; a dead one until somebody has noticed."""
        words, found = self.file.words, {}
        for place in self.file.taken():
            life = words[place_word(place) + LIFE]
            known = self._known.get(place)
            if known is None or known[0] != life:
                text = self.file.read_text(fd, place)
                member = _parsed(text) if text is not None else None
                if member is None or words[place_word(place) + LIFE] != life:
                    continue  # Just coming or going, which raises the version; or damaged.
                known = self._known[place] = life, member
            found[place] = known[1]
        return found

    def living(self, fd: int) -> dict[int, Member]:
        """The same without the dead."""
        return {place: member for place, member in self.listed(fd).items() if self.lives(fd, place)}

    def lives(self, fd: int, place: int) -> bool:
        if byte_owner(fd, place_byte(place)) is None:
            return False
        words, at = self.file.words, place_word(place)
        if not words[at + LIFE] % 2:
            return False
        if words[at + NAMESPACE] != pid_namespace_here() or words[at + PID] == os.getpid():
            return True
        return start_time_of(words[at + PID]) == words[at + START_TIME]

    def has(self, pid: int) -> bool:
        """Whether a member of this process is listed."""
        return any(self.file.words[place_word(place) + PID] == pid for place in self.file.taken())

    def dead(self, fd: int, pid: int | None = None) -> list[tuple[int, int]]:
        """The places of the dead, of one process or all, and which life of theirs is over."""
        words, found = self.file.words, []
        for place in self.file.taken():
            at = place_word(place)
            life = words[at + LIFE]
            if (pid is None or words[at + PID] == pid) and not self.lives(fd, place):
                found.append((place, life))
        return found

    def evict_dead(self, fd: int, pid: int | None = None) -> list[str]:
        """Under byte 0: strike the dead off, those of one process or all. Their names, for the log."""
        words, found = self.file.words, []
        for place, life in self.dead(fd, pid):
            at = place_word(place)
            member = self.listed(fd).get(place)
            name = f"{member.client_id if member else 'a member'} (pid {words[at + PID]})"
            # In one step: a live member may leave meanwhile, which takes no lock.
            if life % 2 and self.file.swap(at + LIFE, life, life + 1):
                found.append(name)
        return found

    def evict(self, fd: int, place: int, life: int, until: int) -> str | None:
        """Under byte 0: strike a member off whose lease was over then, and have its queues be free. What
        there is to say of it; None if it has renewed its lease, or is gone."""
        words, at = self.file.words, place_word(place)
        member = self.listed(fd).get(place)
        if words[at + LIFE] != life or not self.file.swap(at + LEASE, until, EVICTED):
            return None
        self.strike_off(place)
        is_here = words[at + NAMESPACE] == pid_namespace_here()
        process = describe(words[at + PID] if is_here else None)
        return f"{member.client_id if member else 'a member'}, {process}"

    def strike_off(self, place: int) -> None:
        """Under byte 0: have a member be none any more, though it has its locks."""
        words, at = self.file.words, place_word(place)
        # First: a member that sees nothing new here has all its queues.
        self.file.version.add()
        self.file.end_turns(place)
        life = words[at + LIFE]
        if life % 2:
            self.file.swap(at + LIFE, life, life + 1)

    def enter(self, fd: int, own: int, member: Member, until: int, news: int = 0) -> int | None:
        """Under byte 0: take a place with the descriptor `own`, and a lease until then. None if all
        are taken, -1 if the member's text is too long. news: what it saw at the place that it had before."""
        words = self.file.words
        for place in range(PLACE_COUNT):
            at = place_word(place)
            if words[at + LIFE] % 2 or not lock_byte(own, place_byte(place)):
                continue
            if not self.file.write_text(fd, place, _text(member)):
                return -1
            words[at + PID] = member.pid
            words[at + START_TIME] = start_time_of(member.pid) or 0
            words[at + NAMESPACE] = pid_namespace_here()
            words[at + SINCE] = member.since_ms
            words[at + LEASE] = until
            words[at + NEWS] = max(words[at + NEWS], news + 1)  # So that its version grows.
            words[at + LIFE] += 1
            words[HIGH] = max(words[HIGH], place + 1)
            return place
        return None

    def rewrite(self, fd: int, place: int, member: Member) -> bool:
        """Under byte 0: say something else of a member; False if it is too long."""
        words, at = self.file.words, place_word(place)
        words[at + LIFE] += 1
        try:
            return self.file.write_text(fd, place, _text(member))
        finally:
            words[at + LIFE] += 1

    def leave(self, place: int) -> None:
        at = place_word(place) + LIFE
        life = self.file.words[at]
        if life % 2:  # Otherwise others have struck it off.
            self.file.swap(at, life, life + 1)


def log_deaths(group: str, names: Sequence[str]) -> None:
    """Log the members that evict_dead() struck off; once the file is not locked any more."""
    for name in names:
        log.warning("group %s: %s died without leaving: others take over its queues", group, name)


def log_eviction(group: str, member: str) -> None:
    """Log the member that evict() struck off."""
    log.warning("group %s: others take over the queues of %s. It has not renewed its lease", group, member)


def role_of(member: Member) -> str:
    """What a member is in its group, for the log."""
    topics = ", ".join(f"{each.topic} by {each.kind} {each.expression!r}" for each in member.subscriptions)
    return f"{member.model}, subscribed to {topics or 'nothing'}"


def _text(member: Member) -> bytes:
    table = {name: getattr(member, name) for name in Member.__slots__}
    return json.dumps(table, ensure_ascii=False, separators=(",", ":")).encode()


def _parsed(text: bytes) -> Member | None:
    try:
        table: dict[str, Any] = json.loads(text)
        subscriptions = tuple(Subscription(*each) for each in table.pop("subscriptions"))
        return Member(**table, subscriptions=subscriptions)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def check_room(group: str, place: int | None) -> None:
    """Raises what keeps a member from getting a place, which MemberTable.enter tells."""
    if place is None:
        raise MQError(f"group {group} has {PLACE_COUNT:,} live consumers, which is its limit")
    if place < 0:
        raise ValueError(
            f"the subscriptions of this consumer of group {group} are longer than 64 KiB together"
        )
