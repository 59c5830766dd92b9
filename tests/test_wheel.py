"""The wheel: one for all Pythons from 3.10 on, without C sources, accepted by auditwheel, and complete.

It is built from a copy of the sources, so that nothing depends on what was built here before.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.rounds

SEND_AND_RECEIVE = """
import sys, threading
import mq

assert mq.__file__.startswith(sys.prefix), mq.__file__
received = []
done = threading.Event()
with mq.open(sys.argv[1]) as broker, mq.PushConsumer(broker, "greeters") as consumer:
    @consumer.subscribe("greetings")
    def greet(message):
        received.append(message.body)
        done.set()
    consumer.start()
    broker.create_topic("greetings").send(b"hello")
    assert done.wait(60)
print(mq.__version__, received)
"""


def run(*command: object, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(
        [str(part) for part in command],
        env={**inherited, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    built_here = shutil.ignore_patterns("*.so", "*.o", "_native.c", "__pycache__")
    shutil.copytree(ROOT / "mq", source / "mq", ignore=built_here)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    # What an earlier build of other sources left must not get in.
    stale = source / "build" / f"lib.linux-x86_64-cpython-3{sys.version_info.minor}" / "mq" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    built = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", built, source)
    [wheel] = built.iterdir()
    return wheel


def test_the_wheel_is_for_all_later_pythons_and_has_no_c_sources(wheel: Path) -> None:
    assert wheel.name.startswith(f"mq-{importlib.metadata.version('mq')}-cp310-abi3-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert [name for name in names if name.endswith((".c", ".h", ".o"))] == []
    assert [name for name in names if name.endswith(("stale.py", "build.py"))] == []
    libraries = [name for name in names if ".so" in name]
    assert len(libraries) == 2
    assert all(name.endswith(".abi3.so") for name in libraries)
    assert {name.partition("/")[0] for name in names} >= {"mq", "pyspark_mq"}
    assert "mq/py.typed" in names
    assert [name for name in names if name.endswith("/licenses/LICENSE")] != []


def test_auditwheel_accepts_the_wheel(wheel: Path, tmp_path: Path) -> None:
    assert '"manylinux' in run(sys.executable, "-m", "auditwheel", "show", wheel)
    run(sys.executable, "-m", "auditwheel", "repair", "-w", tmp_path, wheel)
    [repaired] = tmp_path.iterdir()
    assert "-cp310-abi3-manylinux" in repaired.name


def test_the_wheel_alone_sends_and_receives(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))").strip())
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    # What mq depends on, from here: a test asks no package index.
    for name in ("cffi", "pycparser", "lark", "xxhash"):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            if ".." not in file.parts:
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(distribution.locate_file(file)), place / file)
    store = tmp_path / "store"
    printed = run(python, "-I", "-W", "error", "-c", SEND_AND_RECEIVE, store)
    assert printed == f"{importlib.metadata.version('mq')} [b'hello']\n"
