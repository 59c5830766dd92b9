"""Name servers that fail over, routes that stay fresh, TLS and credentials."""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mq.errors import BrokerClosed, ForkedBroker, RemotingError, RequestTimeout
from mq.remoting.client.connections.addresses import parse_address, parse_addresses
from mq.remoting.client.connections.answers import checked, framed
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.options import RemotingOptions, tls_context
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.bodies.route import BrokerAddresses, QueueCounts, TopicRoute
from mq.remoting.codec.fields import decode_fields
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.name_servers import DeleteTopicInNameServer, GetRoute
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import Credentials, is_signed_by
from tests.remoting.conftest import ECHO
from tests.support.eventually import eventually
from tests.support.remoting_peer import Link, Peer, Reply, after, echo, silence, with_code

TLS = Path(__file__).parents[1] / "data" / "tls"


def route(*brokers: str, queue_count: int = 4) -> TopicRoute:
    return TopicRoute(
        tuple(BrokerAddresses(name, {0: f"{name}:10911", 1: f"{name}:10921"}, "c") for name in brokers),
        tuple(QueueCounts(name, queue_count, queue_count) for name in brokers),
    )


def routing(routes: dict[str, TopicRoute]) -> Reply:
    async def reply(link: Link, request: Frame) -> None:
        topic = decode_fields(GetRoute, request.fields).topic
        if topic in routes:
            link.answer(request, body=to_json(routes[topic]))
        else:
            link.answer(request, ResponseCode.TOPIC_NOT_EXIST, remark=f"No topic route info for {topic}")

    return reply


def wait(what: Callable[[], bool]) -> None:
    eventually(what, lambda: "it did not happen", 30)


@pytest.fixture
def other() -> Iterator[Peer]:
    with Peer() as other:
        yield other


def test_name_server_addresses_are_parsed() -> None:
    assert parse_address("10.0.0.5:9876") == ("10.0.0.5", 9876)
    assert parse_address("[::1]:9876") == ("::1", 9876)
    assert parse_addresses("a:1; b ;a:1,[::1]") == ("a:1", "b:9876", "[::1]:9876")
    for wrong in ("", " ; ", "a:b", "a:0", "a:1;b:99999"):
        with pytest.raises(ValueError, match=r"names no name server|is no address"):
            parse_addresses(wrong)


def test_the_next_name_server_is_asked_when_one_fails(peer: Peer, other: Peer, remoting: Remoting) -> None:
    names = NameServers(remoting, (peer.address, other.address))
    for one in (peer, other):
        one.on(GetRoute.CODE, routing({"orders": route("a")}))
    first, second = (peer, other) if names.chosen == peer.address else (other, peer)
    assert names.call(GetRoute("orders")).code == 0
    assert names.chosen == first.address
    first.stop()
    assert names.call(GetRoute("orders")).code == 0
    assert names.chosen == second.address
    first.start()
    assert names.call(GetRoute("orders")).code == 0
    assert names.chosen == second.address  # It is kept as long as it answers.


def test_a_name_server_that_does_not_answer_leaves_time_for_the_next(
    peer: Peer, other: Peer, remoting: Remoting
) -> None:
    names = NameServers(remoting, (peer.address, other.address))
    first, second = (peer, other) if names.chosen == peer.address else (other, peer)
    first.on(GetRoute.CODE, silence)
    second.on(GetRoute.CODE, routing({"orders": route("a")}))
    for seconds in (4.0, 8.0, 16.0):
        with contextlib.suppress(RemotingError):  # The machine had no time for the second half.
            assert names.call(GetRoute("orders"), timeout=seconds).code == 0
            break
    assert names.chosen == second.address


def test_no_name_server_at_all_is_one_error_that_says_what_was_tried(
    peer: Peer, other: Peer, remoting: Remoting
) -> None:
    addresses = peer.address, other.address
    names = NameServers(remoting, addresses)
    while names.chosen != peer.address:  # The silent one comes last, and may take all the time.
        names = NameServers(remoting, addresses)
    peer.stop()
    other.on(GetRoute.CODE, silence)
    with pytest.raises(RemotingError, match="no name server answered GET_ROUTEINFO_BY_TOPIC") as caught:
        names.call(GetRoute("orders"), timeout=3.0)
    assert f"{peer.address} cannot be reached: Connection refused" in str(caught.value)
    assert f"{other.address} did not answer GET_ROUTEINFO_BY_TOPIC (105)" in str(caught.value)
    assert caught.value.code is None
    assert caught.value.address == f"{peer.address};{other.address}"


def test_all_name_servers_are_told(peer: Peer, other: Peer, remoting: Remoting) -> None:
    peer.on(DeleteTopicInNameServer.CODE, echo)
    other.stop()
    names = NameServers(remoting, (peer.address, other.address))
    answers = names.call_all(DeleteTopicInNameServer("orders"))
    told = answers[peer.address]
    assert isinstance(told, Frame)
    assert told.fields == {"topic": "orders"}
    assert isinstance(answers[other.address], RemotingError)


