"""Offsets that are lower than they were when a store was closed: an older copy of a file, or a lost one.

Two files say how far a group is: its group file, whose numbers go by the control file, and
config/consumerOffset.json. After a clean close they say the same. So where a store that was closed is opened,
a difference tells that one of them is an older copy, or damaged. One of the two counts (see offsets.py), and
none is raised by the other: a reset may have lowered it.

Where a recovery made the control file anew, the numbers are those of the older control file. Where processes
died, group files alone have what was committed in the last 5 s, and are carried over. After a power cut, or
without the older control file, that is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from logging import getLogger
from pathlib import Path

from mq.broker.groups.offsets import Offsets, awaited
from mq.names import is_system_topic
from mq.store.directory.root import is_listed
from mq.store.directory.topic_journal import listed_topics
from mq.store.recovery.control_validation import Hint
from mq.store.shared.group_file import Header, slots_in
from mq.store.shared.group_slots import offsets_in
from mq.store.shared.queue_table import Numbers
from mq.store.store import Store

__all__ = ["carry_over", "lowered", "tell_lowered"]

LOOKED_AT_MAX = 4 << 20  # bytes of group files, when a store is opened; `verify` looks at all
NAMED_MAX = 20  # queues of a group

log = getLogger("mq.groups")

Ids = Mapping[tuple[str, int], int]  # (topic, queue id) to offset


def lowered(store: Store, *, bytes_max: int = 1 << 62) -> Iterator[str]:
    """What went down, in words, a text for each group. Of a store that was just opened, alone."""
    known = store.known
    if known is None or store.is_replica:  # A replica has its master's offsets.
        return
    offsets, numbers = Offsets(store.root), Numbers(store)
    table, names = offsets.load(), known.names
    for group in offsets.group_files():
        path = store.root / "mq" / "groups" / group
        bytes_max -= _data_size(path)
        if bytes_max < 0:
            return
        if not known.was_closed:
            if not known.is_certain or slots_in(path, known.epoch) is None:
                yield from _forgotten(path, group, numbers, offsets)
            continue
        # A RocketMQ broker that was here since has written one of the two alone.
        slots = slots_in(path, known.epoch, of_any_boot=True) if known.ours else None
        if slots is None:
            continue
        names = names or numbers.named()
        shared = {names[number]: at for number, at in offsets_in(slots).items() if number in names}
        saved = {(t, queue): at for t, ids in table.get(group, {}).items() for queue, at in ids.items()}
        is_believed = slots_in(path, numbers.epoch) is not None
        yield from _differences(store.root, group, shared, saved, is_believed=is_believed, numbers=numbers)


def carry_over(root: Path, known: Hint | None) -> None:
    """In a recovery, before the numbers of queues become others: have in consumerOffset.json what groups
    committed until their processes died, if the older control file is to be trusted."""
    if known is None or known.was_closed or not known.is_certain:
        return
    offsets, found = Offsets(root), dict[str, dict[str, dict[int, int]]]()
    table = offsets.load()
    for group in offsets.group_files():
        slots = slots_in(root / "mq" / "groups" / group, known.epoch)
        if slots is None:
            continue
        found[group] = awaited(table.get(group, {}))
        for number, offset in offsets_in(slots).items():
            if number in known.names:
                topic, queue_id = known.names[number]
                found[group].setdefault(topic, {})[queue_id] = offset
    if found:
        with offsets.changing():
            before = offsets.load()
            table = {**before, **found}
            if table != before:
                offsets.write(table)


def tell_lowered(store: Store) -> None:
    """Say in the log what went down, as far as that is cheap to know. Once: what was known is let go."""
    if store.known is not None and not store.read_only:
        for text in (*Offsets(store.root).older_copies(), *lowered(store, bytes_max=LOOKED_AT_MAX)):
            log.warning("%s: %s", store.root, text)
    store.known = None


def _differences(
    root: Path, group: str, shared: Ids, saved: Ids, *, is_believed: bool, numbers: Numbers
) -> Iterator[str]:
    """Where the two files differ, of queues that are there still."""
    if shared == saved:
        return
    listed, found = listed_topics(root), []
    ends = {
        queue: numbers.next_offset(number)
        for number, queue in numbers.named().items()
        if is_listed(listed, queue[0]) or is_system_topic(queue[0])
    }
    for queue in sorted(shared.keys() | saved.keys()):
        if queue not in ends:
            continue
        # What lies beyond the end was lowered to it, which is told.
        ours, theirs = (min(each.get(queue, 0), ends[queue]) for each in (shared, saved))
        if ours != theirs:
            now, other = (ours, theirs) if is_believed else (theirs, ours)
            found.append(f"{queue[0]}/{queue[1]} goes on at {now:,}, and was at {other:,}")
    if found:
        kept = f"mq/groups/{group}", "config/consumerOffset.json"
        older, newer = kept if is_believed else kept[::-1]
        more = f" and {len(found) - NAMED_MAX:,} queues more" if len(found) > NAMED_MAX else ""
        yield (
            f"group {group}: {', '.join(found[:NAMED_MAX])}{more}: {older} and {newer} differ, which they do"
            " not after a close: one is an older copy, or damaged. mq DIR reset moves a group"
        )


def _forgotten(path: Path, group: str, numbers: Numbers, offsets: Offsets) -> Iterator[str]:
    """A group file of processes that died, whose numbers nobody can read any more."""
    header = _header(path)
    if header is None or not header.is_whole or header.epoch == numbers.epoch:
        return
    slots = slots_in(path, header.epoch)
    if slots is not None and offsets_in(slots):
        try:
            written = datetime.fromtimestamp(offsets.path.stat().st_mtime, timezone.utc).isoformat(
                " ", "seconds"
            )
        except OSError:
            written = "never"
        yield (
            f"group {group}: mq/control was lost or damaged, and with it what the group committed after"
            f" {offsets.path} was written ({written}): it goes on from there"
        )


def _header(path: Path) -> Header | None:
    try:
        with path.open("rb") as file:
            return Header(os.pread(file.fileno(), 64, 0))
    except OSError:
        return None


def _data_size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
