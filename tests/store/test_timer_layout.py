"""The layouts of timer wheel, timer log and timer check: as their modules say, and C, and RocketMQ."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct
from types import ModuleType

import pytest

from mq.store.native import lib
from mq.store.shared import due_event
from mq.store.timer import checkpoint, progress, timer_log, wheel
from mq.store.timer.checkpoint import TimerCheck, read_timer_check, write_timer_check

ROW = re.compile(r"^ +(\d+) +(\d+)  (\w+)", re.MULTILINE)
NAMES = {"record_size": "RECORD_SIZE", "messages": "COUNT"}


def rows(module: ModuleType) -> list[tuple[int, int, str]]:
    assert module.__doc__ is not None
    return [(int(at), int(size), name) for at, size, name in ROW.findall(module.__doc__)]


@pytest.mark.parametrize(("module", "prefix"), [(wheel, "AT_SLOT_"), (timer_log, "AT_TIMER_")])
def test_layout_table_agrees_with_the_c_header(module: ModuleType, prefix: str) -> None:
    assert rows(module)
    for at, _, name in rows(module):
        assert at == getattr(lib, prefix + NAMES.get(name, name.upper())), name


@pytest.mark.parametrize(
    ("module", "layout"),
    [(wheel, wheel.SLOT), (timer_log, timer_log.UNIT), (checkpoint, checkpoint.CHECK)],
)
def test_fields_follow_each_other_and_fill_the_struct(module: ModuleType, layout: Struct) -> None:
    end = 0
    for at, size, name in rows(module):
        assert at == end, name
        end = at + size
    assert end == layout.size


def test_words_agree_with_the_c_header() -> None:
    places = {
        "stamp": lib.MQ_TIMER_STAMP,
        "epoch": lib.MQ_TIMER_EPOCH,
        "wake_ms": lib.MQ_TIMER_WAKE,
        "enqueued": lib.MQ_TIMER_ENQUEUED,
        "read_ms": lib.MQ_TIMER_READ,
        "log_end": lib.MQ_TIMER_LOG_END,
        "pending": lib.MQ_TIMER_PENDING,
        "event": lib.MQ_TIMER_EVENT,
    }
    assert {name: at for at, _, name in rows(progress)} == {name: at * 8 for name, at in places.items()}


def test_both_due_events_keep_their_words_where_c_does() -> None:
    """Those of mq/timer, which C reads, and those of mq/delay."""
    words = due_event.AT_STAMP, due_event.AT_EPOCH, due_event.AT_WAKE
    assert words == (lib.MQ_TIMER_STAMP, lib.MQ_TIMER_EPOCH, lib.MQ_TIMER_WAKE)
    assert due_event.AT_EVENT == lib.MQ_TIMER_EVENT * 8
    ours = {(at, name) for at, _, name in rows(due_event)}
    assert len(ours) == 4
    assert ours <= {(at, name) for at, _, name in rows(progress)}


def test_timer_file_sizes_are_rocketmqs() -> None:
    assert wheel.SLOT_COUNT * wheel.SLOT_SIZE == 38_707_200
    assert (timer_log.FILE_SIZE, timer_log.UNIT_SIZE) == (lib.MQ_TIMERLOG_FILE_SIZE, lib.MQ_TIMER_UNIT_SIZE)
    # The last unit of a file of 100 MiB begins there.
    last = (timer_log.FILE_SIZE - timer_log.BLANK_SIZE) // timer_log.UNIT_SIZE * timer_log.UNIT_SIZE
    assert last - timer_log.UNIT_SIZE == 104_857_532


def test_a_check_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_timer_check(tmp_path) == TimerCheck()
    check = TimerCheck(1_795_277_845_000, 1040, 20, 20, 0, 1_795_277_845_393, 16)
    write_timer_check(tmp_path, check)
    path = tmp_path / "config" / "timercheck"
    assert path.stat().st_size == 4096
    # As a broker of RocketMQ 5 wrote it.
    written = (
        "000001a1fee5f2080000000000000410000000000000001400000000000000140000000000000000"
        "000001a1fee5f3910000000000000010"
    )
    assert path.read_bytes().hex() == written + "00" * 4040
    assert read_timer_check(tmp_path) == check


@pytest.mark.parametrize("content", [b"", b"\0" * 56, b"\xff" * 4096, b"\0" * 4097])
def test_a_damaged_check_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(content)
    assert read_timer_check(tmp_path) is None
