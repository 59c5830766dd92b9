"""A whole RocketMQ, name server, broker and clients, in a process of its own that the tests tell what to do.

The program is the one oracle.py builds. A server is asked by lines on its standard input and halts when that
ends, so none outlives the process that started it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support import oracle
from tests.support.cluster.ports import free_port
from tests.support.oracle import Sizes

JVM_OPTIONS = (
    *oracle.JVM_OPTIONS,
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:CICompilerCount=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.cs=ALL-UNNAMED",
    # A machine with little left on its disk is none of the broker's business here.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
)
ANSWER_TIMEOUT = 300.0  # A machine under load starts a broker in a minute or two.

SETTINGS: dict[str, object] = {
    "autoCreateTopicEnable": "true",
    "recallMessageEnable": "true",
    "flushDiskType": "ASYNC_FLUSH",
    "diskMaxUsedSpaceRatio": 95,
    "brokerFastFailureEnable": "false",
    # Nor is one that stands still for some seconds, whichever process holds the lock of the log then.
    "osPageCacheBusyTimeOutMills": 60_000,
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
    "transactionOpBatchInterval": 500,
    "sendMessageThreadPoolNums": 2,
    "pullMessageThreadPoolNums": 2,
    "adminBrokerThreadPoolNums": 2,
    "clientManageThreadPoolNums": 2,
    "reviveQueueNum": 1,
}


class ServerFailed(Exception):
    """A request was answered by an exception of RocketMQ's, or the process has ended; the text tells."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What RocketMQ's producer is told of one message."""

    status: str
    msg_id: str
    offset_msg_id: str
    topic: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None
    recall_handle: str | None


@dataclass(frozen=True, slots=True)
class Came:
    """One message as RocketMQ's client got it."""

    received_ms: int
    topic: str
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
    reconsume_times: int
    body: bytes
    properties: dict[str, str]


