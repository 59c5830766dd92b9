"""What all tests share: a directory that is verified at the end, and how long Hypothesis searches."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A machine under load takes its time, and that proves nothing. The usual examples are the same each time, so
# that what is red was made red by a change; MQ_HYPOTHESIS=thorough searches on, by other ones each time.
hypothesis.settings.register_profile("usual", deadline=None, derandomize=True)
hypothesis.settings.register_profile("thorough", deadline=None, print_blob=True, max_examples=5000)
hypothesis.settings.load_profile(os.environ.get("MQ_HYPOTHESIS", "usual"))

# A shell starts what is to run in the background with SIGINT ignored, and all of its children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A place for a store. Whatever the test did there, every invariant holds afterwards."""
    from mq.store.check import problems

    path = tmp_path / "store"
    yield path
    if path.exists():
        assert [str(problem) for problem in problems(path)] == []


@pytest.fixture
def dropped_here() -> Iterator[None]:
    """What the test leaves to the collector goes before it ends, while the warnings of it are expected: in
    another test they are errors."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """A test leaves the environment as it was. What it has the library set there, a JAVA_HOME for one, is
    unknown to monkeypatch, and stopped the Maven of tests that came later."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)
