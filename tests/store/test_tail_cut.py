"""The tail of a log is cut off while processes that only read have its files mapped."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from mq.store.recovery.tail_cut import cut_tail
from tests.support.insides import log_end
from tests.support.store.small_store import FOR_EVER_MS, LOG_FILE_SIZE, bodies, fill, log_files, open_small


def test_no_file_is_ever_shorter_than_a_reader_has_mapped(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_small(directory) as broker:
        broker.create_topic("A", 1)
        offsets, end, sent = fill(broker, "A", 20), log_end(broker), bodies(broker)
    begin, sizes, truncate = offsets[5], [], os.truncate

    def watch(path: Any, length: int) -> None:
        truncate(path, length)
        sizes.append(Path(path).stat().st_size)

    file = log_files(directory)[0]
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    before = mapped[:begin]
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", watch)
        kept = cut_tail(directory, begin, end, LOG_FILE_SIZE, FOR_EVER_MS)
    assert set(sizes) <= {LOG_FILE_SIZE}
    assert mapped[:] == before + bytes(LOG_FILE_SIZE - begin)
    assert kept.stat().st_size == end - begin
    with open_small(directory) as after:
        assert bodies(after) == sent[:5]
