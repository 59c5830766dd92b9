"""RocketMQ's Python clients: `rocketmq` with its C++ library, and the one for gRPC, which needs a proxy.

Both are imported as `rocketmq`, so each has an environment of its own, made once beside what else is cached.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support import maven
from tests.support.foreign.environments import python_environment

PROGRAMS = Path(__file__).resolve().parents[1] / "python_clients"
CPP = ("rocketmq==0.4.4", "cpp_client.py")
GRPC = ("rocketmq-python-client==5.1.2", "grpc_client.py")
CALL_SECONDS_MAX = 900.0


def measure(client: tuple[str, str], address: str, topic: str, count: int, size: int) -> dict[str, float]:
    """Figures of CPP against a name server, or of GRPC against a proxy: send_rate, send_cpu_us, consume_rate,
    consume_cpu_us. The topic exists already and is empty."""
    requirement, program = client
    command = [
        str(python_environment(requirement)),
        str(PROGRAMS / program),
        address,
        topic,
        str(count),
        str(size),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=CALL_SECONDS_MAX, check=False, cwd=maven.cache()
    )
    if done.returncode:
        raise RuntimeError(f"{requirement} ended with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
