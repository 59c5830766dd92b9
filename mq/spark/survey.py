"""What the driver sees of a store: queues that are meant, what they have, where reading begins and ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mq.broker.protocol import Broker
from mq.broker.results import MessageQueue, PullStatus
from mq.errors import NotPermitted, StoreCorrupted, TopicNotFound
from mq.message import MessageExt
from mq.names import is_system_topic
from mq.spark.ledger import TOPIC as LEDGER
from mq.spark.offsets import EARLIEST, LATEST, Offset, Witness
from mq.spark.options import Bound, SourceOptions
from mq.spark.ranges import Limits, Loss, Positions
from mq.spark.refusal import Refusal, nearest

__all__ = ["Survey", "refuse_losses"]

INTERNAL_PREFIXES = ("%RETRY%", "%DLQ%")
LOSSES_SHOWN = 3
ONE_MESSAGE = 1 << 20


class Survey:
    """Looks at the queues of one broker, for the options of one source."""

    def __init__(self, broker: Broker, options: SourceOptions) -> None:
        self._broker = broker
        self._options = options

    def queues(self, *, gone_is_fine: bool = False) -> list[MessageQueue]:
        """The queues that the options name, as they are now. Raises Refusal for one that is not there, unless
        what is gone is fine: a query that runs judges that by its offsets."""
        options = self._options
        found: list[MessageQueue] = []
        for topic in options.topics or options.assigned or self._matching():
            try:
                queues = self._broker.readable(topic)
            except TopicNotFound:
                if gone_is_fine or options.pattern is not None:
                    continue
                raise Refusal(
                    "MQ_TOPIC",
                    f"there is no topic {topic!r} in {options.path}{nearest(topic, self._broker.topics())}",
                ) from None
            except NotPermitted as error:
                raise Refusal("MQ_TOPIC", f"topic {topic} cannot be read: {error}") from None
            if topic in options.assigned:
                queues = self._assigned(queues, options.assigned[topic], gone_is_fine)
            found += queues
        return sorted(found)

    def _matching(self) -> list[str]:
        assert self._options.pattern is not None
        pattern = re.compile(self._options.pattern)
        return [
            topic
            for topic in self._broker.topics()
            if pattern.fullmatch(topic)
            and topic != LEDGER
            and not is_system_topic(topic)
            and not topic.startswith(INTERNAL_PREFIXES)
        ]

    def _assigned(
        self, queues: Iterable[MessageQueue], ids: tuple[int, ...], gone_is_fine: bool
    ) -> list[MessageQueue]:
        there = {queue.queue_id: queue for queue in queues}
        missing = [queue_id for queue_id in ids if queue_id not in there]
        if missing and not gone_is_fine:
            topic = next(iter(there.values())).topic if there else "?"
            raise Refusal(
                "MQ_OPTION", f"option assign: topic {topic} has the queues {sorted(there)}, and not {missing}"
            )
        return [there[queue_id] for queue_id in ids if queue_id in there]

    def limits(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Limits]:
        found = {}
        for queue in queues:
            # The end first: retention may take everything in between.
            end = self._broker.max_offset(queue)
            oldest = self._broker.min_offset(queue)
            found[queue] = Limits(min(oldest, max(end, oldest)), max(end, oldest))
        return found

    def resolve(self, bound: Bound, limits: Mapping[MessageQueue, Limits]) -> Positions:
        """The offsets that a bound names, which a queue need not have."""
        if bound.kind in {"offsets", "times"}:
            self._check_places(bound, limits)
        return {queue: self._place(bound, queue, limit) for queue, limit in limits.items()}

    def _place(self, bound: Bound, queue: MessageQueue, limit: Limits) -> int:
        if bound.kind == "earliest":
            return limit.oldest
        if bound.kind == "latest":
            return limit.end
        if bound.kind == "group":
            assert self._options.group is not None
            committed = self._broker.committed(self._options.group, queue)
            return limit.oldest if committed is None else committed
        if bound.kind == "offsets":
            offset = bound.places[queue.topic][queue.queue_id]
            return {LATEST: limit.end, EARLIEST: limit.oldest}.get(offset, offset)
        time_ms = bound.time_ms if bound.kind == "time" else bound.places[queue.topic][queue.queue_id]
        offset = max(limit.oldest, min(self._broker.offset_at(queue, time_ms), limit.end))
        if offset == limit.end and bound is self._options.start and self._options.late_start == "error":
            raise Refusal(
                "MQ_OPTION",
                f"option {bound.option}: queue {queue.queue_id} of topic {queue.topic} has no message"
                f" from {time_ms} or later; startingOffsetsByTimestampStrategy=latest would begin at its end",
            )
        return offset

    def _check_places(self, bound: Bound, limits: Mapping[MessageQueue, Limits]) -> None:
        there = {(queue.topic, queue.queue_id) for queue in limits}
        named = {(topic, queue_id) for topic, queues in bound.places.items() for queue_id in queues}
        for what, queues in (("names", named - there), ("leaves out", there - named)):
            if queues:
                shown = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in sorted(queues)[:5])
                raise Refusal(
                    "MQ_OPTION",
                    f"option {bound.option} {what} {shown}: it must name the queues that are read, no others",
                )

    # Which message was read, and whether it still is that one.

    def offset(self, positions: Positions, begin: Positions, witnesses: Mapping[str, Witness]) -> Offset:
        """Positions with a witness of each topic: a new one where they are beyond `begin`, else the old."""
        newest = {queue.topic: queue for queue, end in sorted(positions.items()) if end > begin.get(queue, 0)}
        found = {queue.topic: witnesses[queue.topic] for queue in positions if queue.topic in witnesses}
        for topic, queue in newest.items():
            message = self._message(queue, positions[queue] - 1)
            if message is not None:
                found[topic] = Witness(
                    queue.queue_id, message.queue_offset, message.log_offset, message.store_time_ms
                )
        return Offset(positions, found)

    def remade(self, offset: Offset, limits: Mapping[MessageQueue, Limits]) -> set[str]:
        """Topics that have another message now where one was read before."""
        by_name = {(queue.topic, queue.queue_id): queue for queue in limits}
        found = set()
        for topic, witness in offset.witnesses.items():
            queue = by_name.get((topic, witness.queue_id))
            if queue is None or limits[queue].oldest > witness.queue_offset:
                continue  # Gone, or too old to be asked.
            end = limits[queue].end
            if end <= witness.queue_offset:
                # Nothing stands there: a topic made again has its messages later in the log, a store that was
                # restored from a backup has them earlier.
                newest = self._message(queue, end - 1) if end > limits[queue].oldest else None
                is_other = newest is not None and newest.log_offset > witness.log_offset
            else:
                message = self._message(queue, witness.queue_offset)
                is_other = message is not None and (
                    message.log_offset != witness.log_offset or message.store_time_ms != witness.store_time_ms
                )
            if is_other:
                found.add(topic)
        return found

    def _message(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        try:
            result = self._broker.pull(queue, offset, 1, ONE_MESSAGE, None, 0.0)
        except StoreCorrupted:
            return None
        if result.status is not PullStatus.FOUND or result.messages[0].queue_offset != offset:
            return None
        return result.messages[0]


def refuse_losses(losses: list[Loss]) -> None:
    """Raises Refusal if there are any."""
    if losses:
        more = f", and {len(losses) - LOSSES_SHOWN} more queues" if len(losses) > LOSSES_SHOWN else ""
        raise Refusal(
            "MQ_DATA_LOSS",
            f"{'; '.join(map(str, losses[:LOSSES_SHOWN]))}{more}. With option failOnDataLoss=false the"
            " query goes on without what is lost",
        )
