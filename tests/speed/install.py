"""Installs the peers with pip into a directory of the benchmark's own; the environment stays as it is."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.speed.progress import say
from tests.support import maven

NEEDED = {
    "plyvel": "plyvel",
    "rocksdict": "rocksdict",
    "lmdb": "lmdb",
    "queuelib": "queuelib",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
    "localqueue": "localqueue",
    "diskcache": "diskcache",
    "iceoryx2": "iceoryx2",
    "pyarrow": "pyarrow",
    "cffi": "cffi",
    "setuptools": "setuptools",
}
"""Distribution -> the module that shows that it is there. The last three: read_arrow, reference."""


def use(directory: Path) -> None:
    """Let this process, and those it starts, import from `directory` what is not installed otherwise."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    importlib.invalidate_caches()


@maven.locked("peers.lock")
def install_missing(directory: Path) -> list[str]:
    """Install what is not there, one by one; returns the distributions that could not be installed. Processes
    that do so at the same time wait for each other: a package that is half there looks installed."""
    directory.mkdir(parents=True, exist_ok=True)
    use(directory)
    failed = []
    for distribution, module in NEEDED.items():
        if importlib.util.find_spec(module) is not None:
            continue
        say(f"installing {distribution}")
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(directory),
            distribution,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(distribution)
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            say(f"could not install {distribution}: {last}")
        importlib.invalidate_caches()
    return failed


def versions() -> dict[str, str]:
    """What is there, with its version: mq, sqlite3 and the peers."""
    found = {"sqlite3": sqlite3.sqlite_version}
    for distribution in ("mq", *NEEDED):
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
