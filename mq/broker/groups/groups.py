"""Consumer groups of a store: their members, queue owners, committed offsets, and why a queue stands still.

What the processes of a store share of a group is one mapped file (mq/store/shared/group_file.py); this is
what one broker has open of those files, with the memberships of its own consumers (member.py). Those of dead
and of stopped processes are struck off: see takeover.py.

Members of a group subscribe to the same, or are refused: a queue given to a member that wants nothing of its
topic would not be consumed by anybody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mq.api.group import Member, QueueState
from mq.api.joining import check_agreement, checked
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.broadcast.slowest import Slowest, Topics, topics_read
from mq.broker.groups.first_offsets import FirstOffsets
from mq.broker.groups.manual_claims import LocalAssigned
from mq.broker.groups.member import LocalMembership
from mq.broker.groups.member_slot import MemberSlot
from mq.broker.groups.member_table import MemberTable, check_room, log_deaths, role_of
from mq.broker.groups.offsets import Offsets, check_offset
from mq.broker.groups.queue_status import Owner, owned, queue_state, stopped, unowned_reason
from mq.broker.groups.retry import SendBack
from mq.broker.groups.takeover import Takeover
from mq.broker.topics.unread import Unread, hidden_states, unread
from mq.errors import MQError, NotPermitted
from mq.names import check_group, check_topic, is_system_group
from mq.store.directory.file_locks import open_own_file
from mq.store.os_errors import named_errors
from mq.store.queue.reader import Reader
from mq.store.shared.group_file import GroupFile, damage_of, slots_in
from mq.store.shared.group_slots import offsets_in
from mq.store.shared.lease import end_of
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store
from mq.uninterrupted import uninterrupted, wait_for_calls

__all__ = ["OFFSETS_INTERVAL", "Groups"]

OFFSETS_INTERVAL = 5.0
UNUSED_MAX = 128  # files of groups without members here that stay open: each has a descriptor

log = logging.getLogger("mq.groups")


class Groups:
    """The consumer groups of one store, for one broker.

    readable(topic) are the queues to read from, exists(topic) whether there is such a topic at all.
    slowest says how far groups are whose consumers broadcast.
    puller(queue, member) is what pulls from a queue for its owner, send_back(...) what claims do by it.
    before_save() has on disk what no offset that is saved may be ahead of.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        reader: Reader,
        takeover: Takeover,
        readable: Callable[[str], Sequence[MessageQueue]],
        exists: Callable[[str], bool],
        *,
        puller: Callable[[MessageQueue, LocalMembership | None], Puller],
        send_back: SendBack,
        slowest: Slowest,
        before_save: Callable[[], object] = lambda: None,
    ) -> None:
        self.store = store
        self.puller: Final = puller
        self.send_back: Final = send_back
        self._name = name
        self._reader = reader
        self.takeover: Final = takeover
        self._readable = readable
        self._exists = exists
        self.slowest: Final = slowest
        self._before_save = before_save
        self.numbers = Numbers(store)
        self._offsets = Offsets(store.root)
        self._first_offsets = FirstOffsets(reader, readable, self._offsets)
        self._directory = store.root / "mq" / "groups"
        self._lock = threading.Lock()  # guards what follows
        self._member_tables: dict[str, MemberTable] = {}
        self._memberships: set[LocalMembership] = set()
        self.is_closed = False
        store.detach_with(self._forked)
        if not store.read_only:
            store.at_last_close(self._save_at_last)

    # Files, and the queues that their slots are of.

    def number(self, queue: MessageQueue) -> int:
        """The number of a queue that may be read, made if it has none."""
        return self._reader.number(queue)

    def member_table(self, group: str) -> MemberTable | None:
        """Of the group's file; None if there is no current one."""
        self.store.live()
        member_table = self._member_tables.get(group)
        if member_table is None:
            file = GroupFile.existing(self.store, self._directory / group)
            member_table = self._keep(group, file) if file is not None else None
        return member_table

    def made(self, group: str) -> MemberTable:
        """The same, made out of what is known of the group if need be. Raises StoreFull."""
        self.check_writable()
        member_table = self.member_table(group)
        if member_table is not None:
            return member_table
        table, path = self._offsets.load().get(group, {}), self._directory / group
        damage = damage_of(path) if path.exists() else None

        def fill(file: GroupFile) -> None:
            if damage is not None:
                log.warning(
                    "%s: %s; it is made anew from %s: what the group committed since that was written is"
                    " forgotten",
                    *(path, damage, self._offsets.path),
                )
            for topic in filter(self._exists, table):
                for queue_id, offset in table[topic].items():
                    number = self.numbers.find(topic, queue_id, add=True)
                    file.raise_to(number, min(offset, self.numbers.next_offset(number)))

        return self._keep(group, GroupFile.made(self.store, path, fill))

    def _keep(self, group: str, file: GroupFile) -> MemberTable:
        # One call of C, without the lock: a signal handler may ask for what its thread does.
        kept = self._member_tables.setdefault(group, MemberTable(file))
        if len(self._member_tables) > UNUSED_MAX:
            self._let_go()
        return kept

    def _let_go(self) -> None:
        """Forget the oldest files that no member of this broker is in, down to UNUSED_MAX. A caller that has
        one goes on with it. The next caller maps the same file again."""
        used = {membership.group for membership in list(self._memberships)}
        unused = [group for group in list(self._member_tables) if group not in used]
        for group in unused[:-UNUSED_MAX]:
            self._member_tables.pop(group, None)

    def check_writable(self) -> None:
        self.store.live()
        if self.store.read_only:
            raise NotPermitted(
                f"{self.store.root} was opened with read_only=True: consumers write what they have consumed"
            )
        self.store.check_master()  # A replica has its master's offsets.

    # What others ask.

    def names(self) -> list[str]:
        """See LocalBroker.groups."""
        self.store.live()
        table = self._offsets.current(self.numbers, self._exists)
        found = {group for group, topics in table.items() if any(map(self._exists, topics))}
        for group in self._offsets.group_files():
            if group not in found and self.member_table(group) and self.members(group):
                found.add(group)
        return sorted(name for name in found if not is_system_group(name))

    def members(self, group: str) -> list[Member]:
        """See ConsumerGroups.members."""
        check_group(group)
        member_table = self.member_table(group)
        if member_table is None:
            return []
        with member_table.looking() as fd:
            return sorted(member_table.living(fd).values(), key=lambda member: member.client_id)

    def topics(self, group: str) -> list[str]:
        """See ConsumerGroups.topics."""
        wanted = {each.topic for member in self.members(group) for each in member.subscriptions}
        return sorted(wanted | set(filter(self._exists, self._table_of(group))))

    def _table_of(self, group: str) -> dict[str, dict[int, int]]:
        check_group(group)
        self.store.live()
        return self._offsets.of_group(group, self.numbers, self._exists)

    def offsets(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """See ConsumerGroups.offsets."""
        check_topic(topic)
        ids = self._table_of(group).get(topic, {})
        return {MessageQueue(topic, self._name, queue_id): offset for queue_id, offset in sorted(ids.items())}

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """What is committed of one queue; None where nothing is."""
        check_group(group)
        member_table = self.member_table(group)
        if member_table is None:
            return self._table_of(group).get(queue.topic, {}).get(queue.queue_id)
        return member_table.file.committed(self.numbers.find(queue.topic, queue.queue_id))

    def commit(self, group: str, queue: MessageQueue, offset: int) -> bool:
        """Raise an offset, for a group of RocketMQ's own that has no members. False: a greater one is
        committed, which stays."""
        return (self.assigned(group).raise_to(queue, offset) or 0) <= offset

    def begin_at_the_end(self, group: str, topic: str) -> None:
        """See ConsumerGroups.begin_at_the_end. Raises NotPermitted where this broker only reads."""
        file = self.made(group).file

        def begin() -> None:
            with file.changing():
                self._first_offsets.begin(group, file, topic, "last")

        uninterrupted(begin, of=self.store)

    def assigned(self, group: str) -> LocalAssigned:
        """See ConsumerGroups.assigned."""
        return LocalAssigned(self, group)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """See ConsumerGroups.reset, of a clustering group."""
        check_group(group)
        numbers = self.check_reset(offsets)
        file = self.made(group).file

        def change() -> None:
            for number in numbers:
                file.ready(number)
            for number, offset in numbers.items():
                file.reset(number, offset)

        self.announce(group, change)
        for queue, offset in offsets.items():
            log.info("group %s: %s/%d goes on at %d", group, queue.topic, queue.queue_id, offset)

    def check_reset(self, offsets: Mapping[MessageQueue, int]) -> dict[int, int]:
        """The offsets by number of the queue. Raises ValueError for one beyond the end of its queue."""
        numbers = {}
        for queue, offset in offsets.items():
            check_offset(offset)
            numbers[self.number(queue)] = offset
            end = self._reader.max_offset(queue)
            if offset > end:
                raise ValueError(
                    f"{queue.topic}/{queue.queue_id} ends at {end:,}: an offset of {offset:,} is beyond that"
                )
        return numbers

    def announce(self, group: str, change: Callable[[], None]) -> None:
        """Make a change that one process at a time makes, and have the members of the group look."""
        file = self.made(group).file

        def announced() -> None:
            with file.changing():
                change()
            file.changed()

        uninterrupted(announced, of=self.store)

    # Coming and going.

    def admit(self, group: str, member: Member, consume_from: str | int | None) -> LocalMembership:
        """See ConsumerGroups.admit. A member that nobody knows of would keep its queues."""
        self.check_writable()
        return uninterrupted(
            lambda: self._enter(group, member, consume_from), LocalMembership.leave, of=self.store
        )

    def _enter(self, group: str, member: Member, consume_from: str | int | None) -> LocalMembership:
        member_table = self.made(group)
        slot = self.slot(member_table, member, consume_from)

        def subscribe(membership: LocalMembership, wanted: Member) -> Member:
            return self._resubscribe(member_table, membership, wanted, consume_from)

        def again(membership: LocalMembership) -> MemberSlot:
            return self.slot(member_table, membership.member, consume_from, membership.slot)

        membership = LocalMembership(self, group, member_table, member, slot, subscribe, again)
        with self._lock:
            self._memberships.add(membership)
            is_closed = self.is_closed
        if is_closed:  # Nobody else would have it leave.
            membership.leave()
            raise self.store.refusal()
        try:
            membership.keep()
            member_table.file.changed()
            log.info("group %s: %s (pid %d) joined, %s", group, member.client_id, member.pid, role_of(member))
            membership.members()  # Which has the others watched.
        except BaseException:
            membership.leave()
            raise
        return membership

    def slot(
        self,
        member_table: MemberTable,
        member: Member,
        consume_from: str | int | None,
        before: MemberSlot | None = None,
    ) -> MemberSlot:
        """Take a place for a member. before: the one that it was evicted from, which is given up."""
        file, group = member_table.file, member_table.file.path.name
        lease = 0.0 if member.model == "broadcasting" else self.takeover.lease  # That one has no queues.
        with named_errors(file.path):
            own = open_own_file(file.path)
        self.store.close_in_child(own)
        try:
            with file.changing() as fd:
                dead = member_table.evict_dead(fd)
                if before is not None:
                    member_table.strike_off(
                        before.place
                    )  # The member that evicted it may have died on the way.
                check_agreement(group, member_table.listed(fd), member)
                self._first_offsets.commit(group, file, member, consume_from)
                until = end_of(lease) if lease else 0
                place = member_table.enter(fd, own, member, until, before.news if before is not None else 0)
            check_room(group, place)
        except BaseException:
            self.store.closed_here(own)
            raise
        log_deaths(group, dead)
        assert place is not None
        return MemberSlot(file, place, own, until, lease)

    def _resubscribe(
        self,
        member_table: MemberTable,
        membership: LocalMembership,
        wanted: Member,
        consume_from: str | int | None,
    ) -> Member:
        wanted = replace(wanted, subscriptions=checked(wanted.subscriptions))
        with member_table.file.changing() as fd:
            dead = member_table.evict_dead(fd)
            others = {
                place: each for place, each in member_table.listed(fd).items() if place != membership.place
            }
            check_agreement(membership.group, others, wanted)
            self._first_offsets.commit(membership.group, member_table.file, wanted, consume_from)
            if not member_table.rewrite(fd, membership.place, wanted):
                check_room(membership.group, -1)
        log_deaths(membership.group, dead)
        member_table.file.changed()
        log.info("group %s: %s is now %s", membership.group, membership.client_id, role_of(wanted))
        return wanted

    def left(self, membership: LocalMembership) -> None:
        with self._lock:
            self._memberships.discard(membership)
            if any(each.group == membership.group for each in self._memberships):
                return
        self.takeover.forget(membership.member_table)
        if len(self._member_tables) > UNUSED_MAX:
            self._let_go()

    # Why it is stuck.

    def states(self, group: str, topic: str) -> list[QueueState]:
        """See ConsumerGroups.states."""
        queues, committed = self._readable(topic), self.offsets(group, topic)
        member_table = self.member_table(group)
        if member_table is None:
            owners: dict[MessageQueue, Owner] = dict.fromkeys(queues, (None, unowned_reason((), topic)))
        else:
            with member_table.looking() as fd:
                living = member_table.living(fd)
                halted = stopped(member_table, living)
                owners = {
                    queue: owned(member_table, self.numbers, fd, living, queue, halted) for queue in queues
                }
            unowned = None, unowned_reason(list(living.values()), topic)
            owners = {queue: found if any(found) else unowned for queue, found in owners.items()}
        states = [queue_state(self._reader, queue, owners[queue], committed.get(queue)) for queue in queues]
        return states + hidden_states(topic, self._name, len(queues), self.numbers.extents(topic), committed)

    def unread(self, topic: str, queue_ids: range) -> dict[int, Unread]:
        """What some group has not consumed of these queues; without any group, what is kept."""
        extents = {each: found for each, found in self.numbers.extents(topic).items() if each in queue_ids}
        offsets: dict[str, Mapping[int, int] | None] = {}
        for group, topics in self.reading().items() if extents else ():
            members = [each for each in self.members(group) if each.model == "broadcasting"]
            if any(each.topic == topic for member in members for each in member.subscriptions):
                offsets[group] = None  # What is saved of those at work may be of some of them.
            elif topic in topics:
                offsets[group] = topics[topic]
        return unread(extents, offsets)

    def reading(self) -> dict[str, Topics]:
        """The topics that each group reads, and how far it is: where consumers broadcast, the slowest one."""
        return {
            group: topics_read(self.members(group), dict(self._table_of(group)), self.slowest.of(group))
            for group in sorted({*self.names(), *self.slowest.names()})
        }

    # For good.

    def save(self) -> bool:
        """Have in consumerOffset.json what is committed; whether there was anything new."""
        return self._offsets.save(self.numbers, self._exists, self._before_save)

    def _save_at_last(self) -> None:
        try:
            self.save()
            self._offsets.remove_empty(self.numbers)
        except (MQError, OSError) as error:
            log.warning(
                "%s: the last offsets of groups are not on disk (%s): they are lost if the machine is started"
                " anew before the store is opened again",
                self.store.root,
                error,
            )

    def forget(self, member_table: MemberTable) -> None:
        """Under byte 0: have a group without members be one that has consumed nothing."""
        file = member_table.file
        for number in offsets_in(slots_in(file.path, self.numbers.epoch) or b""):
            file.forget(number)
        file.changed()
        self.save()
        self._offsets.forget_group(file.path.name)

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted, and its offsets with it."""
        self._offsets.forget_topic(topic)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # Another thread of the parent may have had it.
        self.takeover.forked()
        for membership in self._memberships:
            membership.forked()

    def close(self) -> None:
        """Leave with all consumers of this broker, once what others change is through. Twice is fine."""
        wait_for_calls(self.store)
        with self._lock:
            self.is_closed = True
            memberships = list(self._memberships)
        for membership in memberships:
            membership.leave()
        with self._lock:
            member_tables, self._member_tables = self._member_tables, {}
        for member_table in member_tables.values():
            member_table.file.close()
