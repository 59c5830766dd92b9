"""RocketMQ's Java client, measured against any name server: a real cluster's, or one that mq serves."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.support.cluster.programs import FULL_SPEED, Archive, Version, program

TOOLS = ("java", "javac", "mvn")
CALL_SECONDS_MAX = 600.0
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

    def _measure(self, case: str, **members: Any) -> dict[str, float]:
        request = {"case": case, "topic": self.topic, "size": self.size, **members}
        command = program("clients", self.version).command(
            "mq.clients.Speed",
            [self.name_server, json.dumps(request)],
            (),
            Archive(),
            tuning=FULL_SPEED,
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False)
        if done.returncode:
            raise RuntimeError(f"RocketMQ's {case} ended with {done.returncode}: {done.stderr[-2000:]}")
        answer = json.loads(done.stdout)
        del answer["case"]
        return dict(answer)
