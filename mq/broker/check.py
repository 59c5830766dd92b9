"""Every invariant of a store and of its groups, as a list of what breaks it.

store       what mq.store.check looks at
timers      the wheel, its log and its check say the same
offsets     consumerOffset.json can be read, and speaks of queues that there are
groups      no offset lies beyond the end of its queue, a group's file is whole
keys        what was sent and handled under keys is remembered in files that are whole
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mq.broker import keycheck
from mq.broker.offsets import Offsets
from mq.errors import MQError
from mq.store import check, timerverify
from mq.store.groupfile import damage_of
from mq.store.numbers import Numbers
from mq.store.store import Store

__all__ = ["problems"]


def problems(
    root: str | os.PathLike[str], *, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[str]:
    """Yield each broken invariant in words; nothing if all is sound. Raises nothing but for arguments."""
    found = False
    for problem in check.problems(root, progress=progress):
        found = True
        yield problem
    root = Path(os.fspath(root))
    try:
        store = Store(root, create=False, read_only=True)
    except (MQError, OSError) as error:
        if not found:
            yield f"{root} cannot be opened: {error}"
        return
    try:
        yield from _of_groups(store)
        is_used = not store.gate.is_alone()
        store.gate.leave()  # Who wants to come in meanwhile may.
        yield from timerverify.problems(root, is_used=is_used)
        yield from keycheck.problems(root)
    except (MQError, OSError) as error:
        yield f"{root}: {error}"
    finally:
        store.close()


def _of_groups(store: Store) -> Iterator[str]:
    offsets, numbers = Offsets(store.root), Numbers(store)
    yield from offsets.problems()
    for group in offsets.group_files():
        path = store.root / "mq" / "groups" / group
        if (damage := damage_of(path)) is not None:
            yield f"{path}: {damage}; it is made anew from {offsets.path} when the group is next used"
    # Ends after offsets: what is consumed meanwhile is not beyond them, also in queues that come or go.
    named = numbers.named()
    table = offsets.current(numbers, lambda _: True)
    ends = {queue: numbers.next_offset(number) for number, queue in (named | numbers.named()).items()}
    for group, topics in table.items():
        for topic, ids in topics.items():
            for queue_id, offset in ids.items():
                end = ends.get((topic, queue_id), 0)
                if offset > end:
                    yield (
                        f"group {group}: its offset {offset:,} of {topic}/{queue_id} is beyond the end"
                        f" {end:,}: mq DIR reset {group} {topic}"
                    )
