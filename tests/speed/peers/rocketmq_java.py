"""RocketMQ's Java client, measured against any name server: a real cluster's, or one that mq serves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.cluster.programs import FULL_SPEED, Archive, Version, program

TOOLS = ("java", "javac", "mvn")
CALL_SECONDS_MAX = 600.0
MESSAGES_MAX = (1 << 31) - 1
IN_FLIGHT = 1024  # asynchronous sends that may wait for their answers


@dataclass(frozen=True, slots=True)
class JavaClient:
    """Each measurement is a process of its own, with the JVM's own options; the topic exists already."""

    name_server: str
    topic: str
    size: int = 1024
    version: Version = "5.3"

    def send(self, threads: int, seconds: float) -> dict[str, float]:
        """Sync sends: `rate` in messages a second; `cpu_us`, the client's processor time for each."""
        return self._measure("send", threads=threads, seconds=seconds)

    def send_async(self, seconds: float) -> dict[str, float]:
        """Sends with a callback: rate, cpu_us, failures."""
        return self._measure("async", seconds=seconds, in_flight=IN_FLIGHT)

    def send_batches(self, seconds: float, count: int = 500) -> dict[str, float]:
        """Batches: rate in messages, cpu_us."""
        return self._measure("batch", seconds=seconds, count=count)

    def fill(self, messages: int) -> dict[str, float]:
        """Store a backlog."""
        return self._measure("fill", messages=messages)

    def drain(self, group: str, messages: int) -> dict[str, float]:
        """A new push consumer takes a backlog, the first fifth to warm up: rate, cpu_us."""
        return self._measure("drain", messages=messages, group=group)

    def latency(self, group: str, messages: int, pause_us: int) -> dict[str, float]:
        """From send to listener, both in one process: p50_us, p99_us. The topic is empty."""
        return self._measure("latency", messages=messages, pause_us=pause_us, group=group)

    @contextmanager
    def draining(self, group: str) -> Iterator[None]:
        """A push consumer that takes all there is, in a process of its own, until the block ends."""
        command = self._command("drain", messages=MESSAGES_MAX, group=group)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as consumer:
            try:
                yield
                if (status := consumer.poll()) is not None:
                    raise RuntimeError(f"RocketMQ's consumer ended by itself with {status}")
            finally:
                consumer.kill()

    def _measure(self, case: str, **members: Any) -> dict[str, float]:
        command = self._command(case, **members)
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False)
        if done.returncode:
            raise RuntimeError(f"RocketMQ's {case} ended with {done.returncode}: {done.stderr[-2000:]}")
        answer = json.loads(done.stdout)
        del answer["case"]
        return dict(answer)

    def _command(self, case: str, **members: Any) -> list[str]:
        request = {"case": case, "topic": self.topic, "size": self.size, **members}
        arguments = [self.name_server, json.dumps(request)]
        clients = program("clients", self.version)
        return clients.command("mq.clients.Speed", arguments, (), Archive(), tuning=FULL_SPEED)
