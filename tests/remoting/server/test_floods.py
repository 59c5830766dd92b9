"""Clients that take all they can get: the others are served, and memory stays bounded."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import struct
import threading
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import mq
from mq.api.broker import Ender, SendResult
from mq.errors import AddressInUse, InsufficientResources
from mq.remoting import serve
from mq.remoting.codec.bodies.heartbeat import ConsumerGroup, Heartbeat, ProducerGroup, Subscription
from mq.remoting.codec.fields import encode_fields
from mq.remoting.codec.frame import FRAME_SIZE_MAX, Frame, encode
from mq.remoting.codec.json_body import to_json
from mq.remoting.codec.requests.consuming import PullFlag, PullMessage
from mq.remoting.codec.requests.groups import GetAllGroups, HeartBeat, UnregisterClient
from mq.remoting.codec.requests.name_servers import GetClusterInfo
from mq.remoting.codec.requests.pushed import NotifyConsumerIdsChanged
from mq.remoting.codec.requests.sending import EndTransaction, SendMessage
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.groups.members import GROUPS_MAX
from mq.remoting.server.options import Limits
from mq.remoting.server.server import Server
from mq.remoting.server.transport import connection as connection_module
from mq.remoting.server.transport.connection import (
    AT_WORK_MAX,
    CONTROL_TURN_COUNT,
    LARGE_SIZE,
    REQUEST_SIZE,
    UNREAD_SIZE_MAX,
    Connection,
    Memory,
)
from mq.remoting.server.transport.large_frames import LargeFrames
from mq.remoting.server.transport.workers import Workers
from tests.support.eventually import eventually
from tests.support.memory.broker import MemoryBroker
from tests.support.memory.transactions import MemoryTransactions
from tests.support.raw_requests import LIMIT, RawClient, ask

FLOODERS, FLOOD_COUNT = 40, 400
POOL_COUNT = 32  # threads for sends


class GatedEnds(MemoryTransactions):
    """Transactions that end once the test permits it."""

    def ender(self, group: str) -> Ender:
        broker = self.broker
        assert isinstance(broker, Gated)
        return lambda *_: broker.wait()


class Gated(MemoryBroker):
    """A broker whose answers to three requests wait until the test permits them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.permits = threading.Semaphore(0)
        self.begun = 0
        self._transactions = GatedEnds(self)

    def wait(self) -> None:
        with self.changed:
            self.begun += 1
        assert self.permits.acquire(timeout=LIMIT)

    def groups(self) -> list[str]:
        self.wait()
        return super().groups()

    def append(self, *arguments: Any) -> SendResult:
        self.wait()
        return super().append(*arguments)


def connected(server: Server) -> socket.socket:
    host, port = server.address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), LIMIT)


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.001)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def oneway_end(body: bytes = b"") -> Frame:
    request = EndTransaction("shop", 0, 0, EndTransaction.COMMIT, "id")
    return Frame(EndTransaction.CODE, encode_fields(request), body, flags=2)


def pull(padding: int = 0) -> Frame:
    flags = PullFlag.SUBSCRIPTION | PullFlag.SUSPEND
    request = PullMessage("reading", "orders", 0, 0, 32, flags, 0, 30_000, 0, "*", "TAG")
    return Frame(PullMessage.CODE, {**encode_fields(request), "pad": "x" * padding})


