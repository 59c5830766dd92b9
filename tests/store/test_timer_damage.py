"""Wheel, timer log or check cut short, flipped or missing: made anew from the timer topic, and told of.

Nothing is lost, and what was delivered before does not come again: it is looked for in its topic.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mq.store.timer import timer_log
from mq.store.timer import wheel as timer_wheel
from mq.store.timer.check import problems
from tests.support.store.timers import BEGIN_MS, Bench

HOUR = 3_600_000
FILE_SIZE = 1 << 20


def wheel(root: Path) -> Path:
    return timer_wheel.path_of(root)


def log_file(root: Path) -> Path:
    return timer_log.files(root)[0]


def check_file(root: Path) -> Path:
    return root / "config" / "timercheck"


def flip(path: Path, at: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def slot_at(root: Path, time_ms: int) -> int:
    return time_ms // 1000 % timer_wheel.SLOT_COUNT * timer_wheel.SLOT_SIZE


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def forget_all(root: Path) -> None:
    wheel(root).unlink()
    shutil.rmtree(root / "timerlog")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "wheel missing": lambda root: wheel(root).unlink(),
    "wheel cut": lambda root: cut(wheel(root), 38_000_000),
    "wheel empty": lambda root: cut(wheel(root), 0),
    "wheel longer": lambda root: cut(wheel(root), 40_000_000),
    "time of a slot flipped": lambda root: flip(wheel(root), slot_at(root, BEGIN_MS + HOUR) + 7, 2),
    "last of a slot flipped": lambda root: flip(wheel(root), slot_at(root, BEGIN_MS + HOUR) + 23, 3),
    "last of a slot flipped high": lambda root: flip(wheel(root), slot_at(root, BEGIN_MS + HOUR) + 17, 6),
    "log missing": lambda root: shutil.rmtree(root / "timerlog"),
    "log file missing": lambda root: log_file(root).unlink(),
    "log cut": lambda root: cut(log_file(root), 5 * 52 + 20),
    "log cut to nothing": lambda root: cut(log_file(root), 0),
    "log longer": lambda root: cut(log_file(root), FILE_SIZE + 4096),
    "size of a unit flipped": lambda root: flip(log_file(root), 6 * 52 + 3, 3),
    "previous of a unit flipped": lambda root: flip(log_file(root), 8 * 52 + 11, 5),
    "magic of a unit flipped": lambda root: flip(log_file(root), 6 * 52 + 13, 6),
    "time of a unit flipped": lambda root: flip(log_file(root), 6 * 52 + 26, 7),
    "record of a unit flipped": lambda root: flip(log_file(root), 6 * 52 + 34, 1),
    "size of a record flipped": lambda root: flip(log_file(root), 6 * 52 + 39, 1),
    "check missing": lambda root: check_file(root).unlink(),
    "check cut": lambda root: cut(check_file(root), 56),
    "check says nonsense": lambda root: check_file(root).write_bytes(b"\xff" * 4096),
    "wheel and log missing": forget_all,
}


def found(root: Path) -> list[str]:
    return list(problems(root, file_size=FILE_SIZE))


def prepare(bench: Bench) -> tuple[set[str], set[str], str]:
    """Ten messages: half of them delivered, the others due in an hour or so, one of these recalled."""
    early = {bench.put_aside(BEGIN_MS + delay) for delay in (300, 700, 700, 1_500, 2_000)}
    late = [bench.put_aside(BEGIN_MS + HOUR + delay) for delay in (0, 10, 100, 3_000, 7_000)]
    bench.turn()
    bench.recall(late[1], BEGIN_MS + HOUR + 10)
    bench.now_ms += 2_300
    bench.turn()
    assert {message.msg_id for message in bench.delivered()} == early
    return early, {*late} - {late[1]}, late[1]


@pytest.mark.parametrize("forget", [False, True], ids=["beside", "after a reboot"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_waits_survives_and_what_came_stays_away(
    tmp_path: Path, damage: str, forget: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    with Bench(root) as bench:
        _, late, _ = prepare(bench)
        bench.close()
        assert found(root) == []
        DAMAGES[damage](root)
        assert found(root) != [] or damage == "check missing"
        with caplog.at_level(logging.WARNING, "mq"):
            bench.reopen_closed(forget=forget)
            bench.now_ms += 1_000
            bench.turn()
            assert list(bench.delivered()) == [], "again"
            bench.now_ms += 2 * HOUR
            bench.turn()
        assert {message.msg_id for message in bench.delivered()} == late
        assert bench.progress.pending() == 0
        bench.close()
    assert found(root) == []
    # mq/timer knows what the check says; and after a reboot the wheel is made anew in any case.
    is_of_check = damage.startswith("check")
    if is_of_check or "slot" in damage or "time of a unit" in damage:
        is_told = forget == is_of_check and damage != "check missing"
    else:
        is_told = True
    assert ("made anew" in caplog.text) == is_told, caplog.text


@pytest.mark.parametrize("at", range(6 * 52, 7 * 52 - 8, 3))
def test_any_flipped_byte_of_a_unit_is_harmless(tmp_path: Path, at: int) -> None:
    with Bench(tmp_path / "store") as bench:
        _, late, _ = prepare(bench)
        bench.close()
        flip(log_file(bench.root), at, at % 8)
        bench.reopen_closed()
        bench.now_ms += 2 * HOUR
        bench.turn()
        assert {message.msg_id for message in bench.delivered()} == late


def test_damage_while_at_work_is_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Bench(tmp_path / "store") as bench:
        _, late, _ = prepare(bench)
        flip(log_file(bench.root), 7 * 52 + 3, 3)
        bench.now_ms += 2 * HOUR
        bench.turn()
        assert {message.msg_id for message in bench.delivered()} == late
        assert "made anew" in caplog.text


def test_what_says_not_when_it_is_due_is_left_out(tmp_path: Path) -> None:
    with Bench(tmp_path / "store") as bench:
        bench.append(b"x", REAL_TOPIC="orders", REAL_QID=0)
        bench.append(b"x", REAL_TOPIC="orders", REAL_QID=0, TIMER_OUT_MS="soon")
        sent = bench.put_aside(BEGIN_MS + 10)
        bench.now_ms += 10
        bench.turn()
        assert len(bench.lost) == 2
        assert [message.msg_id for message in bench.delivered()] == [sent]
