"""The version of the set of filters that extensions have bits of, in all processes of a store."""

from __future__ import annotations

from mq.store.native import lib
from mq.store.shared.lock_guards import append_lock
from mq.store.store import Store

__all__ = ["filters_changed", "filters_version"]


def filters_version(store: Store) -> int:
    """Of the set of filters that bitmaps are made by, in all processes of a store."""
    return store.word(lib.MQ_FILTERS_VERSION)


def filters_changed(store: Store) -> int:
    """Let nobody store a bitmap that was made before; the log offset where later ones begin."""
    log, control = store.live(), store.control
    assert control is not None
    with append_lock(log, store.root):
        control.add(lib.MQ_FILTERS_VERSION)
        return control.get(lib.MQ_LOG_END)