class RecordingTransport(asyncio.Transport):
    """Records when reading is paused and resumed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.calls: list[str] = []
        self.unsent = 0

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unsent += len(data)

    def is_closing(self) -> bool:
        return False


def made(
    turns: Mock,
    transport: RecordingTransport,
    large_frames: LargeFrames,
    owner: Mock | None = None,
    limits: Limits | None = None,
    memory: Memory | None = None,
) -> Connection:
    """A connection in a loop whose rounds the test plays."""
    memory = memory or Memory(FRAME_SIZE_MAX * 10)
    connection = Connection(owner or Mock(), turns, limits or Limits(), memory, large_frames, FRAME_SIZE_MAX)
    connection.connection_made(transport)
    return connection


def held(server: Server) -> int:
    return sum(len(each.holds) for each in list(server.served.connections))


def test_connections_take_turns_in_the_threads() -> None:
    workers, open_lock, done = Workers(1, "test workers"), threading.Event(), list[str]()
    workers.submit("flood", open_lock.wait)
    for _ in range(100):
        workers.submit("flood", lambda: done.append("flood"))
    workers.submit("honest", lambda: done.append("honest"))
    open_lock.set()
    workers.close()
    assert done.index("honest") <= 1
    assert len(done) == 101
    assert not workers.submit("honest", open_lock.wait)


def test_dropped_work_is_not_done() -> None:
    workers, open_lock, done = Workers(1, "test workers"), threading.Event(), list[str]()
    workers.submit("other", open_lock.wait)
    for owner in ("lost", "here"):
        workers.submit(owner, lambda owner=owner: done.append(owner))  # type: ignore[misc]  # its type is Work
    workers.submit("lost", lambda: done.append("kept"), is_kept=True)
    workers.drop("lost")
    workers.submit("crowding", lambda: done.append("crowding"), is_kept=True)
    workers.drop("crowding", is_all=True)
    open_lock.set()
    workers.close()
    assert sorted(done) == ["here", "kept"]


def test_work_for_which_no_thread_can_start_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, done = Workers(2, "test workers"), list[int]()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert workers.submit("here", lambda: done.append(1))
    assert workers.submit("here", lambda: done.append(2))
    workers.close()
    assert done == [1, 2]


def test_large_frames_are_read_in_turns() -> None:
    """In a round of the loop two of them, once; the others wait."""
    turns = Mock()
    large_frames = LargeFrames(turns)
    transports = [RecordingTransport() for _ in range(5)]
    connections = []
    for transport in transports:
        connections.append(made(turns, transport, large_frames))
        connections[-1].data_received(FRAME_SIZE_MAX.to_bytes(4, "big") + bytes(1000))
        assert transport.calls == []
        connections[-1].data_received(bytes(LARGE_SIZE))
        assert transport.calls == ["pause"]
    turns.loop.call_soon.assert_called_once()

    def next_round() -> list[int]:
        """Which are read in it."""
        before = [len(transport.calls) for transport in transports]
        call = turns.loop.call_soon.call_args.args[0]
        turns.loop.call_soon.reset_mock()
        call()
        resumed = [place for place in range(5) if len(transports[place].calls) > before[place]]
        for place in resumed:
            assert transports[place].calls[-1] == "resume"
        return resumed

    assert next_round() == [0, 1]
    connections[0].data_received(bytes(LARGE_SIZE))  # and nothing comes from 1
    assert [next_round(), next_round()] == [[2, 3], [0, 4]]
    turns.loop.call_soon.assert_not_called()


def test_answers_that_are_sent_at_once_leave_no_connection_paused() -> None:
    """The buffer is over the limit for a moment, and the event loop never calls pause_writing."""
    turns, owner, transport = Mock(), Mock(), RecordingTransport()
    connection = made(turns, transport, LargeFrames(turns), owner, Limits(unsent_size=10))
    owner.received = lambda _, frame: connection.answered(frame, 0, bytes(20))
    connection.data_received(encode(Frame(1)))
    assert transport.calls == ["pause"]
    transport.unsent = 0
    turns.loop.call_soon.call_args.args[0]()
    assert transport.calls == ["pause", "resume"]


def test_oneway_requests_of_a_lost_connection_count_until_they_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for a thread, and their connection may be back with more."""
    monkeypatch.setattr(connection_module, "TURN_SECONDS", 3600.0)  # Both are read in one.
    turns, owner, memory = Mock(), Mock(), Memory(1 << 20)
    frames = list[Frame]()
    owner.received = lambda _, frame: frames.append(frame)
    connection = made(turns, RecordingTransport(), LargeFrames(turns), owner, memory=memory)
    connection.data_received(encode(Frame(1, body=bytes(1000))) + encode(Frame(1, body=bytes(500), flags=2)))
    question, oneway = frames
    sizes = [REQUEST_SIZE + each.size for each in frames]
    assert memory.used == sum(sizes)
    connection.connection_lost(None)
    assert memory.used == sizes[1]
    connection.answered(question, 0, b"")  # Its thread was at it.
    assert memory.used == sizes[1]
    connection.answered(oneway, 0, b"")
    assert memory.used == 0


