"""Where the topics of a log begin that became shorter."""

from __future__ import annotations

import json
from pathlib import Path

from mq.store.directory.config_file import write_config
from mq.store.directory.root import BEGIN_MEMBER, topics_begin
from mq.store.directory.topic_journal import fold_journal, listed_topics


def lower_begins(root: Path, log_end: int) -> None:
    """No topic begins behind the log. It was made when the log was longer, and what is sent to it from now on
    would be taken for messages of a deleted one."""
    path = root / "config" / "topics.json"
    late = [name for name, (_, begin) in topics_begin(listed_topics(root)).items() if begin > log_end]
    if late:
        fold_journal(root)  # The last topics are in it alone.
        content = json.loads(path.read_bytes())
        for name in late:
            if name in content["topicConfigTable"]:
                content["topicConfigTable"][name][BEGIN_MEMBER] = log_end
        write_config(path, json.dumps(content, indent="\t", separators=(",", ":"), ensure_ascii=False))
