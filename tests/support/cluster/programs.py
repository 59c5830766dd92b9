"""RocketMQ's servers and clients as Java programs: their class paths, built by Maven, and the JVM's options.

A program's classes are archived (class-data sharing) when the first process that may do so stops in good
order; each later process of the program maps the archive, and starts in two thirds of the processor time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal

from tests.support import maven

PROJECT = Path(__file__).resolve().parent / "java"
Version = Literal["5.3", "4.9"]

# Quick to start and small: what tests want.
QUICK_START = (
    "-XX:TieredStopAtLevel=1",
    "-XX:CICompilerCount=1",
    "-XX:+UseSerialGC",
    "-Xms32m",
    "-Xmx256m",
    "-XX:MaxDirectMemorySize=256m",
)
# The JVM's own compilers and collector, and room: what measurements want.
FULL_SPEED = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g")

JVM_OPTIONS = (
    # A complaint about an archive of classes that does not fit must not stand among a program's answers.
    "-Xlog:disable",
    # RocketMQ and Netty reach into these packages.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


@dataclass(slots=True)
class Archive:
    """What a JVM is told of its program's class archive, and what is left to do when it has ended."""

    options: Sequence[str] = ()
    _made: Path | None = None
    _place: Path | None = None
    _lock: IO[str] | None = field(default=None, repr=False)

    @property
    def is_being_made(self) -> bool:
        """Whether the archive is written at the end of the process, if that ends in good order."""
        return self._made is not None

    def ended(self) -> None:
        """The process has ended: put the archive in its place, if one was written."""
        if self._made is not None and self._place is not None:
            if self._made.exists():
                self._made.rename(self._place)
            self._made = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@dataclass(frozen=True, slots=True)
class Program:
    """A class path with its JVM options."""

    directory: Path
    version: Version
    jars: tuple[Path, ...]

    def command(
        self,
        main: str,
        arguments: Iterable[str],
        options: Iterable[str],
        archive: Archive,
        *,
        tuning: Iterable[str] = QUICK_START,
    ) -> list[str]:
        """The command that runs a class of the program."""
        class_path = ":".join(map(str, (self.directory / "program.jar", *self.jars)))
        options = (*tuning, *JVM_OPTIONS, *self._logging(), *archive.options, *options)
        return ["java", *options, "-cp", class_path, main, *arguments]

    def archive(self, kind: str) -> Archive:
        """The class archive of one kind of process; at most one process at a time makes it."""
        place = self.directory / f"{kind}-{_java()}.jsa"
        if place.exists():
            return Archive([f"-XX:SharedArchiveFile={place}"])
        lock = (self.directory / f"{kind}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return Archive()
        made = place.with_suffix(f".{os.getpid()}")
        return Archive([f"-XX:ArchiveClassesAtExit={made}"], made, place, lock)

    def logging(self) -> Path:
        """What the program's logging library reads."""
        return PROJECT / "src" / "logging" / f"{self.version}.xml"

    def _logging(self) -> Iterable[str]:
        if self.version == "5.3":
            return [f"-Drmq.logback.configurationFile={self.logging().as_uri()}"]
        return [
            f"-Dlogback.configurationFile={self.logging().as_uri()}",
            "-Drocketmq.client.logUseSlf4j=true",
        ]


@cache
def program(kind: Literal["servers", "clients", "proxy"], version: Version) -> Program:
    """Build the program unless that is done; raises MavenUnavailable."""
    return built_program(PROJECT, f"{kind}-{version}", version)


def built_program(project: Path, profile: str, version: Version) -> Program:
    """The same, of a project whose profile writes its class path to the file `classpath`."""
    maven.need("java")
    goals = ["package", "dependency:build-classpath"]
    for attempt in range(2):
        directory = maven.built(project, "program.build", goals, profile=profile)
        jars = tuple(Path(jar) for jar in (directory / "classpath").read_text().strip().split(":"))
        if all(jar.exists() for jar in jars):
            break
        # Maven's own repository was emptied since.
        if attempt == 0:
            shutil.rmtree(directory)
    return Program(directory, version, jars)


@cache
def _java() -> str:
    """What tells this JDK from another: an archive is of one JDK alone."""
    found = shutil.which("java")
    assert found is not None
    path = Path(found).resolve()
    return hashlib.sha256(f"{path}{path.stat().st_mtime_ns}".encode()).hexdigest()[:8]
