"""A process that dies while it removes files behind the log's end leaves a log that can be opened."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mq.store.native import lib
from mq.store.recovery import log_files as closing
from mq.store.recovery import recover as recovery
from tests.support.store.small_store import LOG_FILE_SIZE, bodies, crash_of, fill, log_files, open_small, send

AHEAD = 3  # files that were made and have nothing in them


class Died(BaseException):
    """As if by kill -9, before the next file is removed."""


class Dying:
    """A library whose process dies after removing so many files."""

    def __init__(self, removals: int) -> None:
        self.left = removals

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def mq_files_remove(self, files: Any, offset: int) -> int:
        if not self.left:
            raise Died
        self.left -= 1
        return int(lib.mq_files_remove(files, offset))


def make_ahead(directory: Path) -> None:
    last = int(log_files(directory)[-1].name)
    for number in range(1, AHEAD + 1):
        path = directory / "commitlog" / f"{last + number * LOG_FILE_SIZE:020d}"
        path.touch()
        os.truncate(path, LOG_FILE_SIZE)


@pytest.mark.parametrize("removals", range(AHEAD))
@pytest.mark.parametrize("module", [recovery, closing], ids=["recovery", "close"])
def test_the_log_never_lacks_a_file_between_two_others(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, removals: int
) -> None:
    with open_small(tmp_path / "before") as broker:
        broker.create_topic("A", 1)
        fill(broker, "A", 20)
        sent = bodies(broker, "A")
        crash_of(broker, directory)

    def open_to_close() -> None:
        with open_small(directory):
            make_ahead(directory)

    def open_to_recover() -> None:
        make_ahead(directory)
        open_small(directory)

    with monkeypatch.context() as patch:
        patch.setattr(module, "lib", Dying(removals))
        with pytest.raises(Died):
            (open_to_recover if module is recovery else open_to_close)()
    offsets = [int(file.name) for file in log_files(directory)]
    assert offsets == [number * LOG_FILE_SIZE for number in range(len(offsets))]
    # The machine dies as well: the next process looks at the files.
    crashed = tmp_path / "crashed"
    shutil.copytree(directory, crashed, ignore=shutil.ignore_patterns("mq"))
    with open_small(crashed) as after:
        assert bodies(after, "A") == sent
        send(after, "A", 0, b"goes on")
        assert bodies(after, "A") == [*sent, b"goes on"]
