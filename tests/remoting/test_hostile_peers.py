"""A peer that sends mutated frames over real connections: an answer or one named error, in time."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from random import Random

import pytest

from mq.errors import RemotingError, RequestTimeout
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.frame import Frame, answer_to, encode
from tests.remoting.conftest import ECHO
from tests.remoting.mutations import mutated, sound_frames
from tests.support.remoting_peer import Link, Peer
from tests.support.wire_values import Values

FRAMES_EACH = 10


def hostile(peer: Peer, seed: int) -> None:
    """Have the peer answer with mutated frames, requests and answers, then the answer, then the end; or
    only sound frames, and go on."""
    random = Random(seed)
    sound = list(sound_frames(Values(seed)))

    async def reply(link: Link, request: Frame) -> None:
        share = random.choice([0.0, 0.05, 0.9])
        for _ in range(FRAMES_EACH):
            frame = random.choice(sound)
            link.send_bytes(mutated(frame, random) if random.random() < share else frame)
        link.send_bytes(encode(answer_to(request, 0, body=request.body)))
        # What a peer has not read when it closes makes that a reset, which may overtake the answer.
        if share:
            link.close()
            peer.links.remove(link)

    peer.on(ECHO, reply)


def attack(peer: Peer, remoting: Remoting, count: int) -> Counter[str]:
    """So many requests: how they ended."""
    ended: Counter[str] = Counter()
    for _ in range(count):
        try:
            answer = remoting.call(peer.address, Frame(ECHO, body=b"body"), 30)
            ended["answer" if answer.body == b"body" else "another answer"] += 1
        except (RemotingError, RequestTimeout) as error:
            ended[type(error).__name__] += 1
    return ended


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "mq.remoting")
    caplog.set_level("CRITICAL", "asyncio")  # A peer that writes to a connection that is closed.


def test_a_hostile_peer_is_answered_by_errors(peer: Peer, quiet: None) -> None:
    hostile(peer, 1)
    with_handlers = Remoting("rocketmq://tests", RemotingOptions(timeout=30))
    for code in (39, 40, 220, 221, 307, 309, 326):
        with_handlers.handle(code, lambda connection, request: answer_to(request, 0))  # noqa: ARG005 - a handler is told whose request it is
    ended = attack(peer, with_handlers, 300)
    with_handlers.close()
    assert ended["RemotingError"] > 0
    assert ended["answer"] > 0
    assert ended["RequestTimeout"] == 0


@pytest.mark.rounds
def test_a_hostile_peer_for_long(peer: Peer, quiet: None) -> None:
    """70,000 frames, about half of them mutated."""
    hostile(peer, 2)
    remoting = Remoting("rocketmq://tests", RemotingOptions(timeout=30))
    attack(peer, remoting, 1_000)
    gc.collect()
    tracemalloc.start()
    try:
        attack(peer, remoting, 1_000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        ended = attack(peer, remoting, 5_000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < before + (1 << 20)
    finally:
        tracemalloc.stop()
    assert ended["RequestTimeout"] == 0
    remoting.close()
