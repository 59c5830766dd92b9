"""A process dies in a bulk, and the next one to append cannot read what it left: not now.

Such bytes may be whole messages. To ignore them would lose them, so no process appends before they were
read.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import mq
from mq.store.check import problems
from tests.store.bulk_appends import LARGE_BULK, SMALL_BULK, check_whole, run_failing
from tests.support.processes.fail_build import fail_points
from tests.support.store.small_store import SMALL

# Files that are too large to be mapped where little memory is left.
SIZES: dict[str, Any] = {**SMALL, "commitlog_file_size": 64 << 20}
LITTLE = 8 << 20

BULK = """
import mq
from tests.store.bulk_appends import append
broker = mq.open({root!r}, **{sizes!r})
append(broker, {before!r})
append(broker, {sent!r})
"""
NEXT = """
import os, resource, subprocess, sys
from pathlib import Path
import mq
from tests.store.bulk_appends import append, check_whole
with mq.open({root!r}, duties=False, **{sizes!r}) as broker:
    assert "orders" in broker.topics()  # It is not the file of the topics that cannot be read.
    environment = {{**os.environ, "MQ_FAIL": {points!r}}}
    dead = subprocess.run([sys.executable, "-c", {bulk!r}], env=environment, check=False)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = {{"RLIMIT_NOFILE": 0, "RLIMIT_AS": pages * 4096 + {little}}}
    which = getattr(resource, {limit!r})
    before = resource.getrlimit(which)
    queue = broker.publishable("orders")[0]
    attempts = (
        lambda: append(broker, [(0, b"bulk", "")]),
        lambda: broker.appender(queue)(mq.Message("orders", b"single"), b"single", 0),
        lambda: broker.append_batch(queue, [mq.Message("orders", b"batch")]),
    )
    resource.setrlimit(which, (limits[{limit!r}], before[1]))
    errors = []
    for attempt in attempts:
        try:
            errors.append(repr(attempt()))
        except Exception as error:
            errors.append(error)
    resource.setrlimit(which, before)
    print(dead.returncode, [(type(error).__name__, getattr(error, "resource", None)) for error in errors])
    check_whole(broker)
"""


@pytest.mark.crash
@pytest.mark.parametrize(("limit", "resource"), [("RLIMIT_NOFILE", "descriptors"), ("RLIMIT_AS", "memory")])
@pytest.mark.parametrize(
    ("point", "passage"), [("HALF_RECORD", 9), ("UNIT", 2), ("LOG_END", 2), ("PUBLISHED", 2)]
)
def test_a_file_that_cannot_be_read_now_is_repaired_by_the_next_process_that_can(
    directory: Path, point: str, passage: int, limit: str, resource: str
) -> None:
    with mq.open(directory, **SIZES) as broker:
        for topic in ("orders", "ledger"):
            broker.create_topic(topic, 2)
    root = str(directory)
    bulk = BULK.format(root=root, sizes=SIZES, before=SMALL_BULK, sent=LARGE_BULK)
    points = f"{fail_points()[point]}:{passage}:kill"
    code = NEXT.format(root=root, sizes=SIZES, bulk=bulk, points=points, limit=limit, little=LITTLE)
    done = run_failing(code, directory, "0:0:kill")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"{-signal.SIGKILL} {[('InsufficientResources', resource)] * 3}\n", done.stdout
    assert list(problems(directory)) == []
    with mq.open(directory, **SIZES) as again:
        check_whole(again, sent_since=True)