class Server:
    """The process; start() and stop() are about the broker in it."""

    def __init__(self) -> None:
        self.serving = False
        self.broker = self.name_server = ""  # host:port, once it is started
        self._process: subprocess.Popen[str] | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="mq-server-"))
        self._errors = (self._scratch / "stderr").open("w+b")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def launch(self) -> None:
        """Have the process running, so that a start takes no longer than a broker's."""
        if self._process is not None:
            return
        program = oracle.build()
        classpath = f"{program / 'oracle.jar'}:{program / 'lib'}/*"
        self._process = subprocess.Popen(
            [
                "java",
                *JVM_OPTIONS,
                f"-Duser.home={self._scratch}",
                f"-Drocketmq.home.dir={self._scratch}",
                "-cp",
                classpath,
                "mq.oracle.Server",
                str(self._scratch),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._scratch,
            encoding="utf-8",
        )

    def start(self, store: Path, sizes: Sizes, settings: Mapping[str, object] | None = None) -> None:
        """Starts a broker over a store, and the process if there is none."""
        given: dict[str, object] = {
            **SETTINGS,
            "listenPort": free_port((-2,)),
            "mappedFileSizeCommitLog": sizes.commitlog_file_size,
            "mappedFileSizeConsumeQueue": sizes.queue_file_units * 20,
            "maxHashSlotNum": sizes.index_slot_count,
            "maxIndexNum": sizes.index_unit_count,
            **(settings or {}),
        }
        self.launch()
        self.serving = True
        addresses = self.ask("start", store=str(store), settings=given)
        self.broker, self.name_server = addresses["broker"], addresses["name_server"]

    def stop(self) -> None:
        """Shuts clients and broker down, as an operator does."""
        self.ask("stop")
        self.serving = False

    def kill(self) -> None:
        """Kills the process with all that is in it; start() makes another."""
        if self._process is None:
            return
        process, self._process, self.serving = self._process, None, False
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # A request that it was killed over.
                pipe.close()

    def close(self) -> None:
        self.kill()
        self._errors.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def create_topic(self, topic: str, queue_count: int) -> None:
        self.ask("create_topic", topic=topic, queue_count=queue_count)

    def send(self, topic: str, body: bytes, **members: Any) -> Sent:
        """Members: tags, keys, delay_level, delay_ms, deliver_at_ms, properties, flag, queue_id."""
        return _of(Sent, self.ask("send", topic=topic, body=_text(body), **members))

    def recall(self, topic: str, handle: str) -> str:
        return str(self.ask("recall", topic=topic, handle=handle))

    def transact(self, group: str, topic: str, body: bytes, state: str = "UNKNOW", **members: Any) -> Sent:
        """Sends a half message whose local transaction ends as state says, in RocketMQ's words."""
        return _of(
            Sent, self.ask("transact", group=group, topic=topic, body=_text(body), state=state, **members)
        )

    def be_asked(self, group: str, topic: str, answers: Mapping[str, str]) -> None:
        """Starts a producer of the group, or has it know more answers: a state for each body, said once."""
        self.ask("be_asked", group=group, topic=topic, answers=dict(answers))

    def asked(self, group: str, count: int, wait: float) -> list[Came]:
        return [_came(one) for one in self.ask("asked", group=group, count=count, wait_ms=int(wait * 1000))]

    def resume(self, topic: str, offset_msg_id: str) -> bool:
        """An operator has a transaction checked again that was given up."""
        return bool(self.ask("resume", topic=topic, offset_msg_id=offset_msg_id))

    def consume(self, group: str, topics: Iterable[str], failing: Iterable[bytes] = ()) -> None:
        """Starts a push consumer of the group; the bodies in failing are given back to be retried."""
        self.ask("consume", group=group, topics=list(topics), failing=[body.decode() for body in failing])

    def received(self, group: str, count: int, wait: float) -> list[Came]:
        """All that came to the group's consumer, once it is so many or the time is up."""
        answer = self.ask("received", group=group, count=count, wait_ms=int(wait * 1000))
        return [_came(one) for one in answer]

    def stop_consumer(self, group: str) -> list[Came]:
        """Ends a group's consumer, which tells the broker its offsets; all that came to it.

        It waits for no answer to that, and a broker that is stopped right away might not have heard of it.
        """
        came = [_came(one) for one in self.ask("stop_consumer", group=group)]
        end = time.monotonic() + ANSWER_TIMEOUT
        for one in came:
            topic = f"%RETRY%{group}" if one.reconsume_times else one.topic
            while self.offsets(group, topic).get(one.queue_id, 0) <= one.queue_offset:
                assert time.monotonic() < end, (one, self.offsets(group, topic))
                time.sleep(0.02)
        return came

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        return {int(queue): offset for queue, offset in self.ask("offsets", group=group, topic=topic).items()}

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """First and next offset of every queue."""
        found = {}
        for name, (first, after) in self.ask("queues").items():
            topic, queue_id = name.rsplit(" ", 1)
            found[topic, int(queue_id)] = (first, after)
        return found

    def timer(self) -> dict[str, int]:
        """Where the broker's timer is."""
        return dict(self.ask("timer"))

    def ask(self, verb: str, **members: Any) -> Any:
        """Sends one request and waits for its answer."""
        process = self._process
        assert process is not None, "start() comes first"
        assert process.stdin is not None
        assert process.stdout is not None
        watch = threading.Timer(ANSWER_TIMEOUT + members.get("wait_ms", 0) / 1000, process.kill)
        watch.start()
        try:
            process.stdin.write(json.dumps({"do": verb, **members}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watch.cancel()
        if not line:
            raise ServerFailed(f"no answer to {verb}, the process has ended:\n{self._said()}")
        answer = json.loads(line)
        if "failure" in answer:
            raise ServerFailed(f"{verb}: {answer['failure']}\n{self._said()}")
        return answer["answer"]

    def _said(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 8000, max(size - 8000, 0)).decode("utf-8", "replace")


def _text(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _of(kind: type[Sent], answer: dict[str, Any]) -> Sent:
    return kind(**{field.name: answer[field.name] for field in fields(kind)})


def _came(answer: dict[str, Any]) -> Came:
    return Came(**{**answer, "body": base64.b64decode(answer["body"])})
