"""A store root: opened, recovered, closed, and the parts that live in it.

    var/orders/
        commitlog/       the messages                            log/commitlog.py
        consumequeue/    where each queue's messages are         queue/consumequeue.py, queue/extensions.py
        index/           where the messages of a key are         index/index.py
        checkpoint       what is known to be on disk             directory/checkpoint.py
        abort  lock      RocketMQ's marks: open; in use          directory/open_lock.py
        config/          topics and offsets, JSON                mq.broker
        mq/              ours, all of it can be rebuilt:
            control      shared memory                           shared/control.py
            gate         order of opening and closing            directory/open_lock.py
            members      one place for each open broker          shared/members.py
            duties       lock of the leader                      mq.broker.leader
            follower     lock of the process that follows        shared/role.py
            groups/      members of groups, owners of queues     shared/group_file.py
            geometry.json    file sizes                          directory/file_sizes.py
            settings.json    identity, what all agree on         directory/settings.py

The first process in attaches to a control file that can be believed, at once, whatever the size; without one
it recovers, from the checkpoint on. A later process just maps what the others share.

A Store used in a forked child raises ForkedBroker; the at-fork hook drops the child's copies of the locks.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mq.errors import MQError, StoreFull
from mq.store.directory.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mq.store.directory.file_locks import unlock_byte
from mq.store.directory.file_sizes import agree, keep, validated
from mq.store.directory.log_begin import keep_log_begin
from mq.store.directory.open_lock import OpenLock
from mq.store.directory.root import is_listed, listed_queues, prepare, private_copy, topics_begin
from mq.store.directory.settings import Settings, SettingsFile
from mq.store.directory.topic_journal import fold_long_journal, listed_topics
from mq.store.index.index import Index
from mq.store.index.index_builder import bring_up, go_on, indexed_end
from mq.store.log.unique_id import seed_ids
from mq.store.native import check, lib
from mq.store.os_errors import named_errors
from mq.store.queue.consumequeue import queue_directories, remove_queues
from mq.store.recovery.control_validation import Hint, believable, fresh_control, hint, open_log, shared
from mq.store.recovery.log_files import cut_files
from mq.store.recovery.losses import tell
from mq.store.recovery.recover import Progress, Recovered, recover
from mq.store.refusals import refusal
from mq.store.shared.control import Control, Word
from mq.store.shared.lock_guards import append_lock
from mq.store.shared.members import Members
from mq.store.shared.role import Role
from mq.threads import start

__all__ = ["Store"]

READ, APPEND, READ_PRIVATELY = 0, 1, 2  # see mq_log_open

_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
    """One directory of messages, for one broker of this process.

    options: sizes that must agree with the directory's (see mq/store/directory/file_sizes.py), or None.
    sync: readers of this store see what is on disk, and nothing else.
    settings: what the directory said of itself when it was opened; settle(settings): what to change then.
    recovered: what a recovery found, None if none was needed.
    known: what an older control file told, or that of a clean end; None where the store was not closed.
    on_recovered: called after a recovery, or when a replica becomes a master, before others may come in.
    follow: be a replica, to which a master's log is appended: see shared/role.py.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        create: bool = True,
        read_only: bool = False,
        sync: bool = False,
        reserve_size: int = 0,
        follow: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
        on_recovered: Callable[[Control, Hint | None], None] | None = None,
        settle: Callable[[Settings], Mapping[str, Any]] = lambda _settings: {},
        **options: int | None,
    ) -> None:
        if not os.fspath(root):
            raise ValueError("the path of a store is empty: name a directory")
        validated(options)
        self.root = Path(os.fspath(root)).absolute()
        self.read_only = read_only
        self.sync = sync
        self.role = Role(self.root, follows=follow)
        self.settings = Settings()
        self.recovered: Recovered | None = None
        self.known: Hint | None = None
        self._state = "opening"
        self._index_time = 0
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._descriptors: set[int] = set()
        self._holders: list[Callable[[], None]] = []
        self._on_recovered, self._settle = on_recovered, settle
        self._last_words: list[Callable[[], None]] = []
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        with named_errors(self.root):
            prepare(self.root, create=create, read_only=read_only)
            self.open_lock = OpenLock(self.root)
        self.members: Members | None = None
        self.control: Control | None = None
        self.log: Any = None
        _stores.add(self)  # A child that another thread forks from now on keeps no lock of it.
        try:
            with named_errors(self.root), self.open_lock.opening():
                self.open_lock.opened_by()
                try:
                    self._open(options, progress)
                except BaseException:
                    self.open_lock.leave()  # As in close.
                    raise
            lib.mq_log_set_reserve(self.log, 0 if read_only else reserve_size)
            # It has the log alone: a store that is dropped is not kept by its thread.
            prepare_log = partial(lib.mq_log_prepare, self.log)
            start(thread := threading.Thread(target=prepare_log, name="mq-prepare", daemon=True))
            self._threads.append(thread)
        except BaseException:
            self._drop()
            raise
        self._state = "open"

    def _open(self, options: dict[str, int | None], progress: Callable[[str, int, int], None] | None) -> None:
        lock_mtime = self.open_lock.keep_brokers_out()
        if (alone := self.open_lock.is_alone()) and not self.read_only:
            fold_long_journal(self.root)
        self.file_sizes = agree(self.root, options)
        self.settings = SettingsFile(self.root).opened(self._settle, read_only=self.read_only)
        self.index = Index(
            self.root / "index",
            slot_count=self.file_sizes.index_slot_count,
            unit_count=self.file_sizes.index_unit_count,
            read_only=self.read_only,
        )
        path = self.root / "mq" / "control"
        old = believable(self.root, self.open_lock, self.file_sizes, lock_mtime) if alone else shared(path)
        if old is not None:
            self.control, self.known = old, Hint.of_closed(old) if alone else None
            self._map(self.root, READ if self.read_only else APPEND)
            if alone and not self.read_only:
                old.set_boot()
                # The last process may have died with a lock in hand, or in the middle of an append.
                check(lib.mq_control_new_locks(old.handle), str(path))
                check(lib.mq_log_take_over(self.log), str(self.root))
        else:
            self.known = hint(self.root, self.file_sizes, lock_mtime)
            self._recover(path, read_checkpoint(self.root), self.known, progress)
        assert self.control is not None
        changed = self.role.settle(self.control, alone=alone, read_only=self.read_only)
        if self._on_recovered is not None and not self.read_only and (changed or old is None):
            self._on_recovered(self.control, self.known)
        self.control.set(lib.MQ_LOCK_MTIME, lock_mtime)
        if self.read_only:
            # Not attached: the last writer closes cleanly beside a reader, and the first one recovers.
            self.open_lock.leave()
            return
        self.control.set(lib.MQ_CLEAN, 0)
        if alone and old is not None:
            go_on(self.index, old, self.root, writable=True)
        elif not self.index.files():
            self.control.set(lib.MQ_INDEXED_END, 0)
        self.open_lock.mark_open()
        keep(self.root, self.file_sizes)
        keep_log_begin(self.root, self.control)
        self.members = Members(self.root / "mq" / "members")
        self.members.join()
        self.open_lock.enter()

    def _map(self, root: Path, mode: int) -> None:
        assert self.control is not None
        self.log = open_log(root, self.control, mode, sync=self.sync)
        lib.mq_log_set_host(self.log, self.settings.address)

    def _recover(self, path: Path, checkpoint: Checkpoint, known: Hint, progress: Progress | None) -> None:
        root, mode, listed = self.root, APPEND, listed_topics(self.root)
        # Where our own last word was another one, it is the mark of being open that got lost.
        known.was_closed = closed_cleanly = self.open_lock.was_closed() and (known.clean or not known.ours)
        if self.read_only:
            self._private = private_copy(self.root)
            root, mode = Path(self._private.name), READ_PRIVATELY
        else:
            self.open_lock.mark_open()  # From here on the directory changes: cut short, it was not closed.
        fresh = root / "mq" / "control.new"
        self.control = control = fresh_control(fresh, self.file_sizes)
        self._map(root, mode)
        with_files = {topic for topic, _, _ in queue_directories(self.root)}
        found = recover(
            root,
            self.log,
            control,
            self.file_sizes,
            checkpoint=checkpoint,
            closed_cleanly=closed_cleanly,
            known=known,
            indexed_end=indexed_end(self.index),
            listed_queues=listed_queues(listed),
            topics_begin=topics_begin(listed),
            writable=not self.read_only,
            progress=progress,
        )
        if not closed_cleanly and not self.read_only:
            self.index.discard_after(checkpoint.index_time, found.log_end)
        go_on(self.index, control, self.root, writable=not self.read_only)
        for topic in {topic for _, topic, _ in control.queues()} - with_files:
            # Its records are in the log, its queues were not: deleted, unless topics.json still has it.
            if is_listed(listed, topic):
                continue
            if self.read_only:  # In its own copy: a writer removes the queues.
                control.delete_queues(topic)
            else:
                self._forget(topic)
        if found.log_end:
            self.recovered = found
        if not self.read_only:
            fresh.replace(path)
            tell(self.root, found.losses, found.made_anew)

    def live(self) -> Any:
        """The log's handle. Raises BrokerClosed, ForkedBroker."""
        if self._state == "open":
            return self.log
        raise self.refusal()

    def refusal(self) -> MQError:
        return refusal(self.root, self._state)

    @property
    def is_replica(self) -> bool:
        """Whether a master's log is followed here, by another process: nothing may be appended."""
        return not self.role.follows and self.role.is_replica(self.control)

    def check_master(self) -> None:
        """Raises NotPermitted for a replica: nothing may be appended, or changed."""
        check(lib.MQ_FOLLOWS if self.is_replica else 0, str(self.root))

    def word(self, word: int) -> int:
        self.live()
        assert self.control is not None
        return self.control.get(word)

    def end(self) -> int:
        """Where the log ends, as a log offset."""
        return self.word(lib.MQ_LOG_END)

    def visible_end(self) -> int:
        """Where the log ends for readers of this store, as a log offset."""
        return self.word(lib.MQ_FLUSHED_END if self.sync else lib.MQ_LOG_END)

    def topics_version(self) -> Word:
        """A word that grows with every change of a topic: [0] is its value."""
        assert self.control is not None
        return self.control.word(lib.MQ_TOPICS_VERSION)

    def topics_changed(self) -> None:
        assert self.control is not None
        self.control.add(lib.MQ_TOPICS_VERSION)
        # A reader that waits at the end of a queue looks whether it still is there.
        lib.mq_control_wake_readers(self.control.handle)

    def queues(self, *, except_of: Container[str] = ()) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue that has messages, but those of some topics."""
        self.live()
        assert self.control is not None
        return self.control.queues_with_messages(except_of)

    def delete_queues(self, topic: str, *, if_empty: bool = False) -> bool:
        """Forget the queues of a topic, for everybody, and remove their files. if_empty: unless one of them
        has had a message; whether they are gone."""
        self.live()
        return self._forget(topic, if_empty=if_empty)

    def _forget(self, topic: str, *, if_empty: bool = False) -> bool:
        control = self.control
        assert control is not None
        with append_lock(self.log, self.root):
            if not control.delete_queues(topic, if_empty=if_empty):
                return False
            remove_queues(self.root, topic)
        return True

    def stay_in_place(self) -> None:
        """Once the directory is not here any more, paths lead to files of another one: refuse everything."""
        if self._state == "open" and not self.open_lock.is_in_place():
            self._state = "moved"
            assert self.control is not None
            self.control.add(lib.MQ_TOPICS_VERSION)  # A sender that did not look at live() looks again.
            # What is mapped still is ours.
            lib.mq_log_flush(self.log, self.control.get(lib.MQ_LOG_END), -1, 60_000)
        self.live()

    def flush_log(self) -> None:
        """Have every record on disk that was sent before. Raises StorePoisoned."""
        self.stay_in_place()
        check(lib.mq_log_flush(self.live(), self.word(lib.MQ_LOG_END), -1, 60_000), str(self.root))

    def flush_queues(self) -> None:
        """Have every queue unit on disk that was written before."""
        check(lib.mq_log_flush_queues(self.live()), str(self.root))

    def release_old(self) -> int:
        """Let go of files that were deleted, here or elsewhere; how many. A thread does so within 20 s."""
        return check(lib.mq_log_release(self.live(), self.word(lib.MQ_LOG_MIN)), str(self.root))

    def flush(self) -> None:
        """Have everything on disk that was sent before: messages, queue units, checkpoint."""
        with named_errors(self.root):
            self.flush_log()
            self.flush_queues()
            self.write_checkpoint(sync=True)

    def write_checkpoint(self, *, sync: bool) -> None:
        """Say what is on disk; nothing new once a flush has failed."""
        control = self.control
        assert control is not None
        self.stay_in_place()
        if control.get(lib.MQ_POISONED_WORD):
            return
        times = control.get(lib.MQ_FLUSHED_STORE_TIME), control.get(lib.MQ_QUEUES_FLUSHED_TIME)
        write_checkpoint(self.root, Checkpoint(*times, self._index_time), sync=sync)

    def bring_index_up(self) -> int:
        """Index every message that is in the log now; how many bytes of log that took."""
        assert self.control is not None
        self.stay_in_place()
        return bring_up(self.index, self.control, self.live(), str(self.root))

    def sync_index(self) -> None:
        """Have full index files on disk, so that a crash of the machine does not cost them."""
        self._index_time = self.index.sync_full(self._index_time)

    def close(self) -> None:
        """Close; the last one inside leaves the directory as a RocketMQ broker would. Twice is fine."""
        with self._closing:
            if self._state not in ("open", "moved"):
                return
            lib.mq_log_stop(self.log)
            assert self.control is not None
            lib.mq_control_wake_all(self.control.handle)
            for thread in self._threads:
                thread.join()
            try:
                with named_errors(self.root), self.open_lock.opening():
                    self.open_lock.opened_by()
                    try:
                        if not self.read_only and self.open_lock.is_alone():
                            self.stay_in_place()
                            self._close_cleanly()
                    finally:
                        # Before the next process may open it: that one must find itself alone.
                        self.open_lock.leave()
            finally:
                self._state = "closed"
                self._drop()

    def _close_cleanly(self) -> None:
        control = self.control
        assert control is not None
        # Nobody else is inside: a lock whose owner died is repaired here, or nowhere.
        check(lib.mq_log_repair_tail(self.log, 1000), str(self.root))
        if control.get(lib.MQ_POISONED_WORD):
            return  # abort stays: the next one in looks at the disk.
        with suppress(StoreFull):  # The index can wait until there is space; what is in the log cannot.
            self.bring_index_up()
        self.flush()
        for say in self._last_words:
            say()
        self.index.sync()
        end = control.get(lib.MQ_LOG_END)
        cut_files(self.root, self.log, end, self.file_sizes.commitlog_file_size)
        for number, _, _ in control.queues():
            check(lib.mq_queue_seal(self.log, number), str(self.root))
        control.set(lib.MQ_CHECKSUM, lib.mq_control_checksum(control.handle))
        control.set(lib.MQ_CLEAN, 1)
        self.open_lock.mark_closed()

    def _drop(self) -> None:
        """Give everything back, in whatever state the opening or closing was."""
        self.log = None
        if self.control is not None:
            self.control.close()
        if (index := getattr(self, "index", None)) is not None:
            index.close()
        if self.members is not None:
            self.members.close()
        if self._private is not None:
            self._private.cleanup()
        self.role.close()
        self.open_lock.close()
        del self._holders[:], self._last_words[:]

    def close_in_child(self, fd: int) -> None:
        """A descriptor that holds a lock: a forked child closes its copy at once."""
        self._descriptors.add(fd)

    def closed_here(self, fd: int) -> None:
        if fd in self._descriptors:  # Not in a forked child, where it is closed already.
            unlock_byte(fd, 0, 0)  # A child forked between the next two lines keeps a copy.
            self._descriptors.remove(fd)
            os.close(fd)

    def detach_with(self, detach: Callable[[], None]) -> None:
        """To be called when the log is no longer to be used: in a forked child."""
        self._holders.append(detach)

    def at_last_close(self, say: Callable[[], None]) -> None:
        """To be called when this store closes and nobody else is inside."""
        self._last_words.append(say)

    def _forked(self) -> None:
        """In a forked child: be of no use, and hold no lock that is the parent's."""
        if self._state in ("opening", "open"):
            self._state = "forked"
        self.log = None
        if self.control is not None:
            self.control.close(self.refusal())
        for detach in self._holders:
            detach()
        while self._descriptors:
            os.close(self._descriptors.pop())
        self.role.close()
        self.open_lock.close()
        if self.members is not None:
            self.members.close()


def _after_fork() -> None:
    seed_ids()
    for store in list(_stores):
        store._forked()


os.register_at_fork(after_in_child=_after_fork)
