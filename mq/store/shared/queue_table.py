"""The numbers of queues, by which other shared files go: a place in the table of the control file, and which
use of that place it is.

The place of a deleted queue is used again, under another number. So a number is never another queue's, also
not one of the same name after its topic was deleted; but when the control file is made anew, which its epoch
tells, all numbers are.
"""

from __future__ import annotations

from mq.store.native import check, ffi, lib
from mq.store.store import Store

__all__ = ["Numbers", "topics_view"]


class Numbers:
    """The table of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._named: tuple[tuple[int, int], dict[int, tuple[str, int]]] = ((-1, -1), {})

    @property
    def epoch(self) -> int:
        return self._store.word(lib.MQ_EPOCH)

    def find(self, topic: str, queue_id: int, *, add: bool = False) -> int:
        """The number of a queue, whether it may be read or not; -1 if it has none."""
        name = topic.encode()
        number = lib.mq_log_queue(self._store.live(), name, len(name), queue_id, add)
        return -1 if number == lib.MQ_MISSING else check(number, str(self._store.root))

    def next_offset(self, number: int) -> int:
        """Where a queue ends."""
        self._store.live()
        assert self._store.control is not None
        return self._store.control.next_offset(number)

    def extents(self, topic: str) -> dict[int, tuple[int, int]]:
        """Queue id to the offset of the oldest message and of the next to come, of each queue of a topic that
        ever had a message or a reader."""
        control = self._store.control
        assert control is not None
        return {
            queue_id: (max(control.min_offset(number), 0), control.next_offset(number))
            for number, (name, queue_id) in self.named().items()
            if name == topic
        }

    def named(self) -> dict[int, tuple[str, int]]:
        """(topic, queue id) of every number."""
        version = int(self._store.topics_version()[0]), self._store.word(lib.MQ_QUEUES_MADE)
        if self._named[0] != version:
            assert self._store.control is not None
            found = {number: (topic, queue_id) for number, topic, queue_id in self._store.control.queues()}
            self._named = version, found
        return self._named[1]


def topics_view(store: Store) -> memoryview:
    """The word that grows with every change of a topic, as [0]. Keeps the control file mapped as long as it
    lives: another thread may close the store."""
    assert store.control is not None
    handle = store.control.handle
    word = ffi.gc(lib.mq_control_word(handle, lib.MQ_TOPICS_VERSION), lambda _word, _handle=handle: None)
    return memoryview(ffi.buffer(word, 8)).cast("q")
