"""Whatever fails while a connection is opened is one named error, and no caller waits for ever."""

from __future__ import annotations

import pytest

from mq.errors import MQError, RemotingError
from mq.remoting.client.connections import remoting as remotings
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.frame import Frame
from tests.remoting.conftest import ECHO
from tests.support.eventually import eventually
from tests.support.remoting_peer import Peer


@pytest.mark.parametrize("host", ["a" * 70, "\udcff", "a..b"])
def test_a_host_that_is_no_name_is_one_error(remoting: Remoting, host: str) -> None:
    address = f"{host}:10911"
    answered: list[Frame | MQError] = []
    remoting.call_async(address, Frame(ECHO), answered.append)
    eventually(lambda: bool(answered), lambda: "no error came", 30)
    assert isinstance(answered[0], RemotingError)
    with pytest.raises(RemotingError, match="cannot be reached") as caught:
        remoting.submit(address, Frame(ECHO)).result(30)
    assert caught.value.address == address
    with pytest.raises(RemotingError, match="cannot be reached"):
        remoting.call(address, Frame(ECHO))


@pytest.mark.parametrize("part", ["Connection", "dial"])
def test_whatever_fails_while_connecting_is_one_error(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError("no reason")

    monkeypatch.setattr(remotings, part, failing)
    with pytest.raises(RemotingError, match="ZeroDivisionError: no reason") as caught:
        remoting.submit(peer.address, Frame(ECHO)).result(30)
    assert caught.value.address == peer.address
    monkeypatch.undo()
    eventually(lambda: answers(remoting, peer), lambda: "it is not tried again", 30)


def answers(remoting: Remoting, peer: Peer) -> bool:
    try:
        return remoting.call(peer.address, Frame(ECHO)).code == 0
    except RemotingError:
        return False  # The address is left alone for a moment.


def test_an_answer_that_fails_its_callback_ends_no_other_request(
    peer: Peer, remoting: Remoting, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are ended one by one when their time is over."""

    def failing(_answer: object) -> None:
        raise ZeroDivisionError

    remoting.call(peer.address, Frame(ECHO))
    caplog.set_level("CRITICAL", "mq.remoting")
    for _ in range(2):
        remoting.call_async(peer.address, Frame(9002), failing, 0.1)
        with pytest.raises((RemotingError, TimeoutError)):
            remoting.submit(peer.address, Frame(9002), 0.1).result(30)
