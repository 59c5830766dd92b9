"""mq/once/: the files of handled keys of all groups, opened on first use and forced to disk together."""

from __future__ import annotations

import os
import threading

from mq.broker.once.handled_keys import SIZE_MAX, LocalHandled
from mq.errors import NotPermitted, StorePoisoned
from mq.names import check_group
from mq.store.directory.owner import opened_file
from mq.store.store import Store
from mq.uninterrupted import uninterrupted

__all__ = ["OnceFiles"]


class OnceFiles:
    """The files of one store, for one broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._directory = store.root / "mq" / "once"
        self._lock = threading.Lock()  # guards what follows
        self._open: dict[str, LocalHandled] = {}
        self._failed: str | None = None
        store.detach_with(self._forked)

    def of(self, group: str, size: int | None = None) -> LocalHandled:
        """See HandledKeys.of."""
        self._store.live()
        check_group(group)
        if size is not None:
            _check_size(size)
        if self._store.read_only:
            raise NotPermitted(
                f"{self._store.root} was opened with read_only=True: what is handled is written"
            )
        keys = self._open.get(group)
        if keys is None or size not in (None, keys.size):
            keys = uninterrupted(lambda: self._opened(group, size), of=self._store)
        return keys

    def _opened(self, group: str, size: int | None) -> LocalHandled:
        with self._lock:
            keys = self._open.get(group)
            if keys is None or size not in (None, keys.size):
                keys = LocalHandled(self._store, self._directory / group, size)
                self._open[group] = keys
            return keys

    def forget(self, group: str) -> None:
        """Have a group be one that has handled no key. Its file stays, as others may have it mapped."""
        if (self._directory / group).exists():
            self.of(group).clear()
            self.sync()

    def sync(self) -> None:
        """Have all marks on disk that were written before, by whichever process. Raises StorePoisoned."""
        if self._failed is not None:
            raise StorePoisoned(self._failed)
        try:
            paths = sorted(self._directory.iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            if path.is_symlink() or not path.is_file():
                continue  # Nobody has marks in there.
            try:
                with opened_file(path) as fd:
                    os.fdatasync(fd)
            except OSError as error:
                # The kernel may take what it could not write for written from now on.
                self._failed = (
                    f"{path} could not be forced to disk ({error.strerror}): offsets are not written any"
                    " more; open the store again once the disk is sound"
                )
                raise StorePoisoned(self._failed) from error

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            keys = list(self._open.values())
            self._open.clear()
        for each in keys:
            each.close()


def _check_size(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"size is an int, not {type(size).__name__}")
    if not 1 <= size <= SIZE_MAX:
        raise ValueError(f"size is {size:,} keys: it must be from 1 to {SIZE_MAX:,}")
