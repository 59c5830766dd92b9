"""The cluster that the processes of a run share ends with the last of them, however that one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.cluster.asking import GET_CLUSTER, ask
from tests.support.cluster.shared import ROOT
from tests.support.eventually import eventually

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(600)]

USER = """
import time
from tests.support.cluster.shared import attached
print(attached("4.9").name_server, flush=True)
time.sleep(600)
"""


def user() -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "PYTEST_XDIST_TESTRUNUID": f"users-{os.getpid()}"}
    process = subprocess.Popen(
        [sys.executable, "-c", USER], stdout=subprocess.PIPE, cwd=ROOT, text=True, env=environment
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def is_reached(address: str) -> bool:
    try:
        return ask(address, GET_CLUSTER).code == 0
    except OSError:
        return False


def test_processes_share_a_cluster_until_the_last_has_died() -> None:
    first, address = user()
    second, same = user()
    try:
        assert address == same != ""
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert is_reached(address)
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
    # A server that was to write its class archive is stopped in good order first.
    eventually(lambda: not is_reached(address), lambda: address, seconds=240.0)