def test_a_route_is_asked_for_once_and_kept(peer: Peer, remoting: Remoting) -> None:
    peer.on(GetRoute.CODE, after(1.0, routing({"orders": route("a", "b")})))
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: cluster.route("orders"), range(8)))
    assert found == [route("a", "b")] * 8
    assert cluster.route("orders") == route("a", "b")
    assert len(peer.requests) == 1
    assert peer.requests[0].fields == {"topic": "orders", "acceptStandardJsonOnly": "true"}
    assert cluster.topics == ("orders",)
    assert cluster.address("a") == "a:10911"
    assert cluster.address("a", 1) == "a:10921"
    assert cluster.address("a", 2) is None
    assert cluster.address("c") is None
    assert cluster.any_address("b") == "b:10911"
    assert cluster.any_address("c") is None
    assert set(cluster.brokers) == {"a", "b"}
    cluster.forget("orders")
    assert cluster.brokers == {}


def test_a_topic_without_a_route_is_asked_for_again(peer: Peer, remoting: Remoting) -> None:
    routes: dict[str, TopicRoute] = {}
    peer.on(GetRoute.CODE, routing(routes))
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)))
    assert cluster.route("orders") is None
    routes["orders"] = route("a")
    assert cluster.route("orders") == route("a")


def test_routes_are_refreshed_and_changes_are_told(peer: Peer, remoting: Remoting) -> None:
    routes = {"orders": route("a"), "bills": route("a")}
    peer.on(GetRoute.CODE, routing(routes))
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)), refresh_seconds=0.1)
    changes: list[tuple[str, TopicRoute | None]] = []
    cluster.changed.append(lambda topic, now: changes.append((topic, now)))
    cluster.route("orders")
    cluster.route("bills")
    routes["orders"] = route("a", "b")
    wait(lambda: cluster.route("orders") == route("a", "b"))
    del routes["orders"]
    wait(lambda: ("orders", None) in changes)
    assert cluster.topics == ("bills",)
    assert set(cluster.brokers) == {"a"}
    assert changes == [
        ("orders", route("a")),
        ("bills", route("a")),
        ("orders", route("a", "b")),
        ("orders", None),
    ]


def test_the_newest_route_says_where_a_broker_is(peer: Peer, remoting: Remoting) -> None:
    both = route("a")
    (broker,) = both.broker_datas
    slave_only = TopicRoute((BrokerAddresses("a", {1: broker.broker_addrs[1]}, "c"),), both.queue_datas)
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)), refresh_seconds=1000)
    peer.on(GetRoute.CODE, routing({"orders": both, "bills": both}))
    for topic in ("orders", "bills"):
        cluster.route(topic)
    peer.on(GetRoute.CODE, routing({"orders": slave_only, "bills": slave_only}))
    cluster.refresh("orders")
    assert cluster.any_address("a") == "a:10921"
    peer.on(GetRoute.CODE, routing({"orders": both, "bills": both}))
    cluster.refresh("bills")  # It is the same as before, and newer.
    assert cluster.any_address("a") == "a:10911"


def test_routes_stay_when_no_name_server_answers(
    peer: Peer, remoting: Remoting, caplog: pytest.LogCaptureFixture
) -> None:
    peer.on(GetRoute.CODE, routing({"orders": route("a")}))
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)), refresh_seconds=0.05)
    cluster.route("orders")
    peer.stop()
    wait(lambda: "routes stay as they are" in caplog.text)
    assert cluster.route("orders") == route("a")
    with pytest.raises(RemotingError, match="no name server answered"):
        cluster.refresh("orders")
    assert caplog.text.count("routes stay as they are") == 1
    count = len(peer.requests)
    peer.start()
    wait(lambda: len(peer.requests) > count)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (with_code(1, "starting"), r"answered GET_ROUTEINFO_BY_TOPIC with SYSTEM_ERROR \(1\): starting"),
        (with_code(77), r"with code 77: without a remark"),
        (echo, "no such thing"),
    ],
)
def test_an_answer_that_is_no_route_is_one_error(
    peer: Peer, remoting: Remoting, reply: Reply, why: str
) -> None:
    async def no_route(link: Link, request: Frame) -> None:
        link.answer(request, body=b"[1, 2]")

    if reply is echo:
        reply, why = no_route, "a body is no TopicRoute"
    peer.on(GetRoute.CODE, reply)
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)))
    with pytest.raises(RemotingError, match=why):
        cluster.route("orders")


def test_an_error_says_code_remark_and_address() -> None:
    answer = Frame(16, remark="the topic is read-only")
    with pytest.raises(RemotingError, match=r"NO_PERMISSION \(16\)") as caught:
        checked(answer, GetRoute, "h:1")
    assert (caught.value.code, caught.value.remark) == (16, "the topic is read-only")
    assert caught.value.address == "h:1"
    assert checked(answer, GetRoute, "h:1", {16}) is answer


def test_a_closed_or_forked_client_sends_no_request(peer: Peer, remoting: Remoting) -> None:
    names = NameServers(remoting, (peer.address,))
    cluster = Cluster(remoting, names)
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        try:
            cluster.route("orders")
        except ForkedBroker:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    remoting.close()
    with pytest.raises(BrokerClosed):
        cluster.refresh("orders")
    with pytest.raises(BrokerClosed):
        names.call(GetRoute("orders"))


