"""What a slave asks its master beside the log; tests/replica has RocketMQ's own slaves ask it."""

from __future__ import annotations

import struct
from pathlib import Path

import mq
from mq.remoting.codec.bodies.settings import RequestModes, TimerCounts
from mq.remoting.codec.requests.groups import GetAllRequestModes
from mq.remoting.codec.requests.offsets import GetTimerCheckPoint, GetTimerMetrics
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from tests.support.eventually import eventually
from tests.support.raw_requests import ask, body


def test_a_slave_is_told_how_far_timer_messages_are(
    store: mq.Broker, server: Server, directory: Path
) -> None:
    def told() -> tuple[int, ...]:
        answer = ask(server, GetTimerCheckPoint())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return struct.unpack(">7q", answer.body)

    if not isinstance(store, mq.LocalBroker):
        answer = ask(server, GetTimerCheckPoint())
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "needs the broker of a directory" in answer.remark
        return
    assert told()[2] == 0
    store.create_topic("orders", 1)
    with mq.Producer(store) as producer:
        producer.send(mq.Message("orders", b"later", delay_ms=3_600_000))
    eventually(lambda: told()[2] == 1, told, 30.0)
    assert told()[0] > 0


def test_of_a_damaged_file_a_slave_is_told_nothing(store: mq.Broker, server: Server, directory: Path) -> None:
    if isinstance(store, mq.LocalBroker):
        path = directory / "config" / "timercheck"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"damaged")
        assert ask(server, GetTimerCheckPoint()).body == bytes(56)
        path.unlink(missing_ok=True)


def test_no_group_consumes_by_pop_and_no_timer_is_counted(server: Server) -> None:
    assert body(RequestModes, ask(server, GetAllRequestModes())).message_request_mode_map == {}
    assert body(TimerCounts, ask(server, GetTimerMetrics())).timing_count == {}
