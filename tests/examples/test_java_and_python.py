"""The example of a Java producer and a Python consumer on one store, run as its text says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mq.store.check import problems
from tests.examples.texts import EXAMPLES, ROOT
from tests.support import maven

pytestmark = [pytest.mark.oracle, pytest.mark.rounds, pytest.mark.timeout(900)]

EXAMPLE = EXAMPLES / "java_and_python"
LIMIT = 240.0


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RocketMQ's Java client, fetched by the example's own command."""
    maven.need("java", "mvn")
    place = tmp_path_factory.mktemp("client") / "jars"
    command = ["mvn", "-B", "-q", "-f", str(EXAMPLE / "pom.xml"), "dependency:copy-dependencies"]
    with maven.locked("lock"):  # Other processes of the run may fetch the same.
        subprocess.run([*command, f"-DoutputDirectory={place}"], check=True, timeout=600)
    return place


def test_orders_from_java_are_billed_in_python(jars: Path, tmp_path: Path) -> None:
    billing = subprocess.Popen(
        [sys.executable, "-W", "error", EXAMPLE / "billing.py", "--port", "0", "--name-server-port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert billing.stdout is not None
        begun = re.fullmatch(r"waiting for orders: the name server is (\S+)\n", billing.stdout.readline())
        assert begun
        home = [f"-Duser.home={tmp_path}", f"-Drocketmq.client.logRoot={tmp_path / 'logs'}"]
        sending = subprocess.run(
            ["java", *home, "-cp", f"{jars}/*", EXAMPLE / "SendOrders.java", begun[1]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert sending.returncode == 0, sending.stderr
        tags = ["cancelled" if number % 5 == 0 else "paid" for number in range(1, 11)]
        assert sending.stdout.splitlines() == [
            f"order {number} {tag} SEND_OK" for number, tag in enumerate(tags, 1)
        ]
        billed = [billing.stdout.readline() for tag in tags if tag == "paid"]
        billing.send_signal(signal.SIGINT)
        out, err = billing.communicate(timeout=LIMIT)
    finally:
        billing.kill()
        billing.wait()
    assert (billing.returncode, out, err) == (0, "", "")
    assert sorted(billed) == [
        f"billed O{number}: order {number}\n" for number, tag in enumerate(tags, 1) if tag == "paid"
    ]
    assert [str(problem) for problem in problems(tmp_path / "var" / "shop")] == []