def test_threads_that_wait_for_a_route_end_with_the_client(peer: Peer, remoting: Remoting) -> None:
    peer.on(GetRoute.CODE, silence)
    cluster = Cluster(remoting, NameServers(remoting, (peer.address,)))
    ended: list[BaseException] = []

    def work() -> None:
        try:
            cluster.route("orders")
        except Exception as error:  # noqa: BLE001 - that is what is looked at
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait(lambda: len(peer.requests) == 1)
    remoting.close()
    thread.join(30)
    assert [type(error) for error in ended] == [BrokerClosed]


def test_a_signed_request_is_one_that_the_server_knows(peer: Peer) -> None:
    secret = "a secret that stands nowhere"
    options = RemotingOptions(timeout=30, credentials=Credentials("key", secret, "token"))
    remoting = Remoting("rocketmq://tests", options)

    async def guarded(link: Link, request: Frame) -> None:
        if is_signed_by(request.fields, request.body, secret):
            link.answer(request, fields=request.fields)
        else:
            link.answer(request, ResponseCode.NO_PERMISSION, remark="signature not matched")

    peer.on(ECHO, guarded)
    answer = remoting.call(peer.address, Frame(ECHO, {"topic": "ü"}, b"body"))
    assert (answer.code, answer.fields["AccessKey"], answer.fields["SecurityToken"]) == (0, "key", "token")
    again = Frame(ECHO, answer.fields, b"other")  # The signature is made anew each time.
    assert remoting.call(peer.address, again).code == 0
    remoting.close()
    stranger = Remoting("rocketmq://tests", RemotingOptions(timeout=30, credentials=Credentials("key", "x")))
    denied = stranger.call(peer.address, Frame(ECHO, {"topic": "ü"}, b"body"))
    with pytest.raises(RemotingError, match="signature not matched") as caught:
        checked(denied, GetRoute, peer.address)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    stranger.close()
    assert secret not in repr(options)


@pytest.fixture
def secure() -> Iterator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    with Peer(context) as secure:
        secure.on(ECHO, echo)
        yield secure


def client(tls: ssl.SSLContext | bool) -> Remoting:
    return Remoting("rocketmq://tests", RemotingOptions(timeout=30, connect_timeout=10, tls=tls_context(tls)))


def test_a_client_connects_with_tls(secure: Peer) -> None:
    remoting = client(ssl.create_default_context(cafile=TLS / "certificate.pem"))
    body = bytes(range(256)) * 20_000
    assert remoting.call(secure.address, Frame(ECHO, body=body)).body == body
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda number: remoting.call(secure.address, Frame(ECHO, body=body[: number * 999])).body,
                range(100),
            )
        )
    assert [len(one) for one in found] == [number * 999 for number in range(100)]
    futures = [remoting.submit(secure.address, Frame(ECHO, body=body)) for _ in range(5)]
    assert all(future.result(60).body == body for future in futures)
    assert len(secure.links) == 1
    secure.stop()
    wait(lambda: not remoting.addresses)
    remoting.close()


def test_a_certificate_that_is_not_trusted_is_refused(secure: Peer) -> None:
    remoting = client(True)
    with pytest.raises(RemotingError, match=r"certificate is not trusted .*: give tls=ssl\.create_default"):
        remoting.call(secure.address, Frame(ECHO))
    remoting.close()


def test_a_certificate_of_another_host_is_refused(secure: Peer) -> None:
    remoting = client(ssl.create_default_context(cafile=TLS / "certificate.pem"))
    server = secure.listen("127.0.0.2")
    with pytest.raises(RemotingError, match="certificate is not trusted"):
        remoting.call(f"127.0.0.2:{secure.port}", Frame(ECHO))
    secure.close_server(server)
    remoting.close()


def test_tls_to_a_server_that_has_none_is_refused(peer: Peer) -> None:
    remoting = client(True)
    with pytest.raises(RemotingError, match=re.escape(peer.address)) as caught:
        remoting.call(peer.address, Frame(ECHO))
    assert "cannot be reached" in str(caught.value)
    remoting.close()


def test_no_tls_to_a_server_that_has_it_is_refused(secure: Peer) -> None:
    remoting = client(False)
    with pytest.raises((RemotingError, RequestTimeout), match=re.escape(secure.address)):
        remoting.call(secure.address, framed(GetRoute("orders")), 5.0)
    remoting.close()


def test_what_tls_may_be() -> None:
    assert tls_context(False) is None
    assert isinstance(tls_context(True), ssl.SSLContext)
    with pytest.raises(TypeError, match="tls is True, False or an"):
        tls_context("yes")  # type: ignore[arg-type]  # that is the point


def test_a_refused_certificate_is_not_waited_for(secure: Peer) -> None:
    remoting = client(True)
    started = time.monotonic()
    for _ in range(20):
        with pytest.raises(RemotingError, match="not trusted"):
            remoting.call(secure.address, Frame(ECHO))
    assert time.monotonic() - started < 20
    remoting.close()
