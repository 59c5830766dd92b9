"""The broadcasting groups of a store: where their consumers keep offsets, and how the offsets are reset.

    mq/broadcast/<group>/<client id>/offsets.json   of one consumer (see offsets.py)
    mq/broadcast/<group>.reset                      the last reset of each topic, in the same format

A consumer may keep its offsets in a directory of its user's choice instead, below the store's id.

Earlier versions of mq kept them in RocketMQ's place, ~/.rocketmq_offsets/<client id>/<group>/offsets.json,
with nothing that says of which store they are. What such a file says is taken over once, by one store that it
can be of: one that had messages before it got an identity. All offsets of a topic are taken or none: none is
beyond the end of its queue, and the message before each was stored before the file was written.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mq.api.beginning import first_offset
from mq.api.results import MessageQueue
from mq.broker.broadcast.offsets import BroadcastOffsets, Source, is_held, older_copy
from mq.broker.broadcast.text_format import (
    TopicOffsets,
    parse,
    parse_of_client,
    reset_after,
    write_out,
)
from mq.broker.groups.groups import Groups
from mq.broker.groups.lowered_offsets import carry_over
from mq.broker.groups.offsets import clamp_offsets
from mq.broker.topics.registry import Catalog
from mq.errors import NotPermitted
from mq.names import check_group
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import made_file, make_directory
from mq.store.directory.root import sync_names
from mq.store.os_errors import named_errors
from mq.store.queue.reader import Reader
from mq.store.recovery.control_validation import Hint
from mq.store.shared.control import Control
from mq.store.store import Store

__all__ = ["BroadcastGroups", "clamp_all", "damaged"]

CLIENT_DIRECTORY = "~/.rocketmq_offsets"  # RocketMQ's
NAMED_MAX = 50  # offsets, in a warning

logger = logging.getLogger("mq.groups")


class BroadcastGroups:
    """The broadcasting groups of one store, for one broker."""

    def __init__(self, store: Store, name: str, groups: Groups, reader: Reader, catalog: Catalog) -> None:
        self._store = store
        self._name = name
        self._groups = groups
        self._reader = reader
        self._catalog = catalog
        self._directory = store.root / "mq" / "broadcast"

    def offsets(self, group: str, client_id: str | None, directory: Path | None) -> BroadcastOffsets:
        """See ConsumerGroups.broadcast_offsets."""
        self._groups.check_writable()
        check_group(group)
        base = self._directory / group
        earlier = _home() if directory is None else directory
        source = Source(
            self.begin,
            self._reader.puller,
            self.made_at,
            lambda: self.resets(group),
            lambda client_id: self._earlier_of(earlier, client_id, group),
        )
        with self._groups.made(group).file.changing():  # Not while somebody deletes the group.
            make_directory(base, parents=True)
            if directory is not None:
                base = directory / self._store.settings.store_id / group
            return BroadcastOffsets(base, group, client_id, source)

    def forget(self, group: str) -> None:
        """Under byte 0 of the group's file: remove what is kept of the consumers, and the resets. Raises
        NotPermitted if one is at work, though it is no member yet, or any more."""
        base = self._directory / group
        with named_errors(base):
            for path in sorted(base.glob("*/lock")):
                if is_held(path):
                    raise NotPermitted(
                        f"group {group} cannot be deleted while its broadcasting consumer {path.parent.name}"
                        " is at work: close it first"
                    )
            with suppress(FileNotFoundError):
                shutil.rmtree(base)
            resets = self._resets(group)
            for path in (resets, resets.with_name(resets.name + ".bak")):
                path.unlink(missing_ok=True)
            if self._directory.is_dir():
                sync_names(self._directory)

    def reset(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """See ConsumerGroups.reset: of a broadcasting group, those of each consumer."""
        members = self._groups.members(group)
        is_known = (self._directory / group).is_dir()
        if not any(each.model == "broadcasting" for each in members) and (members or not is_known):
            self._groups.reset(group, offsets)
            return
        self._groups.check_reset(offsets)
        fresh: dict[str, dict[int, int]] = {}
        for queue, offset in offsets.items():
            fresh.setdefault(queue.topic, {})[queue.queue_id] = offset
        made_at = {topic: self.made_at(topic) for topic in fresh}

        def change() -> None:
            known = self.resets(group)
            for topic, targets in fresh.items():
                known[topic] = reset_after(known.get(topic), made_at[topic], targets)
            write_config(self._resets(group), write_out(known))

        self._groups.announce(group, change)
        for queue, offset in offsets.items():
            logger.info(
                "group %s, which is broadcasting: %s/%d goes on at %d",
                group,
                queue.topic,
                queue.queue_id,
                offset,
            )
        if any(self._groups.offsets(group, topic) for topic in fresh):
            self._groups.reset(group, offsets)  # It was a clustering group before, and may be one again.

    def resets(self, group: str) -> dict[str, TopicOffsets]:
        path = self._resets(group)
        try:
            return parse(path.read_bytes().decode())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            logger.warning("%s cannot be read (%s): resets of group %s are forgotten", path, error, group)
            return {}

    def _resets(self, group: str) -> Path:
        return self._directory / f"{group}.reset"

    def made_at(self, topic: str) -> int | None:
        """Where the log ended when a topic was made; None where nobody said. Raises TopicNotFound."""
        return self._catalog.settings(topic).made_at

    def begin(self, topic: str, consume_from: str | int) -> dict[int, int]:
        return {
            queue.queue_id: first_offset(self._reader, queue, consume_from)
            for queue in self._catalog.readable(topic)
        }

    def _earlier_of(self, directory: Path | None, client_id: str, group: str) -> dict[str, dict[int, int]]:
        """What a file of an earlier version says of topics of this store, if it can be of this store."""
        if directory is None or not self._store.settings.had_messages:
            return {}
        file = directory / client_id / group / "offsets.json"
        try:
            found = parse_of_client(file.read_bytes().decode())
            written_ms = file.stat().st_mtime_ns // 1_000_000
        except (OSError, ValueError):
            return {}
        topics: dict[str, dict[int, int]] = {}
        for queue, offset in found.items():
            if queue.broker_name == self._name:
                topics.setdefault(queue.topic, {})[queue.queue_id] = offset
        taken = {topic: ids for topic, ids in topics.items() if self._may_be_ours(topic, ids, written_ms)}
        if not taken or not _take(file, self._store.settings.store_id):
            return {}
        logger.info("%s: offsets of %s are taken over from %s", self._store.root, sorted(taken), file)
        return taken

    def _may_be_ours(self, topic: str, ids: Mapping[int, int], written_ms: int) -> bool:
        """Whether a consumer of this store can have had these offsets when the file was written."""
        with suppress(Exception):  # Whatever keeps a queue from being read: no message of it is skipped.
            for queue in self._catalog.readable(topic):
                offset = ids.get(queue.queue_id, 0)
                low, high = self._reader.min_offset(queue), self._reader.max_offset(queue)
                if offset < 0 or offset > high:
                    return False
                if offset > low:
                    last = self._reader.pull(queue, offset - 1, 1, 1, None, 0.0).messages[0]
                    if last.queue_offset != offset - 1 or last.store_time_ms > written_ms:
                        return False
            return True
        return False


def _home() -> Path | None:
    try:
        return Path(CLIENT_DIRECTORY).expanduser()
    except RuntimeError:  # There is no home.
        return None


def _take(file: Path, store_id: str) -> bool:
    """Have a file for this store alone: a mark beside it says whose it is."""
    mark = file.with_name("offsets.json.taken-over")
    try:
        with made_file(mark, os.O_WRONLY | os.O_EXCL) as fd:
            os.write(fd, store_id.encode())
    except FileExistsError:
        pass
    except OSError:
        return False
    return mark.read_text() == store_id


def _files(root: Path) -> Iterator[Path]:
    directory = root / "mq" / "broadcast"
    yield from sorted(directory.glob("*/*/offsets.json"))
    yield from sorted(directory.glob("*.reset"))


def damaged(root: Path) -> Iterator[str]:
    """Each file that cannot be read, is missing, or is an older copy, in words."""
    for backup in sorted((root / "mq" / "broadcast").glob("*/*/offsets.json.bak")):
        path = backup.with_name("offsets.json")
        if not path.exists():
            yield f"{path} is missing; its .bak is read instead: messages since that was written come again"
        yield from older_copy(path)
    for path in _files(root):
        try:
            parse(path.read_bytes().decode())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            cost = (
                "resets of the group are forgotten"
                if path.suffix == ".reset"
                else "its .bak is read instead, or the consumer does not start"
            )
            yield f"{path}: {error}; {cost}"


def clamp_all(control: Control, known: Hint | None) -> None:
    """After a recovery, before anybody sends: no group, of either model, has consumed what is not there.

    known: what the control file before told.
    """
    root = control.path.parents[1]
    carry_over(root, known)
    clamp_offsets(control)
    ends: dict[str, dict[int, int]] = {}
    for number, topic, queue_id in control.queues():
        ends.setdefault(topic, {})[queue_id] = control.next_offset(number)
    for path in _files(root):
        _clamp(path, ends)
        _clamp(path.with_name(path.name + ".bak"), ends)


def _clamp(path: Path, ends: Mapping[str, Mapping[int, int]]) -> None:
    try:
        topics = parse(path.read_bytes().decode())
    except (OSError, ValueError):
        return  # Damage is reported when the file is used.
    lowered = []
    for topic, known in topics.items():
        for queue_id, offset in known.offsets.items():
            end = ends.get(topic, {}).get(queue_id, 0)
            if offset > end:
                known.offsets[queue_id] = end
                lowered.append(f"{topic}/{queue_id} from {offset:,} to {end:,}")
    if lowered:
        more = f" and {len(lowered) - NAMED_MAX:,} more" if len(lowered) > NAMED_MAX else ""
        logger.warning(
            "%s: messages that were consumed are lost; offsets beyond the end come down to it: %s%s",
            *(path, ", ".join(lowered[:NAMED_MAX]), more),
        )
        write_config(path, write_out(topics))
        path.with_name(path.name + ".bak").unlink(missing_ok=True)
