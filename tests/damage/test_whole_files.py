"""Every kind of file, damaged as a whole in every way, in place and in a copy: nothing is lost without a
word.

What can be made anew from the log is made anew. What cannot is named by the store's log when it is opened,
by `verify`, and by a read there. No queue offset is given twice.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest

import mq
from mq.cli.command import run
from tests.damage.conftest import MEMORY
from tests.damage.whole_files import WAYS, Outcome, Prepared, look, look_at_timers
from tests.damage.whole_files import names as is_named

pytestmark = pytest.mark.rounds

STATES = ("closed", "killed", "copied")
KINDS = ("commitlog", "consumequeue", "consumequeue_ext", "index", "mq", "others")
HAS_OFFSETS = ("config/consumerOffset", "mq/broadcast/", "mq/groups/")


class Expected(Enum):
    MADE_ANEW = "every message is there, and verify finds nothing"
    NAMED = "what is lost is named by open, by verify and by a read there"
    NAMED_LATER = "a cheap look does not see it: it is named by verify, and by a read there"


def expected(name: str, way: str, log_files: list[str]) -> Expected:
    if name.startswith("commitlog/"):
        is_last = name == log_files[-1]
        if way in ("missing", "empty", "zeroed", "noise", "short"):
            return Expected.NAMED
        if way.endswith("older copy"):
            return Expected.NAMED if is_last else Expected.NAMED_LATER
    if name.startswith("consumequeue_ext/") and way.endswith("older copy"):
        return Expected.NAMED_LATER  # Filters look at more messages.
    if name.startswith("config/consumerOffset.json"):
        return Expected.NAMED_LATER  # No message: the state before it is read until it is next written.
    if name.startswith("mq/broadcast/") or name in ("mq/groups/watchers", "mq/groups/filtered"):
        return Expected.NAMED_LATER  # No message: the consumer begins at the state before it.
    if name.startswith("mq/once/") and way == "noise":
        return Expected.NAMED_LATER  # No message: a key that comes again is handled again.
    return Expected.MADE_ANEW


def is_known_of(name: str, way: str, state: str) -> bool:
    """Whether anything is left that knows how far a group was: the death of processes leaves that in its file
    alone, and in a sound one of earlier nothing tells that it is."""
    is_alone = state == "killed" and name == "mq/groups/billing"
    return not (is_alone and way in ("missing", "empty", "older copy", "much older copy"))


def chosen(names: list[str]) -> list[str]:
    """The first, a middle and the last one."""
    return sorted({names[0], names[len(names) // 2], names[-1]}) if names else []


def of_kind(prepared: Prepared, kind: str) -> list[str]:
    names = list(prepared.snapshot.files)
    below = [name for name in names if name.startswith(f"{kind}/")]
    if kind == "commitlog":
        # One that was made ahead has nothing in it.
        return [name for name in below if prepared.snapshot.files[name].data]
    if kind == "consumequeue":
        return [
            name
            for queue in ("events/0", "orders/0", "orders/2", "SCHEDULE_TOPIC_XXXX/17")
            for name in chosen([name for name in below if name.startswith(f"{kind}/{queue}/")])
        ]
    if kind == "consumequeue_ext":
        return [
            name
            for queue in ("events/0", "orders/2")
            for name in chosen([name for name in below if name.startswith(f"{kind}/{queue}/")])
        ]
    if kind == "others":
        # Those of the timer are made anew by the leader: see tests/store/test_timer_damage.py.
        return [
            name for name in names if ("/" not in name or name.startswith("config/")) and "timer" not in name
        ]
    return below


class Stores(dict[str, Prepared]):
    """By state; each is made when it is first asked for."""

    def __init__(self, base: Path) -> None:
        self._base = base

    def __missing__(self, state: str) -> Prepared:
        (self._base / state).mkdir()
        self[state] = prepared = Prepared(self._base / state / "store", state)
        return prepared


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    base = Path(tempfile.mkdtemp(prefix="mq-whole-files-", dir=MEMORY if MEMORY.is_dir() else None))
    yield Stores(base)
    shutil.rmtree(base)


def complaints(found: Outcome, want: Expected, *, is_known: bool = True) -> list[str]:
    """What is not as it should be. is_known: whether what offsets were is written down anywhere."""
    wrong = list(found.wrong)
    if is_known:
        wrong += [f"the offset of {each} went down without a word" for each in found.unnamed()]
    if want is Expected.MADE_ANEW:
        wrong += [f"{place} is lost" for place in sorted(found.lost)]
        wrong += [f"verify: {problem}" for problem in found.problems]
        return wrong
    wrong += [f"{place} is lost, and its reader does not learn of it" for place in found.lost - found.refused]
    if found.lost and not found.problems:
        wrong.append("verify finds nothing")
    if want is Expected.NAMED:
        if not found.lost:
            wrong.append("nothing is lost")
        if not found.is_told_by_open():
            wrong.append(f"open does not tell what is lost: {found.told!r}")
        if not found.is_told_by_verify():
            wrong.append(f"verify does not tell what is lost: {found.problems}")
    return wrong


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", STATES)
def test_a_damaged_file_is_made_anew_or_what_is_lost_is_named(stores: Stores, state: str, kind: str) -> None:
    prepared = stores[state]
    log_files = of_kind(prepared, "commitlog")
    names = of_kind(prepared, kind)
    assert len(names) >= 2
    wrong, count = [], 0
    for name in chosen(names) if kind == "commitlog" else names:
        for way in WAYS:
            if not prepared.damage(name, way):
                continue
            count += 1
            try:
                found = look(prepared, verify_first=name.startswith(HAS_OFFSETS))
            except Exception as error:  # noqa: BLE001 - one of many cases
                wrong.append(f"{name} {way}: {type(error).__name__}: {error}")
                continue
            want, is_known = expected(name, way, log_files), is_known_of(name, way, state)
            wrong += [f"{name} {way}: {text}" for text in complaints(found, want, is_known=is_known)]
    print(f"{count} cases")
    assert not wrong, "\n".join(wrong[:60])


@pytest.mark.parametrize("state", STATES)
def test_an_undamaged_store_is_as_it_was(stores: Stores, state: str) -> None:
    """Otherwise every case above would only be about how it is put back."""
    prepared = stores[state]
    prepared.damage("lock", "nothing")
    found = look(prepared)
    assert complaints(found, Expected.MADE_ANEW) == []
    assert found.told == ""


def test_a_lost_file_is_an_exit_code(stores: Stores, capfd: pytest.CaptureFixture[str]) -> None:
    prepared = stores["closed"]
    assert prepared.damage(of_kind(prepared, "commitlog")[1], "zeroed")
    assert run([str(prepared.root), "verify"]) == 1
    assert "orders/0 queue offsets" in capfd.readouterr().out


def test_a_file_that_is_put_back_is_not_lost_any_more(stores: Stores) -> None:
    prepared = stores["killed"]
    name = of_kind(prepared, "commitlog")[1]
    assert prepared.damage(name, "missing")
    found = look(prepared)
    assert found.lost
    (prepared.root / name).write_bytes(prepared.snapshot.files[name].data.ljust(1 << 13, b"\0"))
    found = look(prepared)
    assert not found.lost
    assert found.problems == []


@pytest.mark.parametrize("state", STATES)
def test_what_was_lost_before_stays_named_without_the_file_that_says_so(quick_path: Path, state: str) -> None:
    prepared, name, wrong = (
        Prepared(quick_path / "store", state, has_loss=True),
        "mq/losses.json",
        list[str](),
    )
    for way in WAYS:
        if not prepared.damage(name, way):
            continue
        found = look(prepared)
        text = "\n".join(found.problems)
        found.wrong += [f"{place} is lost" for place in found.lost]
        found.wrong += [
            f"the reader of {place} does not learn of it" for place in prepared.lost - found.refused
        ]
        found.wrong += [
            f"verify does not name {place}" for place in prepared.lost if not is_named(text, place)
        ]
        wrong += [f"{way}: {each}" for each in found.wrong]
    assert not wrong, "\n".join(wrong[:60])


def test_a_damaged_journal_of_topics_costs_no_message(quick_path: Path) -> None:
    """It takes many topics, which would make every other case slow. A clean close folds it."""
    prepared = Prepared(quick_path / "store", "killed", has_journal=True)
    log_files = of_kind(prepared, "commitlog")
    wrong: list[str] = []
    for name in ("mq/topics.journal", "config/topics.json"):
        for way in WAYS:
            if prepared.damage(name, way):
                want = expected(name, way, log_files)
                wrong += [f"{name} {way}: {each}" for each in complaints(look(prepared), want)]
    assert not wrong, "\n".join(wrong[:60])


# Locks, which have nothing in them; what is there for a moment, or only after damage; what Spark's sink has.
NO_FILES = {
    *("gate", "duties", "follower", "offsets", "redrive", "filters.lock", "settings.lock", "topics.lock"),
    *("control.new", "damaged", "diverged", "spark"),
    *("losses.json", "topics.journal"),  # see above
}


def test_every_file_that_a_store_writes_is_damaged(stores: Stores) -> None:
    """Files of mq/ and config/ that the source names, and those that were written."""
    source = "".join(path.read_text() for path in (Path(mq.__file__).parent).rglob("*.py"))
    named = set(re.findall(r'"(?:mq|config)" / "([\w.]+)"', source)) - NO_FILES
    assert len(named) > 15
    damaged: set[str] = set()
    written: set[str] = set()
    for prepared in (stores[state] for state in STATES):
        written |= set(prepared.snapshot.files)
        for kind in KINDS:
            damaged |= set(of_kind(prepared, kind))
        damaged |= {name for name in prepared.snapshot.files if "timer" in name}
    directories = ("commitlog/", "consumequeue/", "consumequeue_ext/")
    assert [name for name in written - damaged if not name.startswith(directories)] == []
    parts = {part for name in damaged for part in name.split("/")}
    assert named - parts == set()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_the_leader_makes_a_damaged_file_of_the_timer_anew(stores: Stores, state: str) -> None:
    prepared = stores[state]
    names = [name for name in prepared.snapshot.files if "timer" in name and not name.endswith(".lock")]
    assert len({name.split("/")[0] for name in names}) >= 3
    wrong = []
    for name in names:
        for way in WAYS:
            if prepared.damage(name, way):
                wrong += [f"{name} {way}: {text}" for text in look_at_timers(prepared)]
    assert not wrong, "\n".join(wrong[:60])
