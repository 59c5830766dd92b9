"""RocketMQ itself: name server, broker and clients in Java on loopback, with RocketMQ's defaults.

The program in tests/speed/rocketmq is built once for each state of its sources, beside what else the
benchmark builds; Maven fetches RocketMQ from Maven Central the first time. The broker opens no replication
port: the class that sees to it comes from the oracle's program (tests/oracle). Broker, sender and consumer
are processes of their own, as they are where RocketMQ is used.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import oracle

TOOLS = ("java", "javac", "mvn")
SOURCES = Path(__file__).resolve().parents[1] / "rocketmq"
JVM_OPTIONS = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
CALL_SECONDS_MAX = 300.0


class RocketMQ:
    """A broker that runs, with an empty topic."""

    def __init__(self, command: list[str], name_server: str) -> None:
        self._command = command
        self._name_server = name_server

    def fill(self, count: int, size: int) -> None:
        """Store messages."""
        self._call("fill", count, size)

    def drain(self, count: int) -> float:
        """Messages a second of a new push consumer that takes `count`, the first fifth to warm up."""
        return float(self._call("drain", count).strip())

    def latencies(self, count: int, size: int, pause: float) -> list[int]:
        """The time from send to listener of messages sent `pause` seconds apart, in ns."""
        command = [*self._command, "listen", self._name_server, str(count)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as listener:
            assert listener.stdout is not None
            try:
                if listener.stdout.readline().strip() != "ready":
                    raise RuntimeError("RocketMQ's consumer does not start")
                self._call("send", count, size, int(pause * 1e9))
                times = [int(time) for time in listener.stdout.readline().split()]
                # After a clean shutdown the next consumer has nothing to wait for.
                listener.wait(CALL_SECONDS_MAX)
                return times
            finally:
                listener.kill()

    def _call(self, verb: str, *arguments: int) -> str:
        command = [*self._command, verb, self._name_server, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False)
        if done.returncode:
            raise RuntimeError(f"RocketMQ's {verb} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


@contextmanager
def running(cache: Path, directory: Path) -> Iterator[RocketMQ]:
    """A broker on an empty directory; ended and gone afterwards."""
    program, loopback_alone = _build(cache), oracle.build()
    classpath = f"{program / 'rocketmq.jar'}:{loopback_alone / 'oracle.jar'}:{program / 'lib'}/*"
    # What the library writes beside its store, logs for one, goes to the user's home.
    command = ["java", f"-Duser.home={directory}", *JVM_OPTIONS, "-cp", classpath, "mq.speed.Peer"]
    with subprocess.Popen(
        [*command, "serve", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            name_server = server.stdout.readline().strip()
            if not name_server:
                raise RuntimeError("RocketMQ's broker does not start")
            yield RocketMQ(command, name_server)
        finally:
            with suppress(BrokenPipeError):
                server.stdin.close()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()


def _build(cache: Path) -> Path:
    digest = hashlib.sha256()
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(source.read_bytes())
    built = cache / f"rocketmq-{digest.hexdigest()[:12]}"
    if not built.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            target = Path(scratch) / "target"
            command = [
                "mvn",
                "-B",
                "-q",
                "-f",
                str(SOURCES / "pom.xml"),
                f"-Drocketmq.build={target}",
                "package",
            ]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"Maven could not build the peer:\n{done.stdout}{done.stderr}")
            target.rename(built)
    return built
