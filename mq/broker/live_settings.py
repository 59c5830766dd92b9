"""The settings of one open store: read again when another process has changed them."""

from __future__ import annotations

from typing import Any

from mq.broker.options import check_kept
from mq.errors import NotPermitted
from mq.store.directory.settings import USUAL, Settings, SettingsFile
from mq.store.store import Store

__all__ = ["AgreedSettings"]

UNREAD = 0, 0, 0  # the signature of no file


class AgreedSettings:
    """mq/settings.json of a store, for one broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.file = SettingsFile(store.root)
        # With the file's signature when they were so. A pair, and no lock: a signal handler may ask too. What
        # the store read when it was opened may have been changed since.
        self._known: tuple[tuple[int, int, int] | None, Settings] = UNREAD, store.settings

    def current(self) -> Settings:
        """As they are by now; a look at the file's times, as long as nobody has changed them."""
        # Before it is read: a change that comes meanwhile is seen by the next look.
        signature = self.file.signature()
        known = self._known
        if signature != known[0]:
            self._known = known = signature, self.file.read()
        return known[1]

    def option(self, name: str) -> Any:
        """One of them."""
        return self.current().option(name)

    def kept(self) -> dict[str, Any]:
        """The options that the store keeps, by now."""
        current = self.current()
        return {name: current.option(name) for name in USUAL}

    def change_kept(self, **changes: Any) -> None:
        """Change options that the store keeps, for all processes: retention_hours, flush_interval, and the
        others that docs/guide.md names.

        Retention and transactions go by them within 10 s, all else as soon as a process opens the store.
        Raises TypeError, ValueError, NotPermitted.
        """
        check_kept(changes)
        self.change(**changes)

    def change(self, **changes: Any) -> Settings:
        """Change settings for all processes. Raises NotPermitted, ValueError, TypeError."""
        self._store.stay_in_place()
        if self._store.read_only:
            raise NotPermitted(f"{self._store.root} was opened with read_only=True: its settings stay")
        self.file.update(**changes)
        return self.current()
