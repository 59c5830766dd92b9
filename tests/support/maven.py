"""Java programs that Maven builds once for each state of their sources, outside the source tree.

They need a JDK of 17 or newer and Maven (Debian packages default-jdk-headless and maven). Maven fetches
RocketMQ from Maven Central on the first build. What is built lies in $MQ_ORACLE_DIR, else in mq-oracle under
the user's cache directory. Processes that build at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ATTEMPTS, PAUSE_SECONDS = 3, 10.0
COMPILATION_FAILED = "COMPILATION ERROR"  # as Maven says it


class MavenUnavailable(Exception):
    """Java or Maven is missing, or a program cannot be built; the text says what to do."""


def cache() -> Path:
    """Where built programs lie."""
    if chosen := os.environ.get("MQ_ORACLE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mq-oracle"


def need(*tools: str) -> None:
    """Raise MavenUnavailable unless the commands exist."""
    for tool in tools:
        if shutil.which(tool) is None:
            raise MavenUnavailable(
                f"{tool} is not installed; on Debian: apt-get install default-jdk-headless maven"
            )


def built(project: Path, target: str, goals: Iterable[str], *, profile: str = "") -> Path:
    """The directory of a program, built unless these sources with this profile have been built before.

    `target` is the property of the project's pom.xml that names the directory to build in.
    """
    sources = [project / "pom.xml", *sorted(path for path in (project / "src").rglob("*") if path.is_file())]
    digest = hashlib.sha256(profile.encode())
    for source in sources:
        digest.update(f"{source.relative_to(project)}\0{source.stat().st_size}\0".encode())
        digest.update(source.read_bytes())
    directory = cache() / digest.hexdigest()[:16]
    with locked("lock"):
        if not directory.exists():
            _build(project, target, [*(["-P", profile] if profile else []), *goals], directory)
    return directory


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold one of the cache's locks; it is given up when the process dies, too."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_download(
    command: list[str],
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run what downloads, and again where it fails: a server may be out of reach for a moment."""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_SECONDS * attempt)
        done = subprocess.run(
            command, cwd=directory, env=environment, timeout=seconds, check=False, capture_output=True,
            encoding="utf-8",
        )  # fmt: skip
        if done.returncode == 0 or COMPILATION_FAILED in done.stdout:
            break
    return done


def _build(project: Path, target: str, arguments: list[str], directory: Path) -> None:
    need("javac", "mvn")
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        place = Path(scratch) / "target"
        place.mkdir()
        command = ["mvn", "-B", "-q", "-f", str(project / "pom.xml"), f"-D{target}={place}", *arguments]
        done = run_download(command)
        if done.returncode != 0:
            raise MavenUnavailable(f"Maven could not build {project}:\n{done.stdout}{done.stderr}")
        place.rename(directory)
