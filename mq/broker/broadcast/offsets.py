"""How far one consumer of a broadcasting group is: it gets every message, so its offsets are its own.

They lie in <base>/<client id>/offsets.json (see text_format.py), with the state before in
offsets.json.bak. A damaged file is replaced by that; if both are damaged the consumer does not start. `lock`
beside them is held by the consumer that has the client id.

The offsets of a topic that was deleted and made again are dropped: a consumer that is at work goes on with
the first message of the new one, and one that comes back begins where its consume_from says. "last" is the
end of a topic that was there when the consumer first asked for it: it gets all of one that was made later. A
topic that is not there is kept without offsets, made_at being null, which tells that it was asked for. A
reset of the group is applied once: by a consumer at work as soon as it sees it, by another when it starts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mq.api.group import LastingClaim, Membership
from mq.api.queues import Puller
from mq.api.results import MessageQueue
from mq.broker.broadcast.text_format import TopicOffsets, parse, write_out
from mq.errors import (
    BrokerClosed,
    ForkedBroker,
    GroupInvalid,
    MQError,
    NotPermitted,
    StoreCorrupted,
    TopicNotFound,
)
from mq.message import MessageExt
from mq.store.directory.config_file import write_config
from mq.store.directory.file_locks import open_own_file
from mq.store.directory.owner import make_directory, opened_file
from mq.store.os_errors import named_errors

__all__ = ["BroadcastClaim", "BroadcastOffsets", "Source", "is_held", "older_copy"]

INSTANCES_MAX = 10_000
NAMED_MAX = 20  # offsets, in a warning

logger = logging.getLogger("mq.groups")


@dataclass(frozen=True, slots=True)
class Source:
    """What the offsets of a consumer ask of its broker. Offsets of a topic are by queue id."""

    begin: Callable[[str, str | int], dict[int, int]]
    """Where to begin with a topic, by consume_from. Raises TopicNotFound, NotPermitted."""
    puller: Callable[[MessageQueue], Puller]
    made_at: Callable[[str], int | None] = lambda _topic: None
    """Which topic of that name it is. Raises TopicNotFound."""
    resets: Callable[[], Mapping[str, TopicOffsets]] = dict
    """The last reset of each topic of the group."""
    earlier: Callable[[str], Mapping[str, dict[int, int]]] = lambda _client_id: {}
    """What an earlier version of mq has kept of a client id elsewhere, of each topic."""


class BroadcastOffsets:
    """The offsets of one broadcasting consumer. See mq.api.group.BroadcastOffsets.

    Without a client id it is the first of <host>@DEFAULT, <host>@DEFAULT-2, ... that no live consumer
    has: as many processes as there were the last time find the same ids again.
    """

    def __init__(self, base: Path, group: str, client_id: str | None, source: Source) -> None:
        self.is_dirty = False  # whether there is something to save
        self.seen: int | None = None  # the version of the group for which `changes` is right
        self.changes: dict[str, int] = {}  # by topic: how often offsets became others than were committed
        self._group = group
        self._source = source
        self._saving = threading.Lock()  # one thread at a time writes the file
        self._lock = threading.Lock()  # guards what follows
        self._topics: dict[str, TopicOffsets] = {}
        self._text = ""  # what the file says
        self._lock_fd = -1
        _open.add(self)
        with named_errors(base):
            make_directory(base, parents=True)
            if client_id is not None:
                self._path = base / client_id / "offsets.json"
                if not self._take_lock():
                    raise GroupInvalid(
                        f"client_id {client_id!r} is that of another live consumer of the broadcasting group"
                        f" {group}, which has {self._path}: give each consumer its own"
                    )
                self.client_id = client_id
            else:
                self.client_id = self._free_client_id(base)
            try:
                self._earlier = self._load()
            except BaseException:
                self.close()
                raise

    def _free_client_id(self, base: Path) -> str:
        host = re.sub(r"[^\w.-]", "_", socket.gethostname()) or "localhost"
        for instance in range(1, INSTANCES_MAX):
            client_id = f"{host}@DEFAULT" + (f"-{instance}" if instance > 1 else "")
            self._path = base / client_id / "offsets.json"
            if self._take_lock():
                return client_id
        raise GroupInvalid(f"{base}: {INSTANCES_MAX:,} live consumers of {self._group}")

    def begin(self, topic: str, consume_from: str | int) -> None:
        """See BroadcastOffsets.begin."""
        with self._lock:
            known = self._topics.get(topic)
            try:
                made_at = self._source.made_at(topic)
                if known is None or not known.is_of(made_at):
                    if known is not None and consume_from == "last":
                        consume_from = "first"  # It was made after this consumer asked for it.
                    offsets = self._earlier.pop(topic, None) if known is None else None
                    if offsets is None:
                        offsets = self._source.begin(topic, consume_from)
                    self._topics[topic] = TopicOffsets(made_at, offsets, self._last_reset(topic))
                    self._mark_changed(topic)
                    return
                self._apply_reset(topic, known, self._source.resets().get(topic))
                ends = self._source.begin(topic, "last")
                beyond = [each for each, offset in known.offsets.items() if offset > ends.get(each, offset)]
                if beyond:
                    fresh = self._source.begin(topic, consume_from)
                    logger.warning(
                        "group %s: offsets of %s are beyond the end of queues %s: consumption of these begins"
                        " where consume_from says",
                        *(self._group, topic, beyond),
                    )
                    known.offsets.update({each: fresh[each] for each in beyond})
                    self._mark_changed(topic)
            except (TopicNotFound, NotPermitted):
                if known is None:  # Once it is there, all its messages come.
                    self._await(topic)

    def claim(self, queue: MessageQueue, membership: Membership) -> BroadcastClaim:
        """See BroadcastOffsets.claim."""
        return BroadcastClaim(self, queue, membership.version, self._source.puller)

    def get(self, queue: MessageQueue) -> int | None:
        """Where a queue is now; None for its first message. Raises TopicNotFound."""
        with self._lock:
            known = self._topics.get(queue.topic)
            if known is None:
                made_at = self._source.made_at(queue.topic)
                known = TopicOffsets(made_at, reset=self._last_reset(queue.topic))
                self._topics[queue.topic] = known
            return known.offsets.get(queue.queue_id)

    def put(
        self, queue: MessageQueue, offset: int, *, changes: int | None = None, downwards: bool = False
    ) -> None:
        """Set where a queue is. changes: how often the offsets of its topic had become others by then."""
        with self._lock:
            known = self._topics.get(queue.topic)
            if known is None or changes not in (None, self.changes.get(queue.topic, 0)):
                return  # The topic is gone, or another one.
            if downwards or offset > known.offsets.get(queue.queue_id, -1):
                known.offsets[queue.queue_id] = offset
                self.is_dirty = True

    def look(self, version: int) -> None:
        """Drop the offsets of topics that are gone or others by now, and apply resets."""
        if version == self.seen:
            return
        with self._lock:
            try:
                resets = self._source.resets()
                for topic, known in list(self._topics.items()):
                    try:
                        made_at = self._source.made_at(topic)
                    except TopicNotFound:
                        self._await(topic)
                        continue
                    if known.is_of(made_at):
                        self._apply_reset(topic, known, resets.get(topic))
                    else:
                        self._topics[topic] = TopicOffsets(made_at, reset=self._last_reset(topic))
                        self._mark_changed(topic)
            except (BrokerClosed, ForkedBroker):
                pass  # What listeners have done until now counts.
            except (MQError, OSError):
                return  # The rebalance meets it too, and says so. Asked again at the next commit.
            self.seen = version

    def _await(self, topic: str) -> None:
        """Have nothing of a topic that is not there, but that it was asked for."""
        known = self._topics.get(topic)
        if known is None or known.made_at is not None:
            self._topics[topic] = TopicOffsets(None)
        elif known.offsets:  # A broker made it. Without them it would look like an older copy.
            del self._topics[topic]
        else:
            return
        self._mark_changed(topic)

    def _last_reset(self, topic: str) -> str:
        reset = self._source.resets().get(topic)
        return reset.reset if reset is not None else ""

    def _apply_reset(self, topic: str, known: TopicOffsets, reset: TopicOffsets | None) -> None:
        # An earlier one is of an older copy of the file.
        if reset is not None and reset.reset > known.reset and reset.is_of(known.made_at):
            known.offsets |= {
                queue_id: offset
                for queue_id, offset in reset.offsets.items()
                if reset.resets.get(queue_id, reset.reset) > known.reset
            }
            known.reset = reset.reset
            self._mark_changed(topic)

    def _mark_changed(self, topic: str) -> None:
        self.changes[topic] = self.changes.get(topic, 0) + 1
        self.is_dirty = True

    def save(self) -> None:
        """Have everything on disk that was set before. Raises OSError, MQError."""
        with self._saving:
            if self.is_dirty and self._lock_fd >= 0:
                self._save()

    def _save(self) -> None:
        self.is_dirty = False
        try:
            self._check_place()
            with self._lock:
                text = write_out(self._topics)
            if text != self._text:  # Else it would look like an older copy.
                write_config(self._path, text)
                self._text = text
        except BaseException:
            self.is_dirty = True
            raise

    def _check_place(self) -> None:
        """Where the directory was moved, its path leads to another one's files."""
        held, there = os.fstat(self._lock_fd), self._path.with_name("lock").stat()
        if (held.st_dev, held.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(
                f"{self._path.parent} was moved or deleted while its consumer was at work"
            )

    def close(self) -> None:
        """Let another consumer have the client id. Twice is fine."""
        with self._saving:
            fd, self._lock_fd = self._lock_fd, -1
            if fd >= 0:
                os.close(fd)

    def _take_lock(self) -> bool:
        make_directory(self._path.parent)
        fd = open_own_file(self._path.with_name("lock"))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock_fd = fd
        return True

    def _load(self) -> dict[str, dict[int, int]]:
        """Read the file; what an earlier version kept elsewhere, where there is none yet."""
        failures, is_missing = [], False
        for path in (self._path, self._path.with_name("offsets.json.bak")):
            try:
                text = path.read_bytes().decode()
                self._topics = parse(text)
            except FileNotFoundError:
                is_missing = path is self._path
                continue
            except ValueError as error:
                failures.append(f"{path}: {error}")
                continue
            if is_missing:
                failures.append(f"{self._path} is missing")
            if failures:
                logger.warning(
                    "%s; %s is read instead: messages since that was written come again",
                    *("; ".join(failures), path),
                )
            else:
                self._text = text
                for problem in older_copy(path):
                    logger.warning("%s", problem)
            return {}
        if failures:
            raise StoreCorrupted(
                f"the offsets of group {self._group} cannot be read ({'; '.join(failures)}): remove the files"
                " to begin where consume_from says",
                path=str(self._path),
            )
        return dict(self._source.earlier(self.client_id))


def is_held(lock: Path) -> bool:
    """Whether a consumer has the client id whose lock this is."""
    with opened_file(lock) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def older_copy(path: Path) -> Iterator[str]:
    """Whether a file is older than its .bak, in words: the same, or an offset in it is lower though there was
    no reset in between."""
    backup = path.with_name(path.name + ".bak")
    try:
        texts = path.read_bytes(), backup.read_bytes()
        is_same = path.samefile(backup)  # Its writer died before it replaced the file.
        now, before = (parse(text.decode()) for text in texts)
    except (OSError, ValueError):
        return  # Reported elsewhere.
    lower = [
        f"{topic}/{queue_id} from {offset:,} to {now[topic].offsets.get(queue_id, 0):,}"
        for topic, known in before.items()
        if topic in now and now[topic].made_at == known.made_at and now[topic].reset <= known.reset
        for queue_id, offset in known.offsets.items()
        if now[topic].offsets.get(queue_id, 0) < offset
    ]
    has_older_reset = any(topic in now and now[topic].reset < known.reset for topic, known in before.items())
    if lower or has_older_reset or (texts[0] == texts[1] and not is_same):
        went = f" (offsets went down: {', '.join(lower[:NAMED_MAX])})" if lower else ""
        yield f"{path} is an older copy{went}: messages that its consumer has had come again"


# A lock lives on in a forked child's copy of the descriptor.
_open: weakref.WeakSet[BroadcastOffsets] = weakref.WeakSet()


def _close_in_child() -> None:
    for offsets in _open:
        offsets.close()


os.register_at_fork(after_in_child=_close_in_child)


class BroadcastClaim(LastingClaim):
    """A queue of a broadcasting consumer: see mq.api.group.Claim. Nobody else commits on it."""

    def __init__(
        self,
        offsets: BroadcastOffsets,
        queue: MessageQueue,
        version: Callable[[], int],
        puller: Callable[[MessageQueue], Puller],
    ) -> None:
        self.queue = queue
        self._puller = puller
        self._offsets = offsets
        self._version = version
        self._seen = -1

    def committed(self) -> int | None:
        """See Claim.committed."""
        self._offsets.look(self._version())
        self._seen = self._offsets.changes.get(self.queue.topic, 0)
        return self._offsets.get(self.queue)

    def commit(self, offset: int) -> bool:
        """See Claim.commit."""
        if not self.is_current():
            return False
        self._offsets.put(self.queue, offset, changes=self._seen)
        return True

    def correct(self, offset: int) -> None:
        """See Claim.correct."""
        if self.is_current():
            self._offsets.put(self.queue, offset, changes=self._seen, downwards=True)

    def puller(self) -> Puller:
        """See Claim.puller."""
        return self._puller(self.queue)

    def send_back(self, message: MessageExt, *, delay_level: int = 0, max_reconsume_times: int = 16) -> bool:
        """See Claim.send_back."""
        raise NotPermitted(
            f"message {message.msg_id} cannot be sent back: a broadcasting group has no retry topic"
        )

    def is_current(self) -> bool:
        """See Claim.is_current."""
        offsets = self._offsets
        version = self._version()
        if version != offsets.seen:
            offsets.look(version)
        return offsets.changes.get(self.queue.topic, 0) == self._seen
