"""Every case runs, with counts so small that its figures mean nothing; a figure need only be one."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.speed import servers
from tests.speed.cases import CASES, chosen, cluster, due
from tests.speed.cases.case import Bench, Case
from tests.speed.peers import rocketmq
from tests.speed.plan import Plan
from tests.speed.remote import MqClient

# Peers leave threads of their own behind in this process; what is forked here never touches them.
pytestmark = [
    pytest.mark.rounds,
    pytest.mark.usefixtures("peers"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


# The cases find something else under these names.
START_PEER, START_BROKER = rocketmq.running, servers.real_broker


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("speed")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One session for all cases that need one; the tests of the source and the sink may have started it."""
    from tests.speed.cases.spark import session

    with session(tmp_path_factory.mktemp("spark")):
        yield


@pytest.fixture(scope="module")
def broker(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rocketmq.RocketMQ]:
    """One RocketMQ for all cases that have it as a peer: a start takes longer than such a case."""
    with START_PEER(cache, tmp_path_factory.mktemp("rocketmq")) as peer:
        yield peer


@pytest.fixture(scope="module")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.RealBroker]:
    """The same for the cases whose clients connect to a broker; however it flushes, they run."""
    with START_BROKER(tmp_path_factory.mktemp("broker")) as real:
        yield real


def sampled() -> Iterator[Any]:
    """All cases. Of those of a group that run Java clients the first one is in the rounds: each starts
    several Java processes, and the others share its code. So it is with those of Spark that differ in a value
    alone. `-m scale` runs them, too."""
    seen = set[object]()
    for case in CASES:
        code = case.name.partition("/")[0] if case.tools else getattr(case.measure, "__code__", case)
        is_slow = bool(case.tools) or "pyspark" in case.needs
        marks = [pytest.mark.scale] if is_slow and code in seen else []
        seen.add(code)
        yield pytest.param(case, marks=marks, id=case.name)


@pytest.mark.timeout(900)  # RocketMQ, and Spark, take long on a slow machine.
@pytest.mark.parametrize("case", list(sampled()))
def test_a_benchmark_case_runs(
    case: Case,
    cache: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if missing := case.missing():
        pytest.skip(f"{', '.join(missing)} cannot be installed here")
    if "pyspark" in case.needs:
        request.getfixturevalue("spark")
    monkeypatch.setattr(rocketmq, "running", lambda *_: nullcontext(request.getfixturevalue("broker")))
    monkeypatch.setattr(
        servers, "real_broker", lambda *_: nullcontext(request.getfixturevalue("real_broker"))
    )
    measured = case.measure(Bench(Plan.smoke(), tmp_path / "data", cache, lambda _: None))
    figures = measured.figures()
    assert len(figures) == 1
    # So short a run may have no stall at all.
    may_be_none = case.name == "batch/stalls"
    assert all(math.isfinite(figure) and (figure > 0 or (may_be_none and figure == 0)) for figure in figures)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_slow_sender_of_delayed_messages_gets_more_time(tmp_path: Path) -> None:
    bench = Bench(Plan.smoke(), tmp_path / "data", tmp_path, lambda _: None)
    assert due.turn(bench, 0).figure > 0


def test_each_turn_of_a_latency_has_a_topic_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["first", "second"])
    topics: list[str] = []
    monkeypatch.setattr(servers, "new_topic", lambda _: next(names))
    monkeypatch.setattr(MqClient, "latency", lambda client, *_: topics.append(client.topic))
    client = MqClient("127.0.0.1:9876", "of all turns")
    for _ in range(2):
        cluster.latency(client, Plan.smoke())
    assert topics == ["first", "second"]


def test_names_of_benchmark_cases_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_a_group_names_all_its_cases() -> None:
    assert [case.name for case in chosen(["round-trip"])] == ["round-trip/spinning", "round-trip/blocking"]
    assert [case.name for case in chosen(["send/lmdb"])] == ["send/lmdb"]
    assert chosen([]) == list(CASES)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError, match="sent"):
        chosen(["send", "sent"])
