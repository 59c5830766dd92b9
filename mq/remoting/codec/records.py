"""Bodies of stored messages: records as they stand in a broker's log, one after the other."""

from __future__ import annotations

from mq.errors import RemotingError, StoreCorrupted
from mq.message import MessageExt
from mq.store.log.records import split_records

__all__ = ["decode_records"]


def decode_records(body: bytes, broker_name: str, *, rewritten: bool = False) -> list[MessageExt]:
    """The messages. Raises RemotingError where a record is not whole, or a checksum does not fit.

    A record that the broker has `rewritten`, as that of CHECK_TRANSACTION_STATE, keeps the checksum it had.
    """
    try:
        return [MessageExt(record, broker_name) for record in split_records(body, verified=not rewritten)]
    except StoreCorrupted as error:
        raise RemotingError(f"broker {broker_name!r} sent messages that are damaged: {error}") from error
