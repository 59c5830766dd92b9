"""Requests over connections that work, and over those that do not: one named error each, in time."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from mq.errors import BrokerClosed, ForkedBroker, MQError, RemotingError, RequestTimeout
from mq.remoting.client.connections import connection as connections
from mq.remoting.client.connections import remoting as remotings
from mq.remoting.client.connections.connection import Connection, PendingAnswer
from mq.remoting.client.connections.options import RemotingOptions
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.frame import Frame, HeaderEncoding, answer_to, encode
from mq.remoting.codec.response_codes import ResponseCode
from tests.remoting.conftest import ECHO, SILENT
from tests.support.eventually import eventually
from tests.support.remoting_peer import Link, Peer, Reply, after, arrived, silence, with_code

SHORT = 0.2


def ask(body: bytes = b"body", code: int = ECHO) -> Frame:
    return Frame(code, {"name": "value"}, body)


def wait(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not happen", 30)


def test_an_answer_comes_back(peer: Peer, remoting: Remoting) -> None:
    answer = remoting.call(peer.address, ask())
    assert (answer.code, answer.body, answer.fields) == (0, b"body", {"name": "value"})
    assert answer.is_response
    assert remoting.addresses == (peer.address,)


def test_all_kinds_of_calls_share_one_connection(peer: Peer, remoting: Remoting) -> None:
    assert remoting.call(peer.address, ask(b"1")).body == b"1"
    assert remoting.submit(peer.address, ask(b"2")).result(30).body == b"2"
    remoting.oneway(peer.address, ask(b"3", SILENT))
    arrived(peer, 3)
    assert len(peer.links) == 1
    assert [request.is_oneway for request in peer.requests] == [False, False, True]
    assert len({request.opaque for request in peer.requests}) == 3


def test_what_is_sent_before_there_is_a_connection_opens_it(peer: Peer, remoting: Remoting) -> None:
    futures = [remoting.submit(peer.address, ask(b"%d" % number)) for number in range(10)]
    assert [future.result(30).body for future in futures] == [b"%d" % number for number in range(10)]
    assert len(peer.links) == 1


def test_a_oneway_request_opens_a_connection(peer: Peer, remoting: Remoting) -> None:
    remoting.oneway(peer.address, ask())
    (request,) = arrived(peer)
    assert request.is_oneway


def test_answers_find_their_requests_in_any_order(peer: Peer, remoting: Remoting) -> None:
    async def reply(link: Link, request: Frame) -> None:
        await asyncio.sleep(0.05 * (int(request.body) % 3))
        link.answer(request, body=request.body)

    peer.on(ECHO, reply)
    with ThreadPoolExecutor(16) as pool:
        found = list(
            pool.map(lambda number: remoting.call(peer.address, ask(b"%d" % number)).body, range(100))
        )
    assert found == [b"%d" % number for number in range(100)]
    assert len(peer.links) == 1


def test_a_request_in_either_encoding(peer: Peer) -> None:
    from mq.remoting.client.connections.options import RemotingOptions

    for encoding in HeaderEncoding:
        remoting = Remoting("rocketmq://tests", RemotingOptions(timeout=30, encoding=encoding))
        assert remoting.call(peer.address, ask()).encoding is encoding
        remoting.close()


def test_large_frames_pass_in_both_directions(peer: Peer, remoting: Remoting) -> None:
    body = os.urandom(1 << 20) * 8
    assert remoting.call(peer.address, ask(body)).body == body
    futures = [remoting.submit(peer.address, ask(body[: 1 << 20])) for _ in range(8)]
    assert all(future.result(60).body == body[: 1 << 20] for future in futures)


def test_no_answer_is_a_timeout(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    for _ in range(2):  # With a connection, and after it was given up.
        started = time.monotonic()
        why = rf"{peer.address} did not answer request 9002 within 0\.\d s|connecting to {peer.address}"
        with pytest.raises(RequestTimeout, match=why):
            remoting.call(peer.address, ask(code=SILENT), SHORT)
        assert SHORT <= time.monotonic() - started < 20


def test_no_answer_is_a_timeout_of_a_future(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    with pytest.raises(RequestTimeout, match="did not answer request 9002"):
        remoting.submit(peer.address, ask(code=SILENT), SHORT).result(30)


@pytest.mark.parametrize("is_long", [True, False])
def test_a_connection_that_is_silent_for_long_is_made_anew(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """A caller that had little time says nothing of the broker."""
    monkeypatch.setattr(connections, "SUSPECT_SECONDS", SHORT / 2 if is_long else 60.0)
    remoting.call(peer.address, ask())
    with pytest.raises(RequestTimeout):
        remoting.call(peer.address, ask(code=SILENT), SHORT)
    assert remoting.call(peer.address, ask()).body == b"body"
    assert len(peer.links) == (2 if is_long else 1)


def test_a_connection_that_answers_others_is_kept(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    held = remoting.submit(peer.address, ask(code=SILENT), 1.0)
    while not held.wait(0):
        remoting.call(peer.address, ask())
        time.sleep(0.02)
    with pytest.raises(RequestTimeout):
        held.result()
    assert len(peer.links) == 1


def once_set(release: threading.Event) -> Reply:
    async def held(link: Link, request: Frame) -> None:
        while not release.is_set():  # noqa: ASYNC110 - the event is of another thread
            await asyncio.sleep(0.01)
        link.answer(request, body=b"held")

    return held


def test_a_late_answer_is_dropped(
    peer: Peer, remoting: Remoting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SUSPECT_SECONDS", 60.0)
    caplog.set_level(logging.DEBUG, "mq.remoting")
    release = threading.Event()
    peer.on(SILENT, once_set(release))
    remoting.call(peer.address, ask())
    held = remoting.submit(peer.address, ask(code=SILENT), 1.0)
    while not held.wait(0):
        remoting.call(peer.address, ask())
    with pytest.raises(RequestTimeout):
        held.result()
    release.set()
    wait(lambda: any("which is no longer pending" in record.message for record in caplog.records))
    assert remoting.call(peer.address, ask()).body == b"body"
    assert len(peer.links) == 1


def test_an_answer_to_nothing_is_dropped(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    peer.push(answer_to(Frame(ECHO, opaque=123_456), 0))
    assert remoting.call(peer.address, ask()).body == b"body"
    assert len(peer.links) == 1


async def is_cut_in_the_middle(link: Link, request: Frame) -> None:
    link.send_bytes(encode(answer_to(request, 0, body=bytes(1000)))[:500])
    link.close()


async def is_reset_in_the_middle(link: Link, request: Frame) -> None:
    link.send_bytes(encode(answer_to(request, 0, body=bytes(1000)))[:500])
    link.reset()


async def closes(link: Link, request: Frame) -> None:
    link.close()


async def resets(link: Link, request: Frame) -> None:
    link.reset()


def sends(data: bytes) -> Reply:
    async def reply(link: Link, request: Frame) -> None:
        link.send_bytes(data)

    return reply


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (is_cut_in_the_middle, "in the middle of a frame"),
        (is_reset_in_the_middle, "broke: Connection reset by peer"),
        (closes, "closed the connection$"),
        (resets, "broke: Connection reset by peer|closed the connection"),
        (sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "may not speak RocketMQ"),
        (sends(b"\x00\x00\x00\x08\x07\x00\x00\x04{}{}"), "of encoding 7"),
        (sends(b"\x7f\xff\xff\xff" * 4), "2,147,483,647 bytes"),
        (sends(b"\x00\x00\x00\x08\x00\xff\xff\xff    "), "16,777,215"),
    ],
)
def test_a_connection_that_breaks_fails_all_that_is_under_way(
    peer: Peer, remoting: Remoting, breaks: Reply, why: str
) -> None:
    held = remoting.submit(peer.address, ask(code=SILENT))
    arrived(peer)
    peer.on(9003, breaks)
    with pytest.raises(RemotingError, match=why) as caught:
        remoting.call(peer.address, ask(code=9003))
    assert peer.address in str(caught.value)
    assert caught.value.address == peer.address
    assert caught.value.code is None
    with pytest.raises(RemotingError, match=why):
        held.result(30)
    assert remoting.call(peer.address, ask()).body == b"body"


def test_an_address_without_a_listener_fails_at_once(peer: Peer, remoting: Remoting) -> None:
    peer.stop()
    for _ in range(2):
        with pytest.raises(RemotingError, match=f"{peer.address} cannot be reached: Connection refused"):
            remoting.call(peer.address, ask())
    with pytest.raises(RemotingError, match="cannot be reached"):
        remoting.submit(peer.address, ask()).result(30)
    remoting.oneway(peer.address, ask())


def test_an_address_is_tried_again_after_a_while(peer: Peer, remoting: Remoting) -> None:
    peer.stop()
    with pytest.raises(RemotingError):
        remoting.call(peer.address, ask())
    failed = remoting._failed[peer.address]
    failed.again_at += 3600.0
    peer.start()
    with pytest.raises(RemotingError):  # It is left alone yet.
        remoting.call(peer.address, ask())
    failed.again_at = time.monotonic()
    assert remoting.call(peer.address, ask()).body == b"body"
    assert remoting._failed == {}


def test_an_address_is_left_alone_for_longer_each_time() -> None:
    waits = []
    for attempts in range(1, 2000, 100):
        now = time.monotonic()
        waits.append(remotings._Failed(MQError(), attempts).again_at - now)
    assert waits == sorted(waits) or max(waits) < 2.1
    assert 0 < waits[0] < 1
    assert max(waits) < 2.1


def test_a_connection_is_opened_again_after_the_other_end_was_away(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    for _ in range(3):
        peer.stop()
        wait(lambda: not remoting.addresses)
        peer.start()
        answers: list[Frame] = []
        until = time.monotonic() + 30
        while not answers:
            try:
                answers.append(remoting.call(peer.address, ask()))
            except RemotingError:
                assert time.monotonic() < until
                time.sleep(0.01)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:99999", "host:-1", "host:x", "a b:1"])
def test_what_is_no_address_is_refused(remoting: Remoting, address: str) -> None:
    with pytest.raises(RemotingError):
        remoting.call(address, ask())


def test_a_connection_that_cannot_be_opened_in_time_is_a_timeout(
    remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(remotings, "dial", never)
    with pytest.raises(RequestTimeout, match=r"connecting to h:1: not done within 0.2 s"):
        remoting.call("h:1", ask(), SHORT)
    with pytest.raises(RequestTimeout, match=r"h:1 was not connected within 0.2 s"):
        remoting.submit("h:1", ask(), SHORT).result(30)


def test_go_away_sends_once_more_over_a_new_connection(peer: Peer, remoting: Remoting) -> None:
    first: list[Link] = []

    async def reply(link: Link, request: Frame) -> None:
        if not first:
            first.append(link)
        if link is first[0]:
            link.answer(request, ResponseCode.GO_AWAY)
        else:
            link.answer(request, body=request.body)

    peer.on(ECHO, reply)
    assert remoting.call(peer.address, ask()).body == b"body"
    assert len(peer.links) == 2
    first.clear()
    assert remoting.submit(peer.address, ask()).result(30).body == b"body"
    assert len(peer.links) == 3
    wait(lambda: peer.open_count == 1)


def test_a_connection_that_was_told_to_go_away_waits_for_its_answers(peer: Peer, remoting: Remoting) -> None:
    release = threading.Event()
    peer.on(SILENT, once_set(release))
    peer.on(9003, with_code(ResponseCode.GO_AWAY))
    waiting = remoting.submit(peer.address, ask(code=SILENT))
    arrived(peer)
    assert remoting.call(peer.address, ask(code=9003)).code == ResponseCode.GO_AWAY
    assert remoting.call(peer.address, ask()).body == b"body"
    release.set()
    assert waiting.result(30).body == b"held"
    wait(lambda: peer.open_count == 1)


def test_an_idle_connection_is_closed(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(remotings, "IDLE_SECONDS", 0.3)
        held = remoting.submit(peer.address, ask(code=SILENT), 1.0)
        with pytest.raises(RequestTimeout):
            held.result(30)
        wait(lambda: not remoting.addresses)
    assert remoting.call(peer.address, ask()).body == b"body"


def test_requests_of_the_other_end_are_handled(peer: Peer, remoting: Remoting) -> None:
    came: list[Frame] = []

    def handler(connection: Connection, request: Frame) -> Frame:
        assert connection.address == peer.address
        came.append(request)
        return answer_to(request, 0, body=b"answer")

    def quiet(connection: Connection, request: Frame) -> None:
        return None

    def failing(connection: Connection, request: Frame) -> Frame:
        raise ValueError("cannot")

    remoting.handle(40, handler)
    remoting.handle(307, handler)
    remoting.handle(309, failing)
    remoting.handle(220, quiet)
    remoting.call(peer.address, ask())
    link = peer.links[0]
    peer.push(Frame(40, opaque=1, flags=2))  # oneway
    peer.push(Frame(307, opaque=2))
    peer.push(Frame(309, opaque=3))
    peer.push(Frame(220, opaque=4))
    peer.push(Frame(9999, opaque=5))
    wait(lambda: len(link.answers) >= 3)
    assert [request.code for request in came] == [40, 307]
    assert [(answer.opaque, answer.code) for answer in link.answers] == [
        (2, 0),
        (3, ResponseCode.SYSTEM_ERROR),
        (5, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
    ]
    assert link.answers[1].remark == "cannot"


def test_numbers_of_both_directions_do_not_meet(peer: Peer, remoting: Remoting) -> None:
    """The other end's request has the number of ours that is under way."""

    def handler(connection: Connection, request: Frame) -> Frame:
        return answer_to(request, 0)

    remoting.handle(40, handler)
    peer.on(SILENT, after(0.3))
    waiting = remoting.submit(peer.address, ask(b"mine", SILENT))
    (mine,) = arrived(peer)
    peer.push(Frame(40, opaque=mine.opaque))
    assert waiting.result(30).body == b"mine"
    wait(lambda: bool(peer.links[0].answers))
    assert [answer.opaque for answer in peer.links[0].answers] == [mine.opaque]


