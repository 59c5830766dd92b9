"""RocketMQ's own Java clients of 5.3 or 4.9 in a process that is told by lines what to do.

They need nothing but a name server's address: a real cluster's, or that of anything else which speaks as one.
One process holds any number of producers and consumers, each by its name. Requests are served in turn.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.support.cluster.access import Account
from tests.support.cluster.certificates import Certificates
from tests.support.cluster.java_process import JavaProcess
from tests.support.cluster.programs import Version, program

ANSWER_SECONDS = 300.0
ROUTE_SECONDS = 60.0


class RequestFailed(Exception):
    """A request was answered by an exception; `code` is the response code behind it, if there is one."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Sent:
    """What RocketMQ's producer is told of one message."""

    status: str
    msg_id: str
    offset_msg_id: str | None
    topic: str
    broker: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None
    recall_handle: str | None


@dataclass(frozen=True, slots=True)
class Came:
    """One message as RocketMQ's client got it."""

    received_ms: int
    topic: str
    broker: str | None
    queue_id: int
    queue_offset: int
    log_offset: int
    msg_id: str
    transaction_id: str | None
    prepared_transaction_offset: int
    sys_flag: int
    flag: int
    born_time_ms: int
    store_time_ms: int
    store_host: str
    reconsume_times: int
    body: bytes
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a topic lies."""

    brokers: dict[str, dict[str, str]]  # broker name -> id, "0" the master's -> address
    queues: dict[str, list[int]]  # broker name -> queues to read, queues to write, permission


class JavaClients(JavaProcess):
    """The process. Leaving the `with` ends it."""

    def __init__(
        self,
        name_server: str,
        *,
        version: Version = "5.3",
        certificates: Certificates | None = None,
        account: Account | None = None,
    ) -> None:
        super().__init__(f"java-clients-{version}", Path(tempfile.mkdtemp(prefix="mq-clients-")))
        self._name_server = name_server
        self.version = version
        self._options = certificates.client_options() if certificates is not None else []
        self._account = account
        self._lock = threading.Lock()

    def __enter__(self) -> JavaClients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Producers; `producer` names one of several, which is started by its first send.

    def start_producer(self, producer: str, **members: Any) -> None:
        """Members: group, namespace, timeout_ms, retry_count, route_ms, heartbeat_ms."""
        self.ask("producer.start", producer=producer, **members)

    def send(self, topic: str, body: bytes, **members: Any) -> Sent:
        """Members: tags, keys, delay_level, delay_ms, deliver_at_ms, properties, flag, producer; broker with
        queue_id, or sharding_key."""
        return _of(Sent, self.ask("producer.send", topic=topic, body=_text(body), **members))

    def send_all(self, topic: str, bodies: Iterable[bytes], **members: Any) -> list[Sent]:
        """One after the other, in one request."""
        answer = self.ask("producer.send_all", topic=topic, messages=_bodies(bodies), **members)
        return [_of(Sent, one) for one in answer]

    def send_async(self, topic: str, bodies: Iterable[bytes], **members: Any) -> list[Sent]:
        """All at once; returns when all are answered."""
        answer = self.ask("producer.send_async", topic=topic, messages=_bodies(bodies), **members)
        return [_of(Sent, one) for one in answer]

    def send_batch(self, topic: str, bodies: Iterable[bytes], **members: Any) -> Sent:
        """As one batch."""
        answer = self.ask("producer.send_batch", topic=topic, messages=_bodies(bodies), **members)
        return _of(Sent, answer)

    def send_oneway(self, topic: str, body: bytes, **members: Any) -> None:
        """Without an answer."""
        self.ask("producer.send_oneway", topic=topic, body=_text(body), **members)

    def request(self, topic: str, body: bytes, **members: Any) -> bytes:
        """The body of the reply to a message: see reply()."""
        return base64.b64decode(self.ask("producer.request", topic=topic, body=_text(body), **members))

    def reply(self, group: str, topic: str) -> None:
        """Starts a consumer that replies to each message by its body, twice over."""
        self.ask("producer.reply", group=group, topic=topic)

    def recall(self, topic: str, handle: str, **members: Any) -> str:
        """The unique id of the message that does not come any more. 5.3 alone."""
        return str(self.ask("producer.recall", topic=topic, handle=handle, **members))

    def transact(self, group: str, topic: str, body: bytes, state: str = "UNKNOW", **members: Any) -> Sent:
        """Sends a half message whose local transaction ends as state says, in RocketMQ's words."""
        request = {"producer": group, "group": group, "topic": topic, "body": _text(body), "state": state}
        return _of(Sent, self.ask("producer.transact", **request, **members))

    def be_asked(self, group: str, topic: str, answers: Mapping[str, str]) -> None:
        """Starts a producer of the group, or has it know more answers: a state for each body, said once."""
        self.ask("producer.be_asked", producer=group, group=group, topic=topic, answers=dict(answers))

    def asked(self, group: str, count: int, wait: float) -> list[Came]:
        """What the group's producer was asked about, once it is so many or the time is up."""
        return self._came("producer.asked", wait, producer=group, group=group, count=count)

    def start_load(
        self, topic: str, prefix: str, per_second: float, *, producer: str = "load", keys: int = 0
    ) -> None:
        """Sends in the background; with keys, message n goes to the queue of n modulo keys."""
        self.ask(
            "producer.load", producer=producer, topic=topic, prefix=prefix, per_second=per_second, keys=keys
        )

    def end_load(self, producer: str = "load") -> tuple[list[str], list[str]]:
        """Ends it; the bodies that were acknowledged, and those whose send failed."""
        answer = self.ask("producer.end_load", producer=producer)
        return answer["acknowledged"], answer["failed"]

    def stop_producer(self, producer: str) -> None:
        """Ends a producer in good order."""
        self.ask("producer.stop", producer=producer)

    # Push consumers

    def consume(
        self,
        group: str,
        topics: Mapping[str, str] | Sequence[str],
        *,
        consumer: str | None = None,
        sql: bool = False,
        failing: Iterable[bytes] = (),
        **members: Any,
    ) -> None:
        """Starts a push consumer, named as its group unless told otherwise; topics with an expression each.

        The bodies in failing are given back whenever they come. Members: orderly, broadcasting, from_last,
        thread_count, batch_count, reconsume_max, suspend_ms, slow_ms, namespace, route_ms, heartbeat_ms; and
        journal, a file that gets two lines of each message: see tests/support/cluster/journal.py.
        """
        self.ask(
            "consumer.start",
            consumer=consumer or group,
            group=group,
            topics=_topics(topics, sql),
            failing=[body.decode() for body in failing],
            **members,
        )

    def received(self, consumer: str, count: int, wait: float, *, start: int = 0) -> list[Came]:
        """All that came since number `start`, once it is so many or the time is up."""
        return self._came("consumer.received", wait, consumer=consumer, count=count, **{"from": start})

    def queues(self, consumer: str) -> dict[str, int]:
        """The queues that a push consumer has now, as "topic broker queue_id", with the offsets got to."""
        return dict(self.ask("consumer.queues", consumer=consumer))

    def client_id(self, consumer: str) -> str:
        """What the broker knows the consumer by."""
        return str(self.ask("consumer.client_id", consumer=consumer))

    def stop_consumer(self, consumer: str) -> list[Came]:
        """Ends it in good order; all that came to it."""
        return self._came("consumer.stop", 0, consumer=consumer)

    # Lite pull consumers

    def start_pulling(
        self,
        group: str,
        topics: Mapping[str, str] | Sequence[str] = (),
        *,
        consumer: str = "",
        sql: bool = False,
    ) -> None:
        """Subscribed to topics, or, without any, until assign() says which queues."""
        self.ask("pull.start", consumer=consumer or group, group=group, topics=_topics(topics, sql))

    def poll(self, consumer: str, wait: float) -> list[Came]:
        """The next messages; none if the time is up."""
        return self._came("pull.poll", wait, consumer=consumer)

    def pull(self, verb: str, consumer: str, **members: Any) -> Any:
        """assign(queues), assignment, queues(topic), seek(queue, offset), committed(queue), commit,
        offset_for_time(queue, time_ms), stop; a queue is topic, broker and queue_id."""
        return self.ask(f"pull.{verb}", consumer=consumer, **members)

    # Administration

    def create_topic(self, topic: str, queue_count: int = 4, **members: Any) -> None:
        """On every master, or changes it; returns once the route says so. Members: broker, permission,
        write_queue_count, order."""
        self.ask("admin.create_topic", topic=topic, queue_count=queue_count, **members)
        masters = {name for name, addresses in self.cluster().items() if "0" in addresses}
        wanted = {members["broker"]} if "broker" in members else masters
        until = time.monotonic() + ROUTE_SECONDS
        while True:
            with contextlib.suppress(RequestFailed):
                queues = self.route(topic).queues
                if all(queues.get(broker, [0])[0] == queue_count for broker in wanted):
                    return
            assert time.monotonic() < until, f"no route to {topic} on {wanted}"
            time.sleep(0.05)

    def create_group(self, group: str, **members: Any) -> None:
        """Members: retry_max, consume_enable, broker."""
        self.ask("admin.create_group", group=group, **members)

    def delete_topic(self, topic: str) -> None:
        """On all brokers and name servers."""
        self.ask("admin.delete_topic", topic=topic)

    def delete_group(self, group: str) -> None:
        """With its offsets, on all brokers."""
        self.ask("admin.delete_group", group=group)

    def route(self, topic: str) -> Route:
        """Raises RequestFailed with code 17 if the name server knows none."""
        return Route(**self.ask("admin.route", topic=topic))

    def cluster(self) -> dict[str, dict[str, str]]:
        """broker name -> id -> address."""
        return dict(self.ask("admin.cluster"))

    def topics(self) -> list[str]:
        """All topics of the cluster."""
        return list(self.ask("admin.topics"))

    def topic_offsets(self, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """(broker, queue id) -> first and next offset."""
        return _by_queue(self.ask("admin.topic_offsets", topic=topic))

    def offsets(self, group: str, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
        """(broker, queue id) -> the group's offset and the queue's next one; their difference is the lag."""
        return _by_queue(self.ask("admin.offsets", group=group, topic=topic))

    def set_offset(self, group: str, topic: str, broker: str, queue_id: int, offset: int) -> None:
        """Write a group's offset of one queue."""
        self.ask(
            "admin.set_offset", group=group, topic=topic, broker=broker, queue_id=queue_id, offset=offset
        )

    def reset(self, group: str, topic: str, time_ms: int) -> dict[str, int]:
        """Resets a group's offsets to a time, -1 for the end."""
        return dict(self.ask("admin.reset", group=group, topic=topic, time_ms=time_ms))

    def members(self, group: str) -> list[str]:
        """The client ids of a group's members."""
        return list(self.ask("admin.members", group=group))

    def set_write(self, broker: str, *, allowed: bool) -> None:
        """Take a broker's write permission from the routes, or give it back."""
        self.ask("admin.set_write", broker=broker, allowed=allowed)

    def configure(self, broker: str, settings: Mapping[str, object]) -> None:
        """Change a running broker's settings."""
        self.ask("admin.configure", broker=broker, settings=dict(settings))

    def find_key(self, topic: str, key: str, count: int = 32) -> list[Came]:
        """By a key of the index."""
        return self._came("admin.find_key", 0, topic=topic, key=key, count=count)

    def mqadmin(self, command: str, *arguments: str) -> str:
        """What RocketMQ's own tool prints of a command; raises RequestFailed where it prints an exception."""
        run = [command, "-n", self._name_server, *arguments]
        return str(self.ask("admin.run", arguments=run))

    def find_id(self, topic: str, offset_msg_id: str) -> Came:
        """By the id that says where it is stored."""
        return _came(self.ask("admin.find_id", topic=topic, id=offset_msg_id))

    def ask(self, verb: str, **members: Any) -> Any:
        """Send one request and wait for its answer; raises RequestFailed. The first starts the process."""
        with self._lock:
            if not self.running:
                self._launch()
            requests, answers = self.pipes
            watch = threading.Timer(ANSWER_SECONDS + members.get("wait_ms", 0) / 1000, self._end)
            watch.start()
            try:
                requests.write(json.dumps({"do": verb, **members}).encode() + b"\n")
                requests.flush()
                line = answers.readline()
            except BrokenPipeError:
                line = b""
            finally:
                watch.cancel()
        if not line:
            raise RequestFailed(f"no answer to {verb}, the process has ended:\n{self.said()}")
        answer = json.loads(line)
        if "failure" in answer:
            raise RequestFailed(f"{verb}: {answer['failure']}", answer["code"])
        return answer["answer"]

    def _launch(self) -> None:
        arguments = [self._name_server]
        if self._account is not None:
            arguments += [self._account.access_key, self._account.secret_key]
        clients = program("clients", self.version)
        self.launch(clients, "Clients", "mq.clients.Clients", arguments, self._options, answers=True)

    def _end(self) -> None:
        """End the process and no more: its pipes are being read."""
        assert self._process is not None
        self._process.kill()

    def _came(self, verb: str, wait: float, **members: Any) -> list[Came]:
        return [_came(one) for one in self.ask(verb, wait_ms=int(wait * 1000), **members)]


ValueT = TypeVar("ValueT", bound=Sent)


def _of(kind: type[ValueT], answer: dict[str, Any]) -> ValueT:
    return kind(**{field.name: answer[field.name] for field in fields(kind)})


def _came(answer: dict[str, Any]) -> Came:
    return Came(**{**answer, "body": base64.b64decode(answer["body"])})


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _bodies(bodies: Iterable[bytes]) -> list[dict[str, str]]:
    return [{"body": _text(body)} for body in bodies]


def _topics(topics: Mapping[str, str] | Sequence[str], sql: bool) -> list[dict[str, object]]:
    expressions = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
    return [
        {"topic": topic, "expression": expression, "sql": sql} for topic, expression in expressions.items()
    ]


def _by_queue(answer: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], tuple[int, int]]:
    found = {}
    for name, (first, second) in answer.items():
        broker, queue_id = name.rsplit(" ", 1)
        found[broker, int(queue_id)] = (first, second)
    return found
