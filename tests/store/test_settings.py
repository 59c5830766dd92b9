"""What a store says of itself in mq/settings.json: made once, kept, changed by one process at a time."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.broker.check import problems
from mq.store.directory.settings import COPIED, LOST, Settings, SettingsFile
from tests.support.insides import store_of
from tests.support.store.peer import Peer
from tests.support.store.small_store import open_small


def store_id(directory: Path) -> str:
    return SettingsFile(directory).read().store_id


def test_the_first_opener_makes_an_identity_and_it_stays(directory: Path, tmp_path: Path) -> None:
    open_small(directory).close()
    first = store_id(directory)
    assert len(bytes.fromhex(first)) == 16
    with open_small(directory), Peer(directory) as peer:
        assert peer.ask("store_of(broker).settings.store_id") == first
        peer.kill()
    mq.open(tmp_path / "other").close()
    assert store_id(tmp_path / "other") != first


def test_a_copy_gets_an_identity_of_its_own_and_knows_the_former_ones(
    directory: Path, tmp_path: Path
) -> None:
    open_small(directory).close()
    first, copy = store_id(directory), tmp_path / "copy"
    shutil.copytree(directory, copy)
    with mq.open(copy, read_only=True) as broker:
        assert store_of(broker).settings.store_id == first
    open_small(copy).close()
    second = SettingsFile(copy).read()
    assert second.store_id not in ("", first)
    assert (second.former_ids, second.moved, second.held) == ((first,), False, COPIED)
    open_small(copy).close()
    assert SettingsFile(copy).read() == second
    assert store_id(directory) == first
    for number in range(20):
        shutil.copytree(copy, tmp_path / f"{number}")
        copy = tmp_path / f"{number}"
        open_small(copy).close()
    assert len(SettingsFile(copy).read().former_ids) == 16


def test_a_reader_makes_none(directory: Path) -> None:
    mq.open(directory).close()
    (directory / "mq" / "settings.json").unlink()
    (directory / "mq" / "settings.lock").unlink()
    before = sorted(path.name for path in (directory / "mq").iterdir())
    with mq.open(directory, read_only=True) as broker:
        assert store_of(broker).settings == Settings(held=LOST)
    assert sorted(path.name for path in (directory / "mq").iterdir()) == before


def test_members_that_are_unknown_here_are_kept(directory: Path) -> None:
    mq.open(directory).close()
    file = SettingsFile(directory)
    table = {**json.loads(file.path.read_text()), "later_version": {"a": [1]}}
    file.path.write_text(json.dumps(table))
    before = file.read()
    assert before.others == {"later_version": {"a": [1]}}
    changed = file.update(store_id="ab" * 16)
    assert changed == file.read() == replace(before, store_id="ab" * 16)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"store_id": "x"}, ValueError),
        ({"shoe_size": 43}, TypeError),
        ({"alive": "now"}, TypeError),
        ({"alive": -1}, ValueError),
        ({"former_away": [[1, 2]] * 8}, ValueError),
        ({"former_away": [[2, 1]]}, ValueError),
        ({"former_away": [None]}, ValueError),
        ({"former_away": {"1": 2}}, ValueError),
    ],
)
def test_what_no_setting_can_be_is_refused(directory: Path, changes: dict[str, Any], error: type) -> None:
    mq.open(directory).close()
    before = store_id(directory)
    with pytest.raises(error, match=r"store_id|away|alive"):
        SettingsFile(directory).update(**changes)
    assert store_id(directory) == before


@pytest.mark.parametrize(
    "damage",
    [b"", b"\0" * 100, b"{", b"[1]", b"\xff\xfe", b'{"store_id": 17}', b"[" * 100_000, b" " * (2 << 20)],
    ids=["empty", "zeroes", "cut", "list", "no-text", "number", "deep", "long"],
)
def test_damage_is_reported_and_the_state_before_counts(
    directory: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    mq.open(directory).close()
    file = SettingsFile(directory)
    first = file.read().store_id
    file.update(store_id=first)  # makes the .bak
    file.path.write_bytes(damage)
    with caplog.at_level(logging.WARNING, "mq.store"):
        assert file.read().store_id == first
    assert "settings.json is damaged" in caplog.text
    (problem,) = problems(directory)
    assert problem in caplog.text
    file.path.with_name("settings.json.bak").write_bytes(damage)
    file.path.write_bytes(damage)
    with mq.open(directory) as broker:
        anew = store_of(broker).settings.store_id
    assert anew not in ("", first)
    caplog.clear()
    assert file.read().store_id == anew
    assert not caplog.records


def test_no_change_is_lost_among_several(directory: Path) -> None:
    mq.open(directory).close()
    names = "retention_hours", "transaction_timeout", "transaction_check_interval", "flush_interval"
    file, kept = SettingsFile(directory), list[bool]()

    def raise_often(name: str) -> None:
        for number in range(1, 11):
            file.update(**{name: number})
            time.sleep(0.001)  # The others change theirs.
            kept.append(file.read().option(name) == number)

    threads = [threading.Thread(target=raise_often, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept == [True] * 40
    assert {"store_id", "held", "retention_hours"} <= set(json.loads(file.path.read_text()))
