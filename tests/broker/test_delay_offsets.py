"""How far delayed messages were delivered: what is believed of mq/delay and config/delayOffset.json, and
when."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

import mq
from mq.broker.delay.level_progress import DelayOffsets, LevelProgress
from mq.store.shared.due_event import ALWAYS
from tests.broker.fake_delay_store import BEGIN_MS

HOUR = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "mq").mkdir()
    return tmp_path


def of(root: Path, epoch: int = 1) -> DelayOffsets:
    return DelayOffsets(root, LevelProgress(root, epoch), 18)


def test_a_leader_that_lost_the_duties_while_it_wrote_does_not_replace_the_file(root: Path) -> None:
    deposed = False

    def put(values: Mapping[int, int]) -> None:
        if deposed:
            raise mq.StoreLocked("another process has the duties", path=str(root))
        for at, value in values.items():
            progress.words[at] = value

    progress = LevelProgress(root, 1)
    offsets = DelayOffsets(root, progress, 18, put=put)
    offsets.save({1: 5})
    before = offsets.path.read_bytes()
    deposed = True
    with pytest.raises(mq.StoreLocked):
        offsets.save({1: 9})
    assert offsets.path.read_bytes() == before


def test_those_in_memory_count_as_long_as_the_control_file_lives(root: Path) -> None:
    offsets = of(root)
    offsets.save({3: 5})
    offsets[3] = 9
    assert of(root)[3] == 9


def test_those_on_disk_count_in_another_life(root: Path) -> None:
    offsets = of(root)
    offsets[3] = 9
    offsets.save({3: 5})
    assert of(root, epoch=2)[3] == 5


def test_nothing_on_disk_is_the_beginning(root: Path) -> None:
    """What was in memory may be ahead of what a power cut left."""
    of(root)[3] = 9
    assert of(root, epoch=2)[3] == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},"offsetTable":{3:5,18:2}}',
        '{"offsetTable":{3:5\n,18:2\n}\n}',
        '{\n\t"offsetTable":{"3":5,"18":2,"99":4},"more":1\n}',
    ],
)
def test_rocketmqs_file_is_read(root: Path, text: str) -> None:
    (root / "config").mkdir()
    (root / "config" / "delayOffset.json").write_text(text)
    offsets = of(root)
    assert (offsets[3], offsets[18], offsets[1]) == (5, 2, 0)


def test_the_file_is_strict_json_which_rocketmq_reads(root: Path) -> None:
    offsets = of(root)
    offsets.save({1: 5, 18: 2})
    offsets.save({1: 6, 18: 2})
    content = json.loads((root / "config" / "delayOffset.json").read_text())
    assert content["offsetTable"] == {"1": 6, "18": 2}
    assert content["dataVersion"]["counter"] == 2
    assert json.loads((root / "config" / "delayOffset.json.bak").read_text())["offsetTable"]["1"] == 5


def test_what_is_unknown_in_it_stays(root: Path) -> None:
    (root / "config").mkdir()
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{},"more":[1]}')
    of(root).save({1: 1})
    assert json.loads((root / "config" / "delayOffset.json").read_text())["more"] == [1]


def test_a_damaged_file_gives_way_to_the_one_before(root: Path) -> None:
    offsets = of(root)
    offsets.save({3: 5})
    offsets.save({3: 6})
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:')
    assert of(root, epoch=2)[3] == 5


def test_where_both_are_damaged_memory_tells_and_it_is_reported(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = of(root)
    offsets[3] = 9
    offsets.save({3: 5})
    offsets.save({3: 6})
    for path in (root / "config").iterdir():
        path.write_text("nonsense")
    with caplog.at_level(logging.WARNING, "mq"):
        assert of(root, epoch=2)[3] == 9
    assert "delayOffset.json" in caplog.text


def test_nothing_to_save_where_nothing_changed(root: Path) -> None:
    offsets = of(root)
    offsets[2] = 4
    unsaved = offsets.unsaved()
    assert unsaved == {2: 4}
    offsets.save(unsaved)
    assert offsets.unsaved() == {}


def test_only_the_sender_of_an_earlier_due_message_wakes_the_leader(root: Path) -> None:
    progress = LevelProgress(root, 1)
    offsets = DelayOffsets(root, progress, 18)
    offsets.wake_at(BEGIN_MS)
    sender = LevelProgress(root, 1)
    heard = progress.event.value
    sender.stored(BEGIN_MS)
    assert progress.event.value == heard
    sender.stored(BEGIN_MS - 1)
    assert progress.event.value == heard + 1
    offsets.wake_at(None)
    sender.stored(BEGIN_MS + HOUR)
    assert progress.event.value == heard + 2
    assert progress.words[2] == ALWAYS
