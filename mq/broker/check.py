"""Every invariant of a store and of its groups, as a list of what breaks it.

store       what mq.store.check looks at
settings    mq/settings.json can be read
timers      the wheel, its log and its check say the same
topics      config/topics.json can be read, and is no older copy
offsets     consumerOffset.json can be read, speaks of queues that there are, and says what groups' files do
groups      no offset lies beyond the end of its queue, a group's file is whole
broadcast   offsets of broadcasting consumers can be read
keys        what was sent and handled under keys is remembered in files that are whole
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from mq.broker.broadcast import groups
from mq.broker.groups.lowered_offsets import lowered
from mq.broker.groups.offsets import Offsets
from mq.broker.once import dedup_check
from mq.broker.topics.config import Topics
from mq.broker.topics.unread import hidden_reason, in_words, unread
from mq.errors import MQError
from mq.names import is_system_group, is_system_topic
from mq.store import check
from mq.store.directory.settings import SettingsFile
from mq.store.shared.group_file import damage_of
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store
from mq.store.timer import check as timerverify

__all__ = ["notes", "problems"]


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
        yield from _of_topics(store)
        is_used = not store.open_lock.is_alone()
        store.open_lock.leave()  # Other processes may open the store meanwhile.
        yield from SettingsFile(root).problems()
        yield from timerverify.problems(root, is_used=is_used)
        yield from groups.damaged(root)
        yield from dedup_check.problems(root)
    except (MQError, OSError) as error:
        yield f"{root}: {error}"
    finally:
        store.close()


def notes(root: str | os.PathLike[str]) -> Iterator[str]:
    """What is no problem, and a person may want to know: queues that hold messages and are not read, or are
    about to go. Nothing of a store that cannot be opened, which problems() reports."""
    try:
        store = Store(Path(os.fspath(root)), create=False, read_only=True)
    except (MQError, OSError):
        return
    try:
        yield from _of_queues(store)
    except (MQError, OSError) as error:
        yield f"{root}: {error}"
    finally:
        store.close()


def _of_queues(store: Store) -> Iterator[str]:
    numbers, topics = Numbers(store), Topics(store.root).load()
    offsets = Offsets(store.root).current(numbers, lambda _: True)
    for name, settings in sorted(topics.items()):
        final = settings.final_read_count
        extents = {each: found for each, found in numbers.extents(name).items() if each >= final}
        if is_system_topic(name) or not extents:
            continue
        of_groups = {g: ids[name] for g, ids in offsets.items() if name in ids and not is_system_group(g)}
        held = unread(extents, of_groups)
        hidden = {each: found for each, found in held.items() if each >= settings.read_queue_count}
        if hidden:
            why = hidden_reason(name, settings.read_queue_count, max(hidden))
            yield f"topic {name}: {in_words(hidden)}; {why}"
        if waited_for := {each: found for each, found in held.items() if each not in hidden}:
            yield f"topic {name} is being shrunk to {final} queues: {in_words(waited_for)}"


def _of_topics(store: Store) -> Iterator[str]:
    topics = Topics(store.root)
    topics.load()
    for doubt in topics.doubts():
        yield f"{doubt}: the next process that opens the store finds topics' queues by their messages"


def _of_groups(store: Store) -> Iterator[str]:
    offsets, numbers = Offsets(store.root), Numbers(store)
    yield from offsets.problems()
    yield from lowered(store)
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
