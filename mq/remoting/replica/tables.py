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
from mq.names import is_system_topic, is_topic_name
from mq.remoting.codec.bodies.consuming import ConsumerOffsets
from mq.remoting.codec.bodies.settings import DelayOffsets, GroupSettings, GroupTable, TopicSettings
from mq.remoting.codec.json_body import to_json
from mq.store.directory.config_file import write_config
from mq.store.directory.owner import make_directory
from mq.store.directory.root import BEGIN_MEMBER, sync_names
from mq.store.log.follow import FollowedLog
from mq.store.store import Store

__all__ = ["Tables"]

QUEUES_MAX = 65_536  # of a topic
ENDS_MAX = 100


class Tables:
    """The files in config/ of one replica, for one thread."""

    def __init__(self, store: Store, log: FollowedLog) -> None:
        self._store = store
        self._log = log
        self._topics = Topics(store.root)
        self._written: dict[str, str] = {}
        self._checked: object = None  # with which topics and queues no topic was found to be gone
        self._has_ends: set[str] = set()  # topics of which the ends of the queues are known

    def put_topics(self, told: Mapping[str, TopicSettings], end: int | None) -> None:
        """Store the master's topics. end: of its log before it was asked for them, if the replica's has
        reached that: a topic that the master lacks is deleted here too."""
        with self._topics.changing():
            known = self._topics.load()
            changed, later = dict[str, KeptTopic | None](), dict[str, int]()
            for name, settings in told.items():
                if not is_topic_name(name):
                    continue
                before = known.get(name)
                kept = _kept(settings, before, self._begin(name, settings, before))
                if kept.begin_log_offset > (before.begin_log_offset if before is not None else 0):
                    later[name] = kept.begin_log_offset
                if kept != before or name in later:
                    changed[name] = kept
            if later:
                self._log.begin_topics(later)
            if end is not None:
                changed |= dict.fromkeys(self._delete_others(told, known, end))
            if changed:
                self._topics.change(known, changed)
                self._store.topics_changed()

    def _begin(self, name: str, told: TopicSettings, known: KeptTopic | None) -> int:
        """Where the log ended when the topic was made, as far as the replica's has got: what it appends as a
        master belongs to the topic. A RocketMQ master does not tell."""
        begin = min(told.begin_log_offset or 0, self._log.end)
        return max(begin, self._log.begins.get(name, 0), known.begin_log_offset if known is not None else 0)

    def _delete_others(
        self, told: Mapping[str, TopicSettings], known: Mapping[str, KeptTopic], end: int
    ) -> list[str]:
        """Delete the queues of the topics that the master lacks; which these are. One that has messages from
        `end` on was made since."""
        checked = set(told), set(known), self._log.queues_version
        if checked == self._checked:
            return []
        lacking = sorted((known.keys() | self._log.topics()) - told.keys())
        others = [name for name in lacking if not is_system_topic(name)]
        if not others:
            self._checked = checked
            return []
        return self._log.delete_topics(others, end)

    def without_ends(self, told: Mapping[str, TopicSettings]) -> list[str]:
        """Topics with queues that the log has no message of, since it begins later than the master's did: it
        is not known yet where these queues are. At most ENDS_MAX of them."""
        if self._log.begin == 0 or told.keys() <= self._has_ends:
            return []
        queues, found = self._log.queues_with_messages(), []
        for name in told.keys() - self._has_ends:
            count = max(told[name].read_queue_nums, told[name].write_queue_nums)
            ids = range(min(count, QUEUES_MAX))
            if not is_topic_name(name) or all((name, each) in queues for each in ids):
                self._has_ends.add(name)
            else:
                found.append(name)
        return found[:ENDS_MAX]

    def put_ends(self, topic: str, ends: Mapping[int, int]) -> None:
        """Have the queues of a topic that had no message until now begin at these queue offsets, since the
        master has deleted all that was before."""
        for queue_id, end in ends.items():
            if 0 <= queue_id < QUEUES_MAX:
                self._log.skip_to(topic, queue_id, end)
        self._has_ends.add(topic)

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
        now_ms = time.time_ns() // 1_000_000
        # A reader takes a file for an older copy unless its counter is above that of the .bak.
        version = {"counter": now_ms, "stateVersion": 0, "timestamp": now_ms}
        directory = self._store.root / "config"
        if not directory.is_dir():
            make_directory(directory)
            sync_names(self._store.root)
        whole = {"dataVersion": version, **content}
        write_config(
            directory / name, json.dumps(whole, indent="\t", separators=(",", ":"), ensure_ascii=False)
        )
        self._written[name] = text


def _kept(told: TopicSettings, known: KeptTopic | None, begin: int) -> KeptTopic:
    others = {
        **(known.others if known is not None else {}),
        "attributes": told.attributes or {},
        "topicFilterType": told.topic_filter_type,
        "topicSysFlag": told.topic_sys_flag,
        **({BEGIN_MEMBER: begin} if begin else {}),
    }
    bare = KeptTopic(told.topic_name, others=others)
    return replace(
        bare,
        read_queue_count=max(0, min(told.read_queue_nums, QUEUES_MAX)),
        write_queue_count=max(0, min(told.write_queue_nums, QUEUES_MAX)),
        perm=told.perm & 15,
        ordered=told.order,
    )
