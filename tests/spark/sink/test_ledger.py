"""What a commit does follows from the newest entry of its transaction id."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mq.sink_ledger import KEPT_MS
from mq.spark.errors import SparkError
from mq.spark.sink.ledger import BatchPosition, Entry, Step, chunked, decide, key_of, newer, txn_of

WHOLE = Entry("app", "query", 7, 0, 10, time_ms=1000)
HALF = WHOLE._replace(chunk=1, files=("7/b", "7/c"), skip=4)


@pytest.mark.parametrize(
    ("last", "epoch", "steps"),
    [
        (None, 0, [Step.APPEND]),
        (WHOLE, 8, [Step.APPEND]),
        (WHOLE, 7, [Step.SKIP]),
        (HALF, 7, [Step.FINISH]),
        (HALF, 8, [Step.FINISH, Step.APPEND]),
        (HALF._replace(chunk=2, files=()), 7, [Step.SKIP]),
    ],
)
def test_the_steps_of_a_commit_follow_from_the_ledger(
    last: Entry | None, epoch: int, steps: list[Step]
) -> None:
    assert decide(last, epoch, "query", is_version_given=False) == steps


@pytest.mark.parametrize("last", [WHOLE, HALF])
def test_an_epoch_before_the_newest_is_no_replay(last: Entry) -> None:
    """Its checkpoint is from a backup, and has other rows under this number: to skip it would lose them."""
    with pytest.raises(
        SparkError, match=r"\[MQ_TXN_MISMATCH\].* epoch 7 .* this is epoch 6.*older than the log"
    ):
        decide(last, 6, "query", is_version_given=False)
    assert Step.APPEND not in decide(last, 6, "query", is_version_given=True)


def test_another_query_s_epochs_are_not_taken_for_replays() -> None:
    with pytest.raises(SparkError, match=r"\[MQ_TXN_MISMATCH\].*give a new txnAppId"):
        decide(WHOLE, 0, "other", is_version_given=False)
    assert decide(WHOLE, 8, "other", is_version_given=False) == [Step.APPEND]
    assert decide(WHOLE, 7, "other", is_version_given=True) == [Step.SKIP]


def test_entries_are_read_as_they_were_written() -> None:
    assert Entry.decode(HALF.encode()) == HALF
    other = WHOLE._replace(txn="other")
    bodies = [WHOLE.encode(), b"{}", HALF.encode(), b"\xff", other.encode(), b"[1]", b"[" * 100_000]
    assert newer(None, bodies, "app") == HALF
    assert newer(None, [], "app") is None


@pytest.mark.parametrize("name", ["epoch", "chunk", "rows", "skip", "time_ms"])
@pytest.mark.parametrize("number", [1 << 63, -(10**400)], ids=["2**63", "-10**400"])
def test_numbers_that_no_clock_and_no_query_counts_to_are_no_entry(name: str, number: int) -> None:
    assert Entry.decode(WHOLE._replace(**{name: number}).encode()) is None  # type: ignore[arg-type]  # by name


def test_the_newest_entry_is_the_newest_wherever_it_lies() -> None:
    """One that was appended again may lie behind it."""
    later = WHOLE._replace(epoch=8)
    for bodies in ([later, WHOLE, HALF], [HALF, WHOLE, later]):
        assert newer(None, [entry.encode() for entry in bodies], "app") == later
    assert newer(later, [HALF.encode()], "app") == later


def test_when_an_entry_is_forgotten() -> None:
    assert WHOLE.is_of_use(1000 + KEPT_MS - 1)
    assert not WHOLE.is_of_use(1000 + KEPT_MS)
    # A batch write that cannot be repeated is needed until it is complete.
    assert not WHOLE._replace(lasting=False).is_of_use(1000)
    assert HALF._replace(lasting=False).is_of_use(1000)


class Batch(NamedTuple):
    number: int
    size: int


@given(st.lists(st.integers(0, 50)), st.integers(1, 100))
def test_chunks_hold_each_batch_once(sizes: list[int], chunk_bytes: int) -> None:
    batches = [
        (BatchPosition(number // 3, number % 3), Batch(number, size)) for number, size in enumerate(sizes)
    ]
    chunks = list(chunked(batches, chunk_bytes))
    assert [batch for chunk, _ in chunks for batch in chunk] == [batch for _, batch in batches]
    for number, (chunk, rest) in enumerate(chunks):
        assert len(chunk) == 1 or sum(batch.size for batch in chunk) <= chunk_bytes
        # The rest begins with the first batch of the next chunk.
        following = chunks[number + 1][0][0].number if number + 1 < len(chunks) else None
        assert rest == (None if following is None else batches[following][0])


def test_names_are_safe_to_be_directories() -> None:
    assert key_of("a/b c\x01ü") == "a%2Fb%20c%01%C3%BC"
    assert txn_of(key_of("a/b c\x01ü")) == "a/b c\x01ü"
    for bad in ("", "..", "x" * 201):
        with pytest.raises(SparkError, match="option txnAppId"):
            key_of(bad)
