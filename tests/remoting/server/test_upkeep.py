"""What operators have the broker do at once; test_mqadmin.py has their tool ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mq
from mq.api.queues import READ_SIZE_MAX
from mq.remoting import serve
from mq.remoting.codec.requests.brokers import (
    CleanExpiredQueues,
    CleanUnusedTopics,
    DeleteExpiredFiles,
    ResumeCheckHalfMessage,
)
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.server.server import Server
from mq.store.log.commitlog import segment_files
from tests.support.eventually import eventually
from tests.support.raw_requests import ask

GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"


def given_up(store: mq.LocalBroker) -> list[mq.MessageExt]:
    queue = mq.MessageQueue(GIVEN_UP_TOPIC, store.name, 0)
    with suppress(mq.TopicNotFound):
        return list(store.puller(queue)(0, 32, READ_SIZE_MAX, None, 0.0).messages)
    return []


@pytest.fixture
def store(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(
        directory,
        commitlog_file_size=64 << 10,
        transaction_timeout=0.001,
        transaction_check_interval=0.05,
        transaction_check_max=1,
    ) as opened:
        yield opened


@pytest.fixture
def server(store: mq.LocalBroker) -> Iterator[Server]:
    with serve(store, port=0, namesrv_port=0) as server:
        yield server


def test_old_files_are_deleted_when_an_operator_says_so(
    store: mq.LocalBroker, server: Server, directory: Path
) -> None:
    queue = store.create_topic("orders", 1).queues[0]
    with mq.Producer(store) as producer:
        for _ in range(300):
            producer.send(mq.Message("orders", b"x" * 1000))
    files = segment_files(directory / "commitlog")
    assert len(files) > 3
    for file in files[:2]:
        os.utime(file, (0, 0))
    assert ask(server, DeleteExpiredFiles()).code == ResponseCode.SUCCESS
    # The leader may have made the next file meanwhile.
    assert segment_files(directory / "commitlog")[: len(files) - 2] == files[2:]
    assert queue.min_offset > 0


def test_nothing_is_left_to_clean(server: Server) -> None:
    for request in (CleanExpiredQueues(), CleanUnusedTopics()):
        assert ask(server, request).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("named_by", ["unique id", "offset id"])
def test_a_transaction_that_was_given_up_is_checked_again(
    store: mq.LocalBroker, server: Server, named_by: str
) -> None:
    store.create_topic("orders", 1).send(b"plain")
    message = mq.Message("orders", b"one")
    prepare = store.transactions.preparer(store.publishable("orders")[0], "payers")
    assert prepare(message, message.body, 0) is not None
    eventually(lambda: len(given_up(store)) == 1, store.transactions.undecided, 30.0)
    [waiting] = given_up(store)
    msg_id = waiting.msg_id
    if named_by == "offset id":
        host = bytes((127, 0, 0, 1)) + int(server.address.rpartition(":")[2]).to_bytes(4, "big")
        msg_id = (host + waiting.log_offset.to_bytes(8, "big")).hex().upper()
    answer = ask(server, ResumeCheckHalfMessage(msg_id))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    # It is given up a second time, after one more check.
    eventually(lambda: len(given_up(store)) == 2, store.transactions.undecided, 30.0)


@pytest.mark.parametrize("msg_id", ["", "none", "0" * 32])
def test_what_was_not_given_up_is_not_resumed(store: mq.LocalBroker, server: Server, msg_id: str) -> None:
    sent = store.create_topic("orders", 1).send(b"x")
    for each in (msg_id, sent.msg_id):
        answer = ask(server, ResumeCheckHalfMessage(each))
        assert answer.code != ResponseCode.SUCCESS
        assert answer.remark
