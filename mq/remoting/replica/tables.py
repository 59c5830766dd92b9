"""The master's tables in the replica's directory, as RocketMQ's files in config/.

Topics take effect at once, also for readers. The other files are read when the replica becomes a master:
consumerOffset.json, delayOffset.json, subscriptionGroup.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mq.broker.topics.config import Topics
from mq.broker.topics.config import TopicSettings as KeptTopic
from mq.errors import TopicInvalid
from mq.names import check_topic, is_system_topic
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.bodies.settings import DelayOffsets, GroupSettings, GroupTable, TopicSettings
from mq.remoting.codec.json_body import to_json
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import make_directory
from mq.store.directory.root import sync_names
from mq.store.store import Store

__all__ = ["Tables"]


class Tables:
    """The files in config/ of one replica, for one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics = Topics(store.root)
        self._written: dict[str, str] = {}

    def put_topics(self, told: Mapping[str, TopicSettings], *, is_level: bool) -> None:
        """Store the master's topics. is_level: the replica's log has reached the end that the master's had
        before the request, so a topic that the master lacks is deleted here too."""
        with self._topics.changing():
            known = self._topics.load()
            wanted = {
                name: _kept(settings, known.get(name)) for name, settings in told.items() if _is_name(name)
            }
            changed: dict[str, KeptTopic | None] = {
                name: settings for name, settings in wanted.items() if known.get(name) != settings
            }
            gone = (
                [name for name in known if name not in wanted and not is_system_topic(name)]
                if is_level
                else []
            )
            if not changed and not gone:
                return
            self._topics.change(known, {**changed, **dict.fromkeys(gone)})
            self._store.topics_changed()
            for name in gone:
                self._store.delete_queues(name)
                self._store.topics_changed()

    def put_offsets(self, told: ConsumerOffsets) -> None:
        """Store the consumer offsets."""
        table = {
            key: {str(queue): offset for queue, offset in ids.items()}
            for key, ids in told.offset_table.items()
        }
        self._put("consumerOffset.json", {"offsetTable": table})

    def put_delays(self, told: DelayOffsets) -> None:
        """Store the delay offsets."""
        self._put(
            "delayOffset.json", {"offsetTable": {str(level): at for level, at in told.offset_table.items()}}
        )

    def put_groups(self, told: Mapping[str, GroupSettings]) -> None:
        """Store the settings of groups."""
        body = json.loads(to_json(GroupTable(dict(told)), quoted_numbers=True))
        self._put(
            "subscriptionGroup.json", {"subscriptionGroupTable": body.get("subscriptionGroupTable", {})}
        )

    def _put(self, name: str, content: dict[str, Any]) -> None:
        """Write a file if its content changes."""
        text = json.dumps(content, sort_keys=True)
        if self._written.get(name) == text:
            return
        version = {
            "counter": len(self._written) + 1,
            "stateVersion": 0,
            "timestamp": time.time_ns() // 1_000_000,
        }
        directory = self._store.root / "config"
        if not directory.is_dir():
            make_directory(directory)
            sync_names(self._store.root)
        whole = {"dataVersion": version, **content}
        write_config(
            directory / name, json.dumps(whole, indent="\t", separators=(",", ":"), ensure_ascii=False)
        )
        self._written[name] = text


def _is_name(name: str) -> bool:
    """Whether it is a valid topic name: it comes from the other end and becomes a path."""
    try:
        check_topic(name)
    except TopicInvalid:
        return False
    return True


def _kept(told: TopicSettings, known: KeptTopic | None) -> KeptTopic:
    others = {
        **(known.others if known is not None else {}),
        "attributes": told.attributes or {},
        "topicFilterType": told.topic_filter_type,
        "topicSysFlag": told.topic_sys_flag,
    }
    bare = KeptTopic(told.topic_name, others=others)
    return replace(
        bare,
        read_queue_count=max(0, min(told.read_queue_nums, 65_536)),
        write_queue_count=max(0, min(told.write_queue_nums, 65_536)),
        perm=told.perm & 15,
        ordered=told.order,
    )
