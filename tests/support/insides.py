"""The parts inside a broker, for tests of one layer, and for those that put a failure between two steps.

Every reach from a test into the private parts of LocalBroker stands here, once and with its type. A test asks
the public names for what they tell as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import mq
from mq.api.group import BroadcastOffsets
from mq.broker.delay.schedule import Schedule
from mq.broker.delay.timer import Timer
from mq.broker.filter_bitmaps import ConsumerFilters
from mq.broker.groups.groups import Groups
from mq.broker.groups.member import LocalMembership
from mq.broker.leader import Duties
from mq.broker.local import LocalBroker
from mq.broker.message_query import Finder
from mq.broker.topics.compaction import Compaction
from mq.broker.topics.registry import Catalog
from mq.broker.transactions.producers import LocalChecker
from mq.client.engine.consume_loop import ConsumeLoop
from mq.client.engine.poll_loop import PollLoop
from mq.compacted_topics import CompactionRule
from mq.remoting.server.groups.members import RemoteMembers
from mq.remoting.server.holding import Held, Holding, Position
from mq.store.log.writer import BitmapSource, Writer
from mq.store.native import lib
from mq.store.queue.arrow import ArrowReader
from mq.store.queue.reader import Reader
from mq.store.shared.control import Control
from mq.store.shared.group_file import LEASE, LIFE, place_word
from mq.store.shared.leader_lock import Turn
from mq.store.shared.members import Members
from mq.store.store import Store


def store_of(broker: LocalBroker) -> Store:
    return broker._store


def control_of(broker: LocalBroker) -> Control:
    """The shared memory of an open store."""
    control = broker._store.control
    assert control is not None
    return control


def members_of(broker: LocalBroker) -> Members:
    """The processes that have the store open, for a broker that is one of them."""
    members = broker._store.members
    assert members is not None
    return members


def was_recovered(broker: LocalBroker) -> bool:
    """Whether opening it took a recovery: it did not just attach to the shared memory."""
    return broker._store.recovered is not None


def leader_pid(broker: LocalBroker) -> int:
    """The process that has the duties, as the shared memory says."""
    return broker._store.word(lib.MQ_DUTIES_PID)


def log_end(broker: LocalBroker) -> int:
    """Where the log ends, as a log offset."""
    return broker._store.end()


def flushed_end(broker: LocalBroker) -> int:
    """The log is on disk up to this log offset."""
    return broker._store.word(lib.MQ_FLUSHED_END)


def queue_number(broker: LocalBroker, queue: mq.MessageQueue) -> int:
    """The queue's number in the shared memory."""
    return broker._reader.number(queue)


def reader_of(broker: LocalBroker) -> Reader:
    return broker._reader


def arrow_reader_of(broker: LocalBroker) -> ArrowReader:
    return broker._arrow


def writer_of(broker: LocalBroker) -> Writer:
    return broker._writer


def finder_of(broker: LocalBroker) -> Finder:
    return broker._finder


def catalog_of(broker: LocalBroker) -> Catalog:
    return broker._catalog


def groups_of(broker: LocalBroker) -> Groups:
    return broker._groups


def set_bitmap_source(broker: LocalBroker, bitmaps: BitmapSource) -> None:
    """Have messages sent with the bitmaps of this source."""
    broker._writer._bitmaps = bitmaps


def schedule_of(broker: LocalBroker) -> Schedule:
    return broker._schedule


def timer_of(broker: LocalBroker) -> Timer:
    return broker._timer


def filters_of(broker: LocalBroker) -> ConsumerFilters:
    """The filters of a broker that writes bitmaps."""
    filters = broker._filters
    assert filters is not None
    return filters


def compaction_of(broker: LocalBroker) -> Compaction:
    return broker._compaction


def set_dedup_clock(broker: mq.Broker, clock_ms: Callable[[], int]) -> None:
    """Have append_once go by this clock; no option sets one."""
    assert isinstance(broker, LocalBroker)
    broker._dedup._clock_ms = clock_ms


