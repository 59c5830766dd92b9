"""Where programs in other languages find their libraries: built once for each state of their sources.

They need Go, and Node.js with npm (Debian packages golang-go and npm). What they use comes from the Go module
proxy, npm and PyPI on the first build, and lies beside what Maven builds (see maven.py).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path

from tests.support import maven

SOURCES = Path(__file__).parent
PACKAGES = {"go": "golang-go", "npm": "npm"}


def go_client() -> list[str]:
    return [str(_built("go", _build_go) / "client")]


def js_client() -> list[str]:
    return ["node", str(_built("js", _build_js) / "client.js")]


def cpp_client() -> list[str]:
    return [str(python_environment("rocketmq==0.4.4")), str(SOURCES / "cpp" / "client.py")]


def python_environment(requirement: str) -> Path:
    """The interpreter of an environment with one package."""
    place = maven.cache() / f"{requirement.replace('==', '-')}-py{sys.version_info[0]}.{sys.version_info[1]}"
    interpreter = place / "bin" / "python"
    with maven.locked("environments.lock"):
        if not (place / "ready").exists():
            venv.create(place, clear=True, with_pip=True)
            _run([str(interpreter), "-m", "pip", "install", "-q", requirement], place)
            (place / "ready").touch()
    return interpreter


def _built(language: str, build: Callable[[Path], None]) -> Path:
    """The directory of a program, built unless these sources have been built before."""
    digest = hashlib.sha256(language.encode())
    for path in sorted((SOURCES / language).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    place = maven.cache() / f"{language}-{digest.hexdigest()[:16]}"
    with maven.locked("environments.lock"):
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=maven.cache()) as fresh:
                directory = Path(fresh) / language
                shutil.copytree(SOURCES / language, directory)
                build(directory)
                directory.rename(place)
    return place


def _build_go(directory: Path) -> None:
    _need("go")
    _run(["go", "build", "-o", "client", "."], directory)


def _build_js(directory: Path) -> None:
    _need("npm")
    _run(["npm", "install", "--no-audit", "--no-fund", "--silent"], directory)


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise RuntimeError(f"{tool} is not installed; on Debian: apt-get install {PACKAGES[tool]}")


def _run(command: list[str], directory: Path) -> None:
    # A toolchain of the machine's own: Go would fetch another one that a module asks for.
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    done = maven.run_download(command, directory, environment, seconds=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
