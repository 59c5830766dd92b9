"""A member's place in the file of its group, with the descriptor that keeps it, and the lease of it."""

from __future__ import annotations

import threading

from mq.store.shared.group_file import EVICTED, LEASE, NEWS, GroupFile, place_word
from mq.store.shared.lease import end_of

__all__ = ["MemberSlot"]


class MemberSlot:
    """fd: opened for this member alone; what it has locked says that the place, and which queues, are its
    own. lease: in seconds; 0: none, which is not renewed and never lapses."""

    def __init__(self, file: GroupFile, place: int, fd: int, until: int, lease: float) -> None:
        self.place = place
        self.fd = fd
        self.at = place_word(place)
        self._file = file
        self._lease = lease
        self._until = until
        self._lock = threading.Lock()  # of the end of the lease
        self._is_given_up = False

    @property
    def news(self) -> int:
        return int(self._file.words[self.at + NEWS])

    @property
    def is_evicted(self) -> bool:
        """Whether others have taken this member for gone, since its lease was over."""
        return bool(self._file.words[self.at + LEASE] == EVICTED)

    @property
    def lease(self) -> float:
        return self._lease

    def renew(self) -> bool:
        """Have the lease from now on; False if it is over for good."""
        with self._lock:
            if self._is_given_up:
                return False
            until = end_of(self._lease)
            # In one step: an eviction changes the same word.
            if not self._file.swap(self.at + LEASE, self._until, until):
                return False
            self._until = until
            return True

    def give_up(self) -> None:
        """Renew it no more. The place may be another's soon."""
        with self._lock:
            self._is_given_up = True