def test_a_connection_that_is_opened_is_told_of(peer: Peer, remoting: Remoting) -> None:
    told: list[Connection] = []
    remoting.opened.append(told.append)
    remoting.call(peer.address, ask())
    remoting.disconnect(peer.address, "by a test")
    wait(lambda: not remoting.addresses)
    remoting.call(peer.address, ask())
    assert [connection.address for connection in told] == [peer.address] * 2


def test_an_answer_that_is_handed_to_what_fails_harms_no_other(
    peer: Peer, remoting: Remoting, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(answer: Frame | MQError) -> None:
        raise ValueError("of the receiver")

    remoting.call(peer.address, ask())
    remoting.call_async(peer.address, ask(), fails)
    assert remoting.call(peer.address, ask()).body == b"body"
    assert "of the receiver" in caplog.text


def test_a_receiver_may_send_again(peer: Peer, remoting: Remoting) -> None:
    done: Future[bytes] = Future()

    def again(answer: Frame | MQError) -> None:
        assert isinstance(answer, Frame)
        if len(answer.body) == 100:
            done.set_result(answer.body)
        else:
            remoting.call_async(peer.address, ask(answer.body + b"x"), again)

    remoting.call_async(peer.address, ask(b""), again)
    assert done.result(30) == b"x" * 100


def test_an_end_that_reads_nothing_is_not_fed_without_bound(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    async def stuck(link: Link, request: Frame) -> None:
        while not stop.is_set():
            time.sleep(0.01)  # noqa: ASYNC251 - the whole peer stands still

    monkeypatch.setattr(connections, "UNSENT_SIZE_MAX", 4 << 20)
    peer.on(SILENT, stuck)
    remoting.oneway(peer.address, ask(code=SILENT))
    arrived(peer)
    futures = [remoting.submit(peer.address, ask(bytes(1 << 20))) for _ in range(100)]
    stop.set()
    errors = []
    for future in futures:
        try:
            future.result(60)
        except RemotingError as error:
            errors.append(error)
    assert 4 <= len(futures) - len(errors) < 100
    assert all("takes no more: " in str(error) for error in errors)


def test_requests_without_an_answer_are_bounded(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.remoting.client.connections.connection.UNDER_WAY_MAX", 3)
    peer.on(SILENT, silence)
    remoting.call(peer.address, Frame(ECHO))
    waiting = [remoting.submit(peer.address, Frame(SILENT), 60.0) for _ in range(3)]
    with pytest.raises(RemotingError, match=r"3 requests to answer and takes no more"):
        remoting.submit(peer.address, Frame(SILENT), 60.0).result(30)
    with pytest.raises(RemotingError, match=r"send less at once"):
        remoting.call(peer.address, Frame(ECHO))
    assert not any(future.wait(0) for future in waiting)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"timeout": 0}, ValueError, "timeout is 0 s: it must be over 0"),
        ({"timeout": float("nan")}, ValueError, "timeout is nan"),
        ({"timeout": 1e9}, ValueError, "at most 86,400"),
        ({"timeout": "3"}, TypeError, "timeout is a number of seconds"),
        ({"connect_timeout": True}, TypeError, "connect_timeout is a number of seconds"),
        ({"connect_timeout": -1.0}, ValueError, "connect_timeout is -1.0 s"),
        ({"tls": True}, TypeError, r"tls is an ssl.SSLContext or None, not a bool"),
        ({"credentials": ("key", "secret")}, TypeError, r"credentials is an access key .* not a tuple"),
        ({"encoding": "JSON"}, TypeError, "encoding is a HeaderEncoding"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        RemotingOptions(**options)
    assert "secret'" not in str(caught.value)


def test_after_close_everything_says_so(peer: Peer, remoting: Remoting) -> None:
    waiting = remoting.submit(peer.address, ask(code=SILENT))
    arrived(peer)
    remoting.oneway(peer.address, ask(b"the last"))
    remoting.close()
    remoting.close()
    with pytest.raises(BrokerClosed, match=r"call mq\.open"):
        waiting.result(30)
    for request in (remoting.call, remoting.submit, remoting.oneway):
        with pytest.raises(BrokerClosed, match="rocketmq://tests"):
            request(peer.address, ask())
    wait(lambda: b"the last" in [request.body for request in peer.requests])


def test_close_while_threads_call(peer: Peer, remoting: Remoting) -> None:
    ended: list[MQError] = []

    def work() -> None:
        try:
            while True:
                remoting.call(peer.address, ask())
        except MQError as error:
            ended.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    arrived(peer, 100)
    remoting.close()
    for thread in threads:
        thread.join(30)
    assert len(ended) == 8
    assert {type(error) for error in ended} == {BrokerClosed}


def test_a_forked_child_is_refused(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        told = b""
        for request in (remoting.call, remoting.submit, remoting.oneway):
            try:
                request(peer.address, ask())
            except ForkedBroker:
                told += b"refused "
            except BaseException as error:  # noqa: BLE001 - the child must end here
                told += repr(error).encode()
        remoting.close()
        os.write(write, told)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 1000) == b"refused refused refused "
    os.close(read)
    assert remoting.call(peer.address, ask()).body == b"body"
    assert len(peer.links) == 1


def test_no_thread_is_made_for_a_request(peer: Peer, remoting: Remoting) -> None:
    remoting.call(peer.address, ask())
    before = set(threading.enumerate())
    peer.on(SILENT, silence)
    for _ in range(200):
        remoting.submit(peer.address, ask(code=SILENT), 30)
    arrived(peer, 200)
    assert set(threading.enumerate()) <= before
    assert remoting.call(peer.address, ask()).body == b"body"


def test_an_interrupt_leaves_no_request_behind(
    peer: Peer, remoting: Remoting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is under way would keep the connection from being closed as idle."""
    caller = threading.get_ident()

    remoting.call(peer.address, ask())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupt_once_asked() -> None:
        arrived(peer, 2)
        wait(lambda: sys._current_frames()[caller].f_code is PendingAnswer.wait.__code__)  # It has sent all.
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt_once_asked)
            with pytest.raises(KeyboardInterrupt):
                remoting.call(peer.address, ask(code=SILENT), 600.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(remoting.addresses) == 1
    with monkeypatch.context() as patched:
        patched.setattr(remotings, "IDLE_SECONDS", 0.3)
        wait(lambda: not remoting.addresses)
    assert remoting.call(peer.address, ask()).body == b"body"
