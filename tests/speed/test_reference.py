"""The reference does what it is held to do: the bytes arrive."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.speed import reference


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return reference.load(tmp_path_factory.mktemp("reference"))


def test_records_follow_each_other_and_begin_again_at_the_end(module: ModuleType, tmp_path: Path) -> None:
    with reference.ReferenceMap(module, tmp_path / "map", 8192, touched=True) as mapped:
        assert mapped.append_each(b"a" * 3000, 2) == 2
        mapped.append_each(b"b" * 3000, 1)
    assert (tmp_path / "map").read_bytes() == b"b" * 3000 + b"a" * 3000 + b"\1" * 2192


def test_filling_reaches_the_last_whole_record(module: ModuleType, tmp_path: Path) -> None:
    with reference.ReferenceMap(module, tmp_path / "map", 10_000, touched=False) as mapped:
        assert mapped.fill_rate(b"abc" * 1000) > 0
        assert mapped.copy_out_rate(5000) > 0
    assert (tmp_path / "map").read_bytes() == b"abc" * 3000 + bytes(1000)


def test_every_flush_is_timed(module: ModuleType, tmp_path: Path) -> None:
    with reference.ReferenceMap(module, tmp_path / "map", 16384, touched=True) as mapped:
        times = mapped.sync_times(6)
    assert len(times) == 6
    assert min(times) > 0
    assert (tmp_path / "map").read_bytes()[:4096] == bytes([4]) * 4096


def test_a_map_that_cannot_be_made_raises(module: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        reference.ReferenceMap(module, tmp_path / "missing" / "map", 4096, touched=False)
