"""A pytest plugin: three processes share the tests, `pytest -p tests.support.side_by_side -n 3`.

One more than CI has processors, as many tests wait for something most of the time. The tests of a file run in
one process, one after the other, and share what is prepared once. What takes longest begins first, so that no
process is left alone with it at the end, and what computes begins beside what waits.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# One session of Spark; one RocketMQ, and one Maven that fetches what is missing.
TOGETHER = ("tests/spark/", "tests/oracle/")
APART = ("tests/sanitize/", "tests/damage/test_hostile_bytes.py", "tests/crash/test_power_cut.py")
LONGEST = (
    "tests/spark/",
    "tests/sanitize/",
    "tests/remoting/server/",
    "tests/oracle/",
    "tests/replica/",
    "tests/speed/test_cases.py",
    "tests/cluster/",
    "tests/damage/test_hostile_bytes.py",
    "tests/examples/",
    "tests/interrupts/",
    "tests/remoting/",
    "tests/crash/",
    "tests/damage/",
    "tests/groups/",
    "tests/contract/",
    "tests/broker/",
)


class Groups(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        """The group of a test: a folder, a file, or the test alone."""
        path = nodeid.partition("::")[0]
        folder = next((folder for folder in TOGETHER if path.startswith(folder)), path)
        return nodeid if path.startswith(APART) else folder


def place(item: pytest.Item) -> int:
    return next((n for n, long in enumerate(LONGEST) if item.nodeid.startswith(long)), len(LONGEST))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    config.option.loadscopereorder = False  # It would begin with what has most tests.
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """The collected tests stay until the end: no collector need look at them."""
    gc.collect()
    gc.freeze()


def encodable(value: Any) -> Any:
    """The same without surrogates: file names that are no UTF-8, of which a warning tells."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([encodable(item) for item in value])
    return value


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """A report goes through a pipe as UTF-8."""
    data: dict[str, Any] | None = encodable((yield))
    return data
