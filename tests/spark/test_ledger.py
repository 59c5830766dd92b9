"""What a commit does follows from the newest entry of its transaction id."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mq.spark.ledger import Entry, Step, chunked, decide, key_of, newest
from mq.spark.refusal import Refusal

WHOLE = Entry("app", "query", 7, 0, 1, 10, ("7/a",), 100)
HALF = WHOLE._replace(chunk=1, chunks=3)


@pytest.mark.parametrize(
    ("last", "epoch", "steps"),
    [
        (None, 0, [Step.APPEND]),
        (WHOLE, 8, [Step.APPEND]),
        (WHOLE, 7, [Step.SKIP]),
        (WHOLE, 3, [Step.SKIP]),
        (HALF, 7, [Step.FINISH]),
        (HALF, 8, [Step.FINISH, Step.APPEND]),
        (HALF._replace(chunk=2), 7, [Step.SKIP]),
    ],
)
def test_steps(last: Entry | None, epoch: int, steps: list[Step]) -> None:
    assert decide(last, epoch, "query", is_version_given=False) == steps


def test_another_query_s_epochs_are_not_taken_for_replays() -> None:
    with pytest.raises(Refusal, match=r"\[MQ_TXN_MISMATCH\].*give a new txnAppId"):
        decide(WHOLE, 0, "other", is_version_given=False)
    assert decide(WHOLE, 8, "other", is_version_given=False) == [Step.APPEND]
    assert decide(WHOLE, 7, "other", is_version_given=True) == [Step.SKIP]


def test_entries_are_read_as_they_were_written() -> None:
    assert Entry.decode(HALF.encode()) == HALF
    other = WHOLE._replace(txn="other")
    assert newest([WHOLE.encode(), b"{}", HALF.encode(), b"\xff", other.encode(), b"[1]"], "app") == HALF
    assert newest([], "app") is None


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_chunks_hold_each_batch_once(sizes: list[int], chunk_bytes: int) -> None:
    chunks = chunked(sizes, chunk_bytes)
    assert [place for first, behind in chunks for place in range(first, behind)] == list(range(len(sizes)))
    for first, behind in chunks:
        assert behind - first == 1 or sum(sizes[first:behind]) <= chunk_bytes


def test_names_are_safe_to_be_directories() -> None:
    assert key_of("a/b c\x01ü") == "a%2Fb%20c%01%C3%BC"
    for bad in ("", "..", "x" * 201):
        with pytest.raises(Refusal, match="option txnAppId"):
            key_of(bad)