def set_dedup_buckets(broker: LocalBroker, count: int) -> None:
    """Have the table of sent keys, once it is made, consist of so many buckets: few are soon full."""
    broker._dedup._bucket_count = count


def set_claims(broker: LocalBroker, group: str, kind: type[dict[bytes, Any]]) -> None:
    """A kind of dict of its own for who handles which key of a group."""
    handled: Any = broker.handled_keys.of(group)
    handled._claims = kind(handled._claims)


@contextmanager
def dedup_append(broker: LocalBroker, through: Callable[..., mq.SendResult]) -> Iterator[None]:
    """Inside, append_once stores a message by through(append, *arguments), not by append(*arguments)."""
    append = broker._dedup._append
    broker._dedup._append = partial(through, append)
    try:
        yield
    finally:
        broker._dedup._append = append


def set_compaction(
    broker: LocalBroker,
    *,
    query: Callable[..., list[mq.MessageExt]] | None = None,
    append: Callable[..., object] | None = None,
    sync: Callable[[], object] | None = None,
) -> None:
    """Have the compaction of internal topics look, append and sync by these functions."""
    compaction = broker._compaction
    compaction._query = query or compaction._query
    compaction._append = append or compaction._append
    compaction._sync = sync or compaction._sync


def add_compaction_rule(broker: LocalBroker, rule: CompactionRule) -> None:
    """Have retention compact one more topic."""
    broker._compaction._rules = (*broker._compaction._rules, rule)


def duties_of(broker: LocalBroker) -> Duties:
    """The leader's duties, in a broker that takes part in them."""
    duties = broker._duties
    assert duties is not None
    return duties


def turn_of(broker: LocalBroker) -> Turn:
    """The broker's place among those that could have the duties."""
    return duties_of(broker)._turn


def checker_of(broker: LocalBroker) -> LocalChecker:
    """What asks the only producer of transactions."""
    (checker,) = broker.transactions._checkers
    return checker


def asking_lock(checker: LocalChecker) -> AbstractContextManager[object]:
    """What a thread holds while the producer is asked."""
    return checker._lock


def table_lock(broker: LocalBroker) -> AbstractContextManager[object]:
    """What a thread holds while it looks into the table of transactions."""
    return broker.transactions.table()._files


def consume_loop_of(consumer: mq.PushConsumer) -> ConsumeLoop:
    """The loop of a consumer that is started."""
    loop = consumer._loop
    assert loop is not None
    return loop


def poll_loop_of(consumer: mq.PullConsumer) -> PollLoop:
    return consumer._loop


def evict(consumer: mq.PullConsumer) -> None:
    """Take a consumer that has joined its group for gone, as another process does once its lease is over."""
    membership = consumer._loop.membership
    assert isinstance(membership, LocalMembership)
    member_table, at = membership.member_table, place_word(membership.place)
    words = member_table.file.words
    with member_table.file.changing() as fd:
        member_table.evict(fd, membership.place, words[at + LIFE], words[at + LEASE])


def broadcast_offsets_of(consumer: mq.PushConsumer) -> BroadcastOffsets:
    """Where a broadcasting consumer that is started keeps its offsets."""
    offsets = consumer._local
    assert offsets is not None
    return offsets


def producer_of(producer: mq.aio.Producer) -> mq.Producer:
    """What an asyncio producer sends by."""
    return producer._producer


def is_awaited(holding: Holding, position: Position) -> bool:
    """Whether the thread of a server waits for this position."""
    return position in holding._awaited


def put_in_place_of_held(
    holding: Holding, kind: Callable[[dict[Position | None, set[Held]]], dict[Position | None, set[Held]]]
) -> None:
    """Have another kind of table hold the held pulls of a server. For its loop."""
    holding._held = kind(holding._held)


def lost_of(members: RemoteMembers) -> list[object]:
    """What a server remembers of members that were lost."""
    return list(members._lost.values())


def strangers_of(members: RemoteMembers) -> list[int]:
    """Of how many groups a server knows what their clients know, by connection."""
    return [len(known) for known in members._known.values()]
