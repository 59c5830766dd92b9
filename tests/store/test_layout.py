"""The layouts as the modules describe them are those that C and struct have."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest

from mq.store.directory import checkpoint
from mq.store.directory.checkpoint import Checkpoint
from mq.store.index import index
from mq.store.log import commitlog
from mq.store.native import lib
from mq.store.queue import consumequeue
from mq.store.shared import members
from tests.support.store.small_store import log_offset_of, messages_of, open_small, queue_files, send

ROW = re.compile(r"^ +(\d+) +(\d+|n)  (\w+)", re.MULTILINE)


def table(module: ModuleType) -> list[tuple[int, int | None, str]]:
    """Offset, size (None if it varies) and name of each row."""
    assert module.__doc__ is not None
    rows = [
        (int(at), None if size == "n" else int(size), name) for at, size, name in ROW.findall(module.__doc__)
    ]
    assert len(rows) >= 3
    return rows


@pytest.mark.parametrize("module", [commitlog, consumequeue, checkpoint, index, members])
def test_the_fields_of_a_layout_follow_each_other_without_a_gap(module: ModuleType) -> None:
    rows = table(module)
    assert rows[0][0] == 0
    for (at, size, _), (following, _, _) in itertools.pairwise(rows):
        assert size is not None
        assert at + size == following


def test_the_record_is_the_one_that_c_has() -> None:
    names = [name for _, _, name in table(commitlog)]
    others = ("AT_INDEX_", "AT_SLOT_", "AT_TIMER_")
    assert {name for name in dir(lib) if name.startswith("AT_") and not name.startswith(others)} == {
        f"AT_{name.upper()}" for name in names
    }
    for at, _, name in table(commitlog):
        assert at == getattr(lib, f"AT_{name.upper()}")


def test_the_header_of_an_index_file_is_the_one_that_c_has() -> None:
    rows = table(index)
    for at, _, name in rows:
        assert at == getattr(lib, f"AT_INDEX_{name.upper()}")
    at, size, _ = rows[-1]
    assert size is not None
    assert at + size == lib.MQ_INDEX_HEADER_SIZE


def test_the_place_of_a_member_is_the_one_that_is_packed() -> None:
    rows = table(members)
    assert sum(size or 0 for _, size, _ in rows) == members.PLACE.size
    fields = [name for name in members.Member.__dataclass_fields__ if name != "place"]
    assert [name for _, _, name in rows] == fields


def test_the_checkpoint_is_the_one_that_is_packed() -> None:
    rows = table(checkpoint)
    assert sum(size or 0 for _, size, _ in rows) == checkpoint.FIELDS.size
    assert [name for _, _, name in rows][:3] == list(Checkpoint.__dataclass_fields__)


def test_the_queue_unit_is_the_one_that_is_written(directory: Path) -> None:
    rows = table(consumequeue)
    assert sum(size or 0 for _, size, _ in rows) == lib.MQ_UNIT_SIZE
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        send(broker, "A", 0, b"first")
        sent = send(broker, "A", 0, b"x", tags="order-created")
        size = messages_of(broker.topic("A").queues[0])[1].store_size
    data = queue_files(directory, "A")[0].read_bytes()[20:40]
    values = {
        name: int.from_bytes(data[at : at + (length or 0)], "big", signed=True) for at, length, name in rows
    }
    assert values == {"log_offset": log_offset_of(sent), "size": size, "tags_code": -392709271}
