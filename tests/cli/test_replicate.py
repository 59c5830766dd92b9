"""`mq DIR replicate HOST:PORT` follows in the foreground, and says why it cannot."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import mq
from tests.cli.conftest import ENVIRONMENT, ROOT
from tests.support.cluster.ports import free_port

MQ = [sys.executable, "-m", "mq"]


def test_replicate_follows_until_it_is_interrupted(tmp_path: Path, directory: Path) -> None:
    with mq.open(tmp_path / "master", commitlog_file_size=1 << 20) as master:
        for number in range(10):
            master.create_topic("orders", 1).send(b"%d" % number)
        end = master.replication.log_range[1]
        with mq.remoting.serve(master, port=free_port((-2, 1)), namesrv_port=0, ha_port=0) as server:
            address = server.ha_address or ""
            with subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "mq",
                    str(directory),
                    "--json",
                    "replicate",
                    address,
                    "--broker",
                    server.address,
                ],
                cwd=ROOT,
                env=ENVIRONMENT,
                stdout=subprocess.PIPE,
                text=True,
            ) as following:
                assert following.stdout is not None
                states = (json.loads(line) for line in following.stdout)
                assert next(state for state in states if state["offset"] == end)["error"] is None
                following.send_signal(signal.SIGINT)
                assert following.wait(60) == 130
            own = subprocess.run(
                [*MQ, str(master.path), "replicate", address, "--log-only"],
                cwd=ROOT,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
    assert own.returncode == 1
    assert "is open as a master" in own.stderr
    with mq.open(directory, read_only=True) as copy:
        assert copy.topic("orders").queues[0].max_offset == 10
