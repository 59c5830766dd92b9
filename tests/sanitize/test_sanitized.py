"""The store's tests once more, on a build of the extensions that watches every access and every overflow.

Built with MQ_BUILD=sanitize (mq/store/native/build.py) outside of the checkout, once for each state of the
C sources, and run with the runtime of the sanitizers loaded first. Any report fails: a child process
that finds something dies by SIGABRT, which its test sees, and the report is looked for in what was printed.

What runs here costs several times what it does without. So it leaves out what is Python's alone, what mostly
waits, and most of what is alike; a report shows three frames of where memory came from; and freed memory is
watched for its next 16 MB. Small objects of Python are watched where C works with the objects themselves, and
with those of a whole broker: to watch each of them is what costs most. MQ_SANITIZE=full leaves out nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.rounds

ROOT = Path(__file__).resolve().parents[2]
NATIVE = Path("mq", "store", "native")
EXTENSIONS = (NATIVE, Path("mq", "fastpath"))  # where they lie
# The interpreter never frees all that it has, so leaks are not asked for.
ASAN = "detect_leaks=0:abort_on_error=1:handle_segv=1:handle_sigbus=1"
FULL = os.environ.get("MQ_SANITIZE") == "full"
FEW = "" if FULL else ":malloc_context_size=3:quarantine_size_mb=16"
FEWER_CASES = {} if FULL else {"MQ_DAMAGE_CASES": "100", "MQ_CLOSING_ROUNDS": "6"}
UBSAN = "halt_on_error=1:abort_on_error=1:print_stacktrace=1"
REPORT = re.compile(r"ERROR: AddressSanitizer|runtime error:|SUMMARY: \w+Sanitizer")
SECONDS_MAX = 14_400 if FULL else 2400


def source_hash() -> str:
    digest = hashlib.sha256(sys.version.encode())
    sources = [path for place in EXTENSIONS for path in (ROOT / place).rglob("*.[ch]")]
    for path in sorted([*sources, ROOT / NATIVE / "build.py", ROOT / "setup.py"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def copy_tree(to: Path) -> None:
    """The package and its tests, without what was built."""
    left_out = shutil.ignore_patterns("*.so", "__pycache__", "build", "sanitize", "oracle", "speed")
    for part in ("mq", "tests"):
        shutil.copytree(ROOT / part, to / part, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, to)
    (to / "tests" / "sanitize").mkdir()
    shutil.copy(ROOT / "tests" / "sanitize" / "few_examples.py", to / "tests" / "sanitize")


@pytest.fixture(scope="session")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sanitized extensions, from an earlier run where the sources are the same."""
    kept = Path(tempfile.gettempdir(), f"mq-sanitize-{os.getuid()}-{source_hash()}")
    if not kept.exists():
        tree = tmp_path_factory.mktemp("build") / "tree"
        tree.mkdir()
        copy_tree(tree)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=tree, env={**os.environ, "MQ_BUILD": "sanitize"}, check=True,
        )  # fmt: skip
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
        fresh.mkdir(mode=0o700)
        for place in EXTENSIONS:
            (fresh / place).mkdir(parents=True)
            (path,) = (tree / place).glob("*.so")
            shutil.copy(path, fresh / place)
        try:
            fresh.rename(kept)
        except OSError:  # Another run was faster.
            shutil.rmtree(fresh)
    assert kept.stat().st_uid == os.getuid()
    return kept


def runtime() -> str:
    """The libraries that must be loaded before everything else."""
    paths = []
    for name in ("libasan.so", "libubsan.so"):
        path = subprocess.run(
            [os.environ.get("CC", "gcc"), f"-print-file-name={name}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        assert Path(path).is_absolute(), f"the compiler has no {name}: install its sanitizer runtime"
        paths.append(path)
    return ":".join(paths)


def run(tree: Path, *command: str, allocator: str = "malloc") -> subprocess.CompletedProcess[str]:
    """allocator: that of Python. With malloc its objects are watched, with pymalloc those over 512 bytes."""
    return subprocess.run(
        [sys.executable, *command], cwd=tree, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=SECONDS_MAX,
        env={
            **os.environ, **FEWER_CASES,
            "LD_PRELOAD": runtime(), "ASAN_OPTIONS": ASAN + FEW, "UBSAN_OPTIONS": UBSAN,
            "PYTHONPATH": str(tree), "PYTHONMALLOC": allocator,
        },
    )  # fmt: skip


@pytest.fixture(scope="session")
def tree(extensions: Path) -> Iterator[Path]:
    """Where other users find it too: some tests run as one, and pytest's directories are closed to them."""
    path = Path(tempfile.mkdtemp(prefix="mq-sanitized-"))
    copy_tree(path)
    shutil.copytree(extensions, path, dirs_exist_ok=True)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.timeout(900)  # The first test of all waits for the build.
def test_the_build_reports_what_it_should(tree: Path) -> None:
    """Otherwise all that follows would prove nothing."""
    code = "import mq; from mq.store.native import ffi, lib; print(lib.mq_crc32(0, ffi.new('char[8]'), 64))"
    done = run(tree, "-c", code)
    assert done.returncode != 0
    assert REPORT.search(done.stdout)
    assert run(tree, "-c", code.replace("64", "8")).returncode == 0


@pytest.mark.timeout(SECONDS_MAX + 60)
@pytest.mark.parametrize(
    ("folder", "allocator", "chosen"),
    [
        # Deaths and failures need a build with fail points; processes that sleep for seconds run no C code.
        (
            "tests/store",
            "pymalloc",
            (
                "(not death or HALF_RECORD) and not (no_space or idle or duties_pass or costs_no or at_rest)"
                " and not (reserved_is_given_back or has_its_own_messages_and_offsets)"
            ),
        ),
        # Less C in these; and what is due in seconds is due at once in the tests of the store.
        (
            "tests/contract",
            "malloc",
            "local and not (local-sync or groups or topics or never_comes or immunity)",
        ),
        # Some of many that are alike, and full disks of one kind; and no large settings, which are Python's.
        (
            "tests/damage",
            "pymalloc",
            (
                "not config and not ext4 and (not hostile or control-0 or units-0 or records-0)"
                " and not (test_whole_files and (closed or copied or every_file))"
            ),
        ),
        ("tests/fastpath", "malloc", ""),
    ],
)
def test_passes_under_the_sanitizers(tree: Path, folder: str, allocator: str, chosen: str) -> None:
    few = [] if FULL else ["-p", "tests.sanitize.few_examples", "-k", chosen]
    done = run(
        tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", folder, *few,
        "-m", "not scale and not speed and not oracle and not crash",
        allocator="malloc" if FULL else allocator,
    )  # fmt: skip
    found = REPORT.search(done.stdout)
    assert found is None, done.stdout[max(0, found.start() - 500) : found.start() + 6000]
    assert done.returncode == 0, done.stdout[-6000:]
