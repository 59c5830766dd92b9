"""The test build of mq: the same sources with the fail points of fail.h.

It is built in a directory of its own outside the tree, named after a hash of the sources, so that it is
built once and never mistaken for another version. Children get it through PYTHONPATH.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["TREE", "fail_build", "fail_points"]

TREE = Path(__file__).resolve().parents[3]
SOURCES = ("*.py", "*.c", "*.h")
POINT = re.compile(r"MQ_FAIL_(\w+) = (\d+)")


def fail_points() -> dict[str, int]:
    """Names and numbers of the points, as fail.h lists them."""
    text = (TREE / "mq" / "store" / "native" / "base" / "fail.h").read_text()
    return {name: int(number) for name, number in POINT.findall(text) if name != "POINT_COUNT"}


def fail_build() -> Path:
    """A directory for PYTHONPATH that holds mq with fail points."""
    sources = sorted(path for pattern in SOURCES for path in (TREE / "mq").rglob(pattern))
    sources.append(TREE / "setup.py")
    digest = hashlib.sha256(sys.version.encode())
    for path in sources:
        digest.update(str(path.relative_to(TREE)).encode() + b"\0" + path.read_bytes() + b"\0")
    builds = Path(tempfile.gettempdir()) / f"mq-fail-builds-{os.getuid()}"
    builds.mkdir(mode=0o700, exist_ok=True)
    if builds.stat().st_uid != os.getuid():
        raise PermissionError(f"{builds} belongs to another user: set TMPDIR to another directory")
    built = builds / digest.hexdigest()[:16]
    with (builds / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=builds) as fresh:
                _build(sources, Path(fresh))
                Path(fresh).rename(built)
                Path(fresh).mkdir()  # For the context manager to remove.
            _forget_all_but(builds, built)
    return built


def _build(sources: list[Path], into: Path) -> None:
    for path in sources:
        copy = into / path.relative_to(TREE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    result = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=into,
        env={**os.environ, "MQ_BUILD": "fail"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the build with fail points failed:\n{result.stdout}\n{result.stderr}")
    shutil.rmtree(into / "build", ignore_errors=True)


def _forget_all_but(builds: Path, newest: Path) -> None:
    """Keep the three latest builds: others are of sources long gone."""
    old = sorted((path for path in builds.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for path in old[:-3]:
        if path != newest:
            shutil.rmtree(path, ignore_errors=True)
