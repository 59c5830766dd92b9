"""The examples that run on a cluster as well as on a directory."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.examples.texts import EXAMPLES, ROOT, SAYS
from tests.support.cluster.shared import attached, unique_name

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(300)]


@pytest.mark.parametrize("version", ["5.3", "4.9"])
def test_one_program_runs_on_a_cluster(version: str) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "anywhere.py")]
    target = f"rocketmq://{attached(version).name_server}"
    completed = subprocess.run(
        [*command, target, "--namespace", unique_name("example"), "--timeout", "30"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert completed.stderr == ""
    assert re.fullmatch(SAYS["anywhere.py"], completed.stdout), completed.stdout
