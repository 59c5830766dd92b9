"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from tests.speed.workspace import ROOT, file_system


def describe() -> dict[str, str]:
    memory_kib = next(
        (
            line.split()[1]
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemTotal:")
        ),
        "0",
    )
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{int(memory_kib) / (1 << 20):.0f} GiB",
        "kernel": platform.release(),
        "file system": file_system(ROOT),
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