def test_a_oneway_pull_is_not_held(directory: Path) -> None:
    """Nobody gets its answer."""
    with mq.open(directory) as store, serve(store, port=0, namesrv_port=0) as server:
        store.create_topic("orders", 1)
        with RawClient(server) as client:
            waits = pull()
            waits.flags = 2
            client.send(waits)
            client.send(Frame(GetClusterInfo.CODE))
            assert client.receive().code == ResponseCode.SUCCESS
            assert held(server) == 0


def test_a_client_that_does_not_read_gets_no_more_requests() -> None:
    turns, transport, answers = Mock(), RecordingTransport(), list[object]()
    turns.post = lambda call, *arguments: call(*arguments)
    connection = made(turns, transport, LargeFrames(turns))
    request = NotifyConsumerIdsChanged("billing")

    def sends() -> tuple[bool, bool]:
        """Whether it is told and asked anything."""
        begin = transport.unsent
        connection.tell(request)
        told = transport.unsent
        connection.ask(request, answers.append, 10.0)
        return told > begin, transport.unsent > told

    assert sends() == (True, True)
    transport.unsent = UNREAD_SIZE_MAX
    assert sends() == (False, False)
    [error] = answers
    assert isinstance(error, InsufficientResources)
    transport.unsent = UNREAD_SIZE_MAX // 2
    assert sends() == (True, True)


def test_requests_of_a_flood_delay_others_by_a_few_each() -> None:
    with Gated() as store, serve(store, port=0, namesrv_port=0) as server, ExitStack() as clients:
        blob = encode(Frame(GetAllGroups.CODE)) * FLOOD_COUNT
        for _ in range(FLOODERS):
            clients.enter_context(connected(server)).sendall(blob)
        waiting = FLOODERS * AT_WORK_MAX
        eventually(lambda: server.traffic.requests == waiting, lambda: server.traffic.requests)
        with RawClient(server) as honest:
            honest.send(Frame(GetClusterInfo.CODE))
            eventually(lambda: server.traffic.requests == waiting + 1, lambda: server.traffic.requests)
            # One turn of each flooder, and those that have begun: not all that wait.
            store.permits.release(FLOODERS * CONTROL_TURN_COUNT * 2)
            assert honest.receive().code == ResponseCode.SUCCESS
        store.permits.release(FLOODERS * FLOOD_COUNT)


def test_requests_of_a_lost_connection_are_dropped() -> None:
    with Gated() as store, serve(store, port=0, namesrv_port=0) as server:
        with connected(server) as sock:
            sock.sendall(encode(Frame(GetAllGroups.CODE)) * 60)
            eventually(lambda: store.begun == 1, lambda: store.begun)
            assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
        eventually(lambda: server.connections == 0, lambda: server.connections)
        store.permits.release(100)
        server.close()
        assert store.begun == 1


def test_oneway_requests_of_a_lost_connection_are_done() -> None:
    with Gated() as store, serve(store, port=0, namesrv_port=0) as server:
        with connected(server) as sock:
            sock.sendall(encode(Frame(GetAllGroups.CODE, flags=2)) * 40)
            eventually(lambda: store.begun == 1, lambda: store.begun)
        store.permits.release(100)
        eventually(lambda: store.begun == 40, lambda: store.begun)


def test_sends_that_wait_for_the_disk_delay_no_other_request() -> None:
    with Gated() as store, serve(store, port=0, namesrv_port=0) as server, ExitStack() as clients:
        store.create_topic("orders", 1)
        send = SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0)
        blob = encode(Frame(SendMessage.CODE, encode_fields(send), b"body")) * 64
        for _ in range(2):
            clients.enter_context(connected(server)).sendall(blob)
        eventually(lambda: store.begun == POOL_COUNT, lambda: store.begun)
        assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
        store.permits.release(1000)


