"""The other process of the tests leaves no pipe open, however it ends: a later test would be blamed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.store.peer import Peer


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("ends", ["dies", "is killed", "is closed", "lives"])
def test_the_pipes_to_it_are_closed(tmp_path: Path, ends: str, is_own: bool) -> None:
    peer = Peer(tmp_path / "store", environment={} if is_own else None)
    if ends == "dies":
        os.kill(peer.pid, signal.SIGKILL)
        peer.process.wait(timeout=60)
    elif ends == "is killed":
        peer.kill()
    elif ends == "is closed":
        peer.close()
    peer.__exit__(LookupError, LookupError("the test failed"), None)
    for stream in (peer.process.stdin, peer.process.stdout):
        assert stream is not None
        assert stream.closed
    assert peer.process.poll() is not None
