"""RocketMQ's own integration tests, of 5.3 and of 4.9, on a directory of mq.

Those of 5.3 that are quick run in the rounds; all the others take minutes: `pytest -m scale`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from tests.support.cluster.programs import Version
from tests.support.rocketmq_tests import Outcome, expected, in_sources, run

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(3600)]

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
PROCESSES = 3  # They mostly wait.
# Building and running those of 4.9 takes CI too long.
COMPILED = ["5.3", pytest.param("4.9", marks=pytest.mark.scale)]
CASES = [
    ("5.3", "rounds"),
    pytest.param("5.3", "scale", marks=pytest.mark.scale),
    pytest.param("4.9", "scale", marks=pytest.mark.scale),
]


@pytest.mark.parametrize("version", COMPILED)
def test_the_table_has_every_test(version: Version) -> None:
    rows = expected(version)
    assert sorted(row.test for row in rows) == sorted(in_sources(version))
    for row in rows:
        assert (row.outcome == "not run") == (row.run_in == ""), row
        assert (row.outcome == "passes") == (row.reason == ""), row


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_the_page_has_the_figures_of_the_table(version: Version) -> None:
    counts = Counter(row.outcome for row in expected(version))
    figures = (counts.total(), counts["passes"] + counts["fails"], counts["passes"])
    assert f"| {version} | {' | '.join(map(str, figures))} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("version", "run_in"), CASES)
def test_each_ends_as_the_table_says(version: Version, run_in: str, directory: Path, tmp_path: Path) -> None:
    wanted = {row.test: row.outcome for row in expected(version) if row.run_in == run_in}
    differing = ending_otherwise(version, wanted, directory, tmp_path / "first")
    if differing:  # Many wait for a fixed time, which a busy machine may exceed: once more.
        print(differing)
        wanted = {test: wanted[test] for test in differing}
        differing = ending_otherwise(version, wanted, directory, tmp_path / "again")
    assert differing == {}


def ending_otherwise(
    version: Version, wanted: dict[str, str], directory: Path, place: Path
) -> dict[str, Outcome | None]:
    """The tests that do not end as they should, with their outcomes."""
    encrypted = {test for test in wanted if test.startswith("tls.")}
    found = outcomes(version, wanted.keys() - encrypted, directory, place / "plain")
    if encrypted:
        found |= outcomes(version, encrypted, directory, place / "tls", tls=True)
    return {test: found.get(test) for test in wanted if not ends_as(found, test, wanted[test])}


def ends_as(found: dict[str, Outcome], test: str, outcome: str) -> bool:
    return test in found and found[test].outcome == outcome


def outcomes(
    version: Version, tests: Iterable[str], directory: Path, place: Path, *, tls: bool = False
) -> dict[str, Outcome]:
    """What becomes of the tests on a served directory."""
    with (
        mq.open(directory, transaction_timeout=1.0, transaction_check_interval=1.0) as store,
        serve(store, port=0, namesrv_port=0, tls=tls) as server,
    ):
        return run(
            version,
            tests,
            place,
            name_server=server.name_server,
            broker=store.name,
            processes=PROCESSES,
            options=["-Dtls.enable=true"] if tls else [],
        )