def test_oneway_ends_of_transactions_wait_for_the_disk_together() -> None:
    """They delay no heartbeat, and one flush is for many."""
    with Gated() as store, serve(store, port=0, namesrv_port=0) as server, ExitStack() as clients:
        with connected(server) as sock:
            sock.sendall(encode(oneway_end()) * 16)
            eventually(lambda: store.begun == 16, lambda: store.begun)
        for _ in range(8):
            clients.enter_context(connected(server)).sendall(encode(oneway_end()))
        eventually(lambda: store.begun == 24, lambda: store.begun)
        assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
        store.permits.release(100)


def test_the_headers_of_held_pulls_count() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0, in_flight_size=1 << 20) as server:
        store.create_topic("orders", 1)
        with connected(server) as sock:
            sock.sendall(encode(pull(200_000)) * 20)
            eventually(lambda: held(server) >= 5, lambda: held(server))
            assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
            assert held(server) <= 6
            [connection] = [each for each in list(server.served.connections) if each.holds]
            assert connection.received_size < 3 << 20


def test_a_header_of_many_fields_ends_its_connection() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server:
        with connected(server) as sock:
            sock.sendall(encode(Frame(GetClusterInfo.CODE, {f"f{number}": "x" for number in range(2000)})))
            eventually(lambda: is_closed(sock), lambda: "it is open")
        assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS


def test_all_connections_have_no_more_pulls_waiting_than_allowed() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0, held_pulls_total=10) as server:
        store.create_topic("orders", 1)
        with RawClient(server) as first, RawClient(server) as second:
            for _ in range(10):
                first.send(pull())
            eventually(lambda: held(server) == 10, lambda: held(server))
            second.send(pull())
            assert second.receive().code == ResponseCode.SYSTEM_BUSY


def test_the_groups_that_a_connection_names_are_bounded() -> None:
    """Each costs descriptors. None of those that are too many is known, and others go on."""
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server, RawClient(server) as client:
        names = [f"group-{number}" for number in range(GROUPS_MAX + 1)]

        def code(*these: str) -> int:
            groups = tuple(map(ProducerGroup, these))
            return client.ask(HeartBeat(), to_json(Heartbeat("client", groups, ()))).code

        assert code(*names) == ResponseCode.SYSTEM_BUSY
        assert code(*names[:-1]) == ResponseCode.SUCCESS
        assert code(names[-1]) == ResponseCode.SYSTEM_BUSY
        leaves = UnregisterClient("client", producer_group=names[0])
        assert client.ask(leaves).code == ResponseCode.SUCCESS
        assert code(names[-1]) == ResponseCode.SUCCESS


def consumes(client: RawClient, client_id: str, group: str, producer: str | None = None) -> None:
    named = (ConsumerGroup(group, subscription_data_set=(Subscription("orders", "*"),)),)
    producers = () if producer is None else (ProducerGroup(producer),)
    answer = client.ask(HeartBeat(), to_json(Heartbeat(client_id, producers, named)))
    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}


