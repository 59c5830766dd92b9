"""Whose queues others may take over: members of groups that are dead, or whose process is stopped.

A dead member is struck off by a process that watched it die. A live one has a lease of its place, which the
thread of mq/store/shared/renewal.py renews. That thread also looks at the leases of the other members of its
groups, and evicts one that was seen lapsed for long enough: it is struck off, and the turn of each of its
queues is over. It finds out before it does anything by its old right: see LocalClaim.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from mq.api.group import Member
from mq.broker.groups.member_table import MemberTable, log_deaths, log_eviction
from mq.errors import MQError, StoreLocked
from mq.store.shared.group_file import EVICTED, LEASE, LIFE, NAMESPACE, PID, START_TIME, place_word
from mq.store.shared.group_slots import OWNER, TURN, slot_word
from mq.store.shared.lease import Lapse, grace, is_over, now_ns
from mq.store.shared.members import pid_namespace_here
from mq.store.shared.process_monitor import Watch
from mq.store.shared.renewal import Renewals
from mq.uninterrupted import uninterrupted

__all__ = ["LEASE_SECONDS", "Takeover"]

LEASE_SECONDS = 30.0
RENEWALS_IN_LEASE = 3

log = logging.getLogger("mq.groups")


class Renewing(Protocol):
    """A member of this process."""

    def renew(self) -> bool:
        """Have its lease from now on; False if it has none any more."""
        ...


class Takeover:
    """For one broker. lease: how long the leases of its members are, in seconds."""

    def __init__(self, watch: Watch, renewals: Renewals, lease: float) -> None:
        self.lease = lease
        self._watch = watch
        self._renewals = renewals
        self._lock = threading.Lock()  # guards what follows
        self._watched: dict[Path, dict[tuple[int, int, int], Callable[[], None]]] = {}
        self._lapses: dict[Path, dict[int, Lapse]] = {}
        self._suspecting: set[Path] = set()

    # Leases.

    def keep(self, member_table: MemberTable, member: Renewing) -> Callable[[], None]:
        """Renew the lease of a member, and look at those of the others, until what is returned is called."""

        def renew() -> bool:
            if not member.renew():
                return False
            self._look(member_table)
            return True

        end = self._renewals.add(self.lease / RENEWALS_IN_LEASE, renew)
        self._look(member_table)
        return end

    def _look(self, member_table: MemberTable) -> None:
        """Evict members whose lease has been over for long enough. Soon again, where one just is."""
        path = member_table.file.path
        if self._evict_lapsed(member_table):
            with self._lock:
                if path in self._suspecting:
                    return
                self._suspecting.add(path)
            self._renewals.add(grace(self.lease) / 2, lambda: self._look_again(member_table))

    def _look_again(self, member_table: MemberTable) -> bool:
        if self._evict_lapsed(member_table):
            return True
        with self._lock:
            self._suspecting.discard(member_table.file.path)
        return False

    def _evict_lapsed(self, member_table: MemberTable) -> bool:
        """Evict members whose leases are over. Whether some of them must be looked at again. An error here
        is logged: this member renews its own lease all the same."""
        try:
            return self._evict_if_sure(member_table)
        except (MQError, OSError) as error:
            log.debug("group %s: leases cannot be looked at: %s", member_table.file.path.name, error)
            return False

    def _evict_if_sure(self, member_table: MemberTable) -> bool:
        file, now, again = member_table.file, now_ns(), False
        with self._lock:
            lapses = self._lapses.setdefault(file.path, {})
        for place in file.taken():
            at = place_word(place)
            life, until = file.words[at + LIFE], file.words[at + LEASE]
            lapsed = (life, until) if until not in (0, EVICTED) and is_over(until, now) else None
            if lapsed is None:
                lapses.pop(place, None)
                continue
            is_sure = lapses.setdefault(place, Lapse(self.lease)).is_sure(lapsed, now)
            again |= not (is_sure and self._evict(member_table, place, life, until))
        return again

    def _evict(self, member_table: MemberTable, place: int, life: int, until: int) -> bool:
        """False: another process changes the group just now, or is stopped while it does."""
        try:
            with member_table.file.changing(0.0) as fd:
                evicted = member_table.evict(fd, place, life, until)
        except StoreLocked:
            return False
        if evicted is not None:
            log_eviction(member_table.file.path.name, evicted)
            member_table.file.changed()
        return True

    def tell_at(self, at: int, tell: Callable[[], object]) -> None:
        """Call this once, when the clock of leases is there."""

        def tell_once() -> bool:
            tell()
            return False

        self._renewals.add(max(at - now_ns(), 0) / 1e9, tell_once)

    # Death.

    def watch_over(self, member_table: MemberTable, listed: Mapping[int, Member]) -> None:
        """Have the processes of these members watched, and no others."""
        words, wanted = member_table.file.words, {}
        for place in listed:
            at = place_word(place)
            if words[at + PID] != os.getpid():
                wanted[words[at + PID], words[at + START_TIME], words[at + NAMESPACE]] = place
        watched = self._watched.get(member_table.file.path, {})
        if watched.keys() != wanted.keys():
            # Never in the main thread: a signal handler may poll for another consumer of the group, and an
            # interrupt would leave processes watched, each with a descriptor, for nobody.
            uninterrupted(partial(self._watch_others, member_table, wanted))

    def _watch_others(self, member_table: MemberTable, wanted: dict[tuple[int, int, int], int]) -> None:
        with self._lock:
            watched = self._watched.setdefault(member_table.file.path, {})
            gone = [watched.pop(process) for process in list(watched) if process not in wanted]
            fresh = [process for process in wanted if process not in watched]
            for process in fresh:
                watched[process] = self._watch_one(member_table, process, wanted[process])
        for stop in gone:
            stop()

    def forget(self, member_table: MemberTable) -> None:
        """No member of this broker is in this group any more."""
        with self._lock:
            stops = self._watched.pop(member_table.file.path, {})
            self._lapses.pop(member_table.file.path, None)
        for stop in stops.values():
            stop()

    def _watch_one(
        self, member_table: MemberTable, process: tuple[int, int, int], place: int
    ) -> Callable[[], None]:
        pid, start_time, namespace = process

        def is_gone() -> bool:
            with member_table.looking() as fd:
                return not member_table.lives(fd, place)

        here = namespace == pid_namespace_here()
        return self._watch.watch(
            pid if here else 0, lambda: self._gone(member_table, pid), start_time=start_time, is_gone=is_gone
        )

    def _gone(self, member_table: MemberTable, pid: int) -> None:
        """A process is dead: every process that watched it is told, and one strikes its members off."""
        if member_table.has(pid):
            self.evict_dead(member_table, pid)

    def evict_dead(self, member_table: MemberTable, pid: int | None = None) -> None:
        """Strike dead members off, of one process or all, and tell the others."""
        with member_table.looking() as fd:
            if not member_table.dead(fd, pid):
                return  # As nearly always: nobody is locked out, and no signal handler finds the lock taken.
        with member_table.file.changing() as fd:
            found = member_table.evict_dead(fd, pid)
        if found:
            log_deaths(member_table.file.path.name, found)
            member_table.file.changed()

    def steal(self, member_table: MemberTable, number: int, turn: int) -> bool:
        """Take a queue whose lock is not dropped from an owner that is none any more: it is dead, and a copy
        of its descriptor lives on, or was evicted, or said nothing yet. Whether it can be locked anew."""
        words, at = member_table.file.words, slot_word(number)
        owner = words[at + OWNER] - 1
        with member_table.looking() as fd:
            if owner >= 0 and member_table.lives(fd, owner):
                return False
        with member_table.file.changing() as fd:
            if words[at + TURN] == turn:
                if words[at + OWNER] - 1 != owner or (owner >= 0 and member_table.lives(fd, owner)):
                    return False
                words[at + TURN] = turn + 1
            return True

    def forked(self) -> None:
        self._lock = threading.Lock()  # Another thread of the parent may have had it.
