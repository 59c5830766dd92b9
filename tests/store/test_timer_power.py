"""The power is cut: of each file that was written since the last save, the disk has whatever it has.

A mark may be on disk whose copy is not, a copy whose mark is not, a slot whose unit is not. Nothing is lost
in any of these cases, and what is there already does not come again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mq.store.timer.check import problems
from tests.support.store.timers import BEGIN_MS, Bench

FILE_SIZE = 1 << 20
MESSAGES = ("commitlog", "consumequeue", "index", "checkpoint", "abort")
WHEEL, LOG, CHECK = "timerwheel", "timerlog", "config/timercheck"
TIMERS = (WHEEL, LOG, CHECK)


def take(root: Path, to: Path, *names: str) -> None:
    """Put these files, as they are now, into the place of others, or away if there are none."""
    for name in names:
        target = to / name
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_dir():
            shutil.copytree(root / name, target)
        elif (root / name).exists():
            shutil.copyfile(root / name, target)


def at_work(bench: Bench) -> dict[str, int]:
    """Messages of which some are delivered; all is saved then, and the engine at work."""
    due = {}
    for delay in (100, 200, 900, 1_500, 2_100, 2_200, 40_000):
        due[bench.put_aside(BEGIN_MS + delay)] = BEGIN_MS + delay
    bench.now_ms += 950
    bench.turn()
    bench.store.flush()
    bench.engine.save()
    return due


def go_on(bench: Bench) -> dict[str, int]:
    """More messages, and more deliveries, of which nothing is saved."""
    due = {}
    for delay in (100, 1_000, 1_300, 1_320, 50_000):
        due[bench.put_aside(bench.now_ms + delay)] = bench.now_ms + delay
    bench.turn()
    bench.now_ms += 1_200
    bench.turn()
    return due


def all_come(root: Path, now_ms: int, due: dict[str, int]) -> None:
    """Started 10 s later, it delivers each message once, those first that are due by then."""
    with Bench(root, now_ms=now_ms + 10_000) as cut:
        cut.turn()
        came = [message.msg_id for message in cut.delivered()]
        assert sorted(came) == sorted(name for name, when in due.items() if when <= cut.now_ms)
        cut.now_ms += 100_000
        cut.turn()
        came += [message.msg_id for message in cut.delivered()]
        assert sorted(came) == sorted(due)
        cut.close()
    assert list(problems(root, file_size=FILE_SIZE)) == []


@pytest.mark.parametrize(
    "kept_old", [(WHEEL,), (LOG,), (CHECK,), (WHEEL, LOG), (LOG, CHECK), (WHEEL, CHECK), TIMERS]
)
def test_messages_are_on_disk_and_timers_are_not(tmp_path: Path, kept_old: tuple[str, ...]) -> None:
    with Bench(tmp_path / "store") as bench:
        due = at_work(bench)
        take(bench.root, tmp_path / "old", *kept_old)
        due |= go_on(bench)
        bench.store.flush()
        take(bench.root, tmp_path / "cut", *MESSAGES, *TIMERS)
    take(tmp_path / "old", tmp_path / "cut", *kept_old)
    all_come(tmp_path / "cut", bench.now_ms, due)


@pytest.mark.parametrize("kept_new", [(), (WHEEL,), (LOG,), (CHECK,), (WHEEL, LOG)])
def test_timers_are_on_disk_and_messages_are_not(tmp_path: Path, kept_new: tuple[str, ...]) -> None:
    """The check is never there without the messages that it speaks of: alone, it is that of the last save."""
    with Bench(tmp_path / "store") as bench:
        due = at_work(bench)
        take(bench.root, tmp_path / "cut", *MESSAGES, *TIMERS)
        go_on(bench)
        take(bench.root, tmp_path / "cut", *kept_new)
    all_come(tmp_path / "cut", bench.now_ms, due)