@pytest.mark.parametrize("leaves_as", ["another", "a producer"])
def test_a_group_that_a_connection_only_says_it_leaves_counts(
    leaves_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.remoting.server.groups.members.GROUPS_MAX", 4)
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server, RawClient(server) as client:
        for number in range(6):
            group = f"group-{number}"
            consumes(client, "client", group, group)
            if leaves_as == "another":
                client.ask(UnregisterClient("another", consumer_group=group))
            else:
                client.ask(UnregisterClient("client", producer_group=group))
        assert len(server.served.members.all()) == 4


def test_parts_of_frames_of_all_connections_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with (
        MemoryBroker() as store,
        serve(store, port=0, namesrv_port=0, received_total=4 << 20) as server,
        ExitStack() as clients,
    ):
        small = [clients.enter_context(connected(server)) for _ in range(3)]
        for sock in small:
            sock.sendall((4 << 20).to_bytes(4, "big") + bytes(1 << 20))
        eventually(lambda: received(server) >= 3 << 20, lambda: received(server))
        large = clients.enter_context(connected(server))
        with pytest.raises(ConnectionError):
            large.sendall((4 << 20).to_bytes(4, "big") + bytes(3 << 20) + bytes(100 << 20))
        assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
        assert not any(map(is_closed, small))
        assert received(server) <= 4 << 20
        assert "received_total" in caplog.text


def another_has_room(server: Server, store: Gated) -> None:
    """Once the connections are lost. Their members leave, and what had begun ends."""
    eventually(lambda: server.connections == 0, lambda: server.connections)
    with RawClient(server) as honest:
        honest.send(Frame(GetClusterInfo.CODE, body=bytes(2 << 20)))
        assert honest.receive().code == ResponseCode.SUCCESS
    store.permits.release(100)
    eventually(lambda: not server.served.members.all(), server.served.members.all)
    server.close()


def test_what_a_lost_connection_has_sent_takes_no_room_from_others(caplog: pytest.LogCaptureFixture) -> None:
    """Its oneway requests are dropped where others need the room. Its members leave all the same."""
    with Gated() as store, serve(store, port=0, namesrv_port=0, received_total=4 << 20) as server:
        topic = store.create_topic("orders", 1)
        send = encode_fields(SendMessage("shop", "orders", "TBW102", 4, 0, 0, 0, 0))
        with RawClient(server) as flood:
            consumes(flood, "one", "billing")
            for _ in range(3):
                flood.send(Frame(SendMessage.CODE, send, bytes(1 << 20), flags=2))
            flood.send(Frame(GetAllGroups.CODE, flags=2))  # The members leave after this.
            eventually(lambda: store.begun == 2, lambda: store.begun)
            assert received(server) > 3 << 20
        another_has_room(server, store)
        assert "received_total" in caplog.text
        assert topic.queues[0].max_offset == 1  # the one that had begun


def test_oneway_ends_of_a_lost_connection_take_no_room_from_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those that wait for a thread are dropped where others need the room, as ordered ones are."""
    with Gated() as store, serve(store, port=0, namesrv_port=0, received_total=4 << 20) as server:
        with RawClient(server) as flood:
            consumes(flood, "one", "billing")
            for _ in range(POOL_COUNT + 8):
                flood.send(oneway_end(bytes(80_000)))
            eventually(lambda: store.begun == POOL_COUNT, lambda: store.begun)
            eventually(lambda: received(server) > 3_200_000, lambda: received(server))
        another_has_room(server, store)
        assert "received_total" in caplog.text
        assert store.begun == POOL_COUNT


def test_a_port_in_use_leaves_no_socket() -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server:
        used = int(server.address.rpartition(":")[2])
        gc.collect()  # What other tests left warns here.
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            with pytest.raises(AddressInUse):
                serve(store, port=0, namesrv_port=used)
            gc.collect()
        assert [str(each.message) for each in found if each.category is ResourceWarning] == []


def received(server: Server) -> int:
    return sum(each.received_size for each in list(server.served.connections))


def test_connections_count_before_the_handshake() -> None:
    with (
        MemoryBroker() as store,
        serve(store, port=0, namesrv_port=0, tls=True, connections=5) as server,
        ExitStack() as clients,
    ):
        silent = [clients.enter_context(connected(server)) for _ in range(20)]
        eventually(lambda: sum(map(is_closed, silent)) == 15, lambda: sum(map(is_closed, silent)))
        assert server.connections == 5
        for sock in silent:
            sock.close()
        eventually(lambda: server.connections == 0, lambda: server.connections)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(connected(server)) as sock:
            sock.sendall(encode(Frame(GetClusterInfo.CODE)))
            assert sock.recv(4)


def test_connections_that_are_reset_at_once_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with MemoryBroker() as store, serve(store, port=0, namesrv_port=0) as server:
        for _ in range(200):
            sock = connected(server)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        assert ask(server, GetClusterInfo()).code == ResponseCode.SUCCESS
        eventually(lambda: server.connections == 0, lambda: server.connections)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
