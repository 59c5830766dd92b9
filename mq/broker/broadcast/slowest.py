"""How far the slowest consumer of a broadcasting group is: what it has not read is not to be taken away.

It is what the files of all consumers of the group say (see offsets.py), of those at work as of some seconds
ago. A consumer that keeps its offsets in another directory is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mq.api.group import Member
from mq.broker.broadcast.text_format import TopicOffsets, parse
from mq.broker.topics.registry import Catalog
from mq.errors import TopicNotFound

__all__ = ["Slowest", "Topics", "topics_read"]

Topics = dict[str, Mapping[int, int]]  # topic to queue id to offset


class Slowest:
    """Of the groups of one store."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self._directory = root / "mq" / "broadcast"
        self._catalog = catalog

    def names(self) -> list[str]:
        """The groups that have had a broadcasting consumer."""
        try:
            return sorted(path.name for path in self._directory.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []

    def of(self, group: str) -> Topics:
        """The lowest offsets of each topic that there is and that some consumer has begun. Nothing of a
        consumer whose files are damaged, which cannot start."""
        found: Topics = {}
        for directory in sorted((self._directory / group).glob("*/")):
            for topic, known in _kept(directory).items():
                try:
                    is_same = known.is_of(self._catalog.settings(topic).made_at)
                except TopicNotFound:
                    continue
                offsets = known.offsets if is_same else {}
                found[topic] = _lower(found[topic], offsets) if topic in found else offsets
        return found


def topics_read(members: Sequence[Member], committed: Topics, slowest: Topics) -> Topics:
    """The topics that a group reads, and how far it is. A group without live members may come back as either
    model. Pure."""
    models, found = {member.model for member in members}, Topics()
    if models != {"broadcasting"}:
        subscribed = {each.topic for member in members for each in member.subscriptions}
        found = {topic: committed.get(topic, {}) for topic in subscribed | committed.keys()}
    if models <= {"broadcasting"}:
        for topic, offsets in slowest.items():
            found[topic] = _lower(found[topic], offsets) if topic in found else offsets
    return found


def _lower(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """A queue without an offset is at its first message."""
    return {queue_id: min(offset, other[queue_id]) for queue_id, offset in one.items() if queue_id in other}


def _kept(directory: Path) -> dict[str, TopicOffsets]:
    for name in ("offsets.json", "offsets.json.bak"):
        try:
            return parse((directory / name).read_bytes().decode())
        except (OSError, ValueError):
            continue
    return {}
