"""`mq DIR replicate HOST:PORT` follows in the foreground, and says why it cannot."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import mq
from tests.cli.conftest import ENVIRONMENT, ROOT
from tests.support.cluster.certificates import Certificates
from tests.support.cluster.ports import free_port
from tests.support.eventually import eventually

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
                    "--master-timeout",
                    "60",
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


def test_replicate_signs_and_encrypts_its_requests_to_the_master(tmp_path: Path, directory: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "server.pem", tmp_path / "tls" / "server.key")
    with (
        mq.open(tmp_path / "master", commitlog_file_size=1 << 20) as master,
        mq.remoting.serve(
            master,
            port=free_port((-2, 1)),
            namesrv_port=0,
            ha_port=0,
            access_keys={"copy": "copys-secret"},
            tls=context,
        ) as server,
    ):
        master.create_topic("orders", 3).send(b"one")
        end = master.replication.log_range[1]
        command = [*MQ, str(directory), "--json", "replicate", server.ha_address or ""]
        command += ["--broker", server.address, "--master-access-key", "copy"]
        command += ["--master-tls-ca", str(certificates.authority), "--master-timeout", "60"]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**ENVIRONMENT, "MQ_MASTER_SECRET_KEY": "copys-secret"},
            stdout=subprocess.PIPE,
            text=True,
        ) as following:
            assert following.stdout is not None
            states = (json.loads(line) for line in following.stdout)
            assert next(state for state in states if state["offset"] == end)["error"] is None
            eventually(lambda: queue_count(directory) == 3, lambda: queue_count(directory))
            following.send_signal(signal.SIGINT)
            assert following.wait(60) == 130


def queue_count(directory: Path) -> int:
    with mq.open(directory, read_only=True) as copy:
        return len(copy.topic("orders").queues) if "orders" in copy.topics() else 0


def test_replicate_takes_no_namespace(directory: Path) -> None:
    answer = subprocess.run(
        [*MQ, str(directory), "replicate", "127.0.0.1:1", "--master-namespace", "shop"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 2
    assert "leave --master-namespace out" in answer.stderr
