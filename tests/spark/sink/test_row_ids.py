"""The ids of rows that go to a cluster, and how they are sent: again and elsewhere, under the same ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mq.api.bulk import Row
from mq.api.results import MessageQueue, SendResult, SendStatus
from mq.errors import MQError, RemotingError, RequestTimeout
from mq.remoting.client.broker_errors import RequestDenied
from mq.spark.sink.row_ids import RowIds
from mq.spark.sink.row_sender import BATCH_BYTES, BATCH_ROWS, RowSender, batches

rows_of_a_task = st.lists(
    st.tuples(st.sampled_from([b"t", b"tt"]), st.binary(max_size=2), st.binary(max_size=2)), max_size=20
)


def ids_of(task: tuple[str, int, int], rows: Sequence[tuple[bytes, bytes, bytes]]) -> list[str]:
    ids = RowIds(*task)
    return [ids.of(*row) for row in rows]


@given(rows_of_a_task, st.randoms(use_true_random=False))
def test_a_task_that_runs_again_gives_its_rows_the_same_ids(
    rows: list[tuple[bytes, bytes, bytes]], random: Random
) -> None:
    """In whichever order they come; and no two rows have the same one."""
    first = ids_of(("query", 7, 3), rows)
    assert len(set(first)) == len(rows)
    assert all(len(each) == 32 and set(each) <= set("0123456789ABCDEF") for each in first)
    again = rows.copy()
    random.shuffle(again)
    assert (
        Counter(zip(rows, first, strict=True)).keys()
        == Counter(zip(again, ids_of(("query", 7, 3), again), strict=True)).keys()
    )


@given(rows_of_a_task.filter(bool))
def test_other_tasks_epochs_and_queries_give_other_ids(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    tasks = [("query", 7, 3), ("query", 7, 4), ("query", 8, 3), ("another", 7, 3), ("query\0007", 7, 3)]
    ids = [each for task in tasks for each in ids_of(task, rows)]
    assert len(set(ids)) == len(ids)


def test_a_row_that_holds_something_else_has_another_id() -> None:
    """Also where one field takes what another one had."""
    rows = [(b"t", b"ab", b"c"), (b"t", b"a", b"bc"), (b"ta", b"b", b"c"), (b"t", b"abc", b"")]
    ids = [ids_of(("query", 0, 0), [row])[0] for row in rows]
    assert len(set(ids)) == len(ids)


def row(number: int, size: int = 10, properties: bytes = b"TAGS\x01a\x02") -> Row:
    return Row(b"x" * size, properties, f"{number:032}")


def test_what_goes_out_together() -> None:
    small = [row(number) for number in range(2 * BATCH_ROWS + 1)]
    assert [len(batch) for batch in batches(small)] == [BATCH_ROWS, BATCH_ROWS, 1]
    large = [row(0), row(1, BATCH_BYTES), row(2), row(3, BATCH_BYTES // 2), row(4, BATCH_BYTES // 2)]
    assert [[int(each.unique_id) for each in batch] for batch in batches(large)] == [[0], [1], [2, 3], [4]]
    delayed = [
        *(row(0), row(1, properties=b"DELAY\x013\x02"), row(2)),
        *(row(3), row(4, properties=b"TAGS\x01a\x02TIMER_DELIVER_MS\x0199\x02"), row(5)),
    ]
    ids = [[int(each.unique_id) for each in batch] for batch in batches(delayed)]
    assert ids == [[0], [1], [2, 3], [4], [5]]
    assert list(batches([])) == []


class Brokers:
    """Two brokers that do what is scripted, one answer for each attempt, and then store."""

    def __init__(self, *answers: MQError | SendStatus) -> None:
        self.answers = list(answers)
        self.stored: list[tuple[str, list[str]]] = []
        self.tried: list[str] = []

    def append_rows(self, queue: MessageQueue, rows: Sequence[Row]) -> SendResult:
        self.tried.append(queue.broker_name)
        answer = self.answers.pop(0) if self.answers else SendStatus.SEND_OK
        if isinstance(answer, MQError):
            raise answer
        self.stored.append((queue.broker_name, [row.unique_id for row in rows]))
        return SendResult(answer, queue, 0, rows[0].unique_id, (b"\x7f\0\0\1\0\0\0\0", 0), "", 0)

    def topic(self, name: str) -> None:
        raise RemotingError("no name server answers")

    def publishable(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, name, number) for name in "ab" for number in range(2)]


A0 = MessageQueue("orders", "a", 0)
LATE, BUSY = RequestTimeout("it did not answer"), RemotingError("busy", code=2)


def sent(brokers: Brokers, *, is_free: bool, retry_seconds: float = 60.0) -> Brokers:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    sender = RowSender(brokers, retry_seconds, lambda: now[0], sleep)  # type: ignore[arg-type]  # what it asks for
    sender.send(A0, [row(0), row(1)], is_free=is_free)
    return brokers


def test_rows_that_may_go_anywhere_go_to_another_broker() -> None:
    class Known(Brokers):
        def topic(self, name: str) -> None:
            """It is there."""

    brokers = sent(Known(LATE, BUSY), is_free=True)
    assert brokers.tried[:2] == ["a", "b"]
    assert brokers.stored == [(brokers.tried[2], [f"{0:032}", f"{1:032}"])]


def test_rows_of_one_queue_wait_for_its_broker() -> None:
    brokers = sent(Brokers(LATE, BUSY, LATE), is_free=False)
    assert brokers.tried == ["a"] * 4
    assert brokers.stored == [("a", [f"{0:032}", f"{1:032}"])]


def test_an_acknowledgement_that_promises_less_is_none() -> None:
    brokers = sent(Brokers(SendStatus.FLUSH_SLAVE_TIMEOUT), is_free=False)
    assert len(brokers.stored) == 2
    assert brokers.stored[0] == brokers.stored[1]
    with pytest.raises(RemotingError, match="stored 2 rows, and says SLAVE_NOT_AVAILABLE"):
        sent(Brokers(*[SendStatus.SLAVE_NOT_AVAILABLE] * 1000), is_free=False)


def test_patience_has_an_end_and_what_is_forbidden_none_at_all() -> None:
    with pytest.raises(RequestTimeout):
        sent(Brokers(*[LATE] * 1000), is_free=False)
    with pytest.raises(RequestTimeout):
        sent(Brokers(LATE, LATE), is_free=True, retry_seconds=0.01)
    refused = Brokers(RequestDenied("no right to write", code=16))
    with pytest.raises(RequestDenied):
        sent(refused, is_free=True)
    assert len(refused.tried) == 1
