"""Words of shared files that processes change, and look at, together."""

from __future__ import annotations

import gc
from pathlib import Path

import mq
from mq.store.shared.group_file import NEWS, GroupFile, place_word
from mq.store.shared.queue_table import topics_view
from tests.support.insides import store_of
from tests.support.store.peer import Peer

NOTIFY = """
from mq.store.shared.group_file import GroupFile
file = GroupFile.existing(store_of(broker), broker.path / "mq" / "groups" / "billing")
for _ in range(20_000):
    file.notify(3)
"""


def test_no_process_takes_back_the_news_of_another(directory: Path) -> None:
    with Peer(directory) as first, Peer(directory) as second, mq.open(directory) as broker:
        path = directory / "mq" / "groups" / "billing"
        file = GroupFile.made(store_of(broker), path, lambda _file: None)
        for peer in (first, second):
            peer.post("do", NOTIFY)
        for peer in (first, second):
            peer.answer()
        assert file.words[place_word(3) + NEWS] == 40_000
        file.close()


def test_the_version_of_the_topics_may_be_looked_at_after_a_close(directory: Path) -> None:
    """Which another thread may do at any time: the look must not be into memory that is gone."""
    broker = mq.open(directory)
    view = topics_view(store_of(broker))
    before = view[0]
    broker.close()
    del broker
    gc.collect()
    assert view[0] >= before
    assert str(directory / "mq" / "control") in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert str(directory / "mq" / "control") not in Path("/proc/self/maps").read_text()
