"""The producer of asyncio: what only touches memory is done at once, what may wait is waited for elsewhere.

Without a flush to wait for, a send takes about a microsecond, less than handing it to a thread would. Where
each message is flushed, messages go by the send buffer of a Producer, whose thread sends what came meanwhile
as one batch with one flush; so does whatever else a broker may wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mq.aio.executor import to_thread
from mq.api.broker import Broker, MessageQueue, Queue, SendResult
from mq.client import producer
from mq.message import Message

if TYPE_CHECKING:
    from typing_extensions import Self

YIELD_SECONDS = 0.001  # after so long other tasks have their turn
# What the send buffer takes without making its caller wait: so many messages, none of them too large.
OUTBOX_COUNT_MAX = producer.ASYNC_COUNT_MAX - 1
OUTBOX_BODY_MAX = producer.ASYNC_SIZE_MAX // producer.ASYNC_COUNT_MAX


class Producer:
    """Sends messages to a broker, for the tasks of one loop. The options are those of mq.Producer.

    A task that is cancelled while it waits for a send does not know whether the message was stored.
    """

    def __init__(self, broker: Broker, group: str = "DEFAULT_PRODUCER", **options: Any) -> None:
        self._producer = producer.Producer(broker, group, **options)
        self._waits = broker.may_wait
        self._room: asyncio.Semaphore | None = None
        self._yielded_at = monotonic()

    @property
    def group(self) -> str:
        return self._producer.group

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
        timeout: float | None = None,
        dedup_key: str | None = None,
        unique_id: str | None = None,
    ) -> SendResult:
        """Store a message, and return where: see mq.Producer.send."""
        if dedup_key is None and isinstance(message, Message) and not message.plain:
            dedup_key = message.dedup_key if self._producer.has_dedup_window else None
        if dedup_key is not None or unique_id is not None:
            # A sender that is just storing one under the same key is waited for.
            return await to_thread(
                self._producer.send,
                message,
                queue=queue,
                shard_key=shard_key,
                timeout=timeout,
                dedup_key=dedup_key,
                unique_id=unique_id,
            )
        if not self._waits:
            if monotonic() - self._yielded_at > YIELD_SECONDS:
                await self._let_others()
            return self._producer.send(message, queue=queue, shard_key=shard_key, timeout=timeout)
        if isinstance(message, Message) and len(message.body) > OUTBOX_BODY_MAX:
            return await to_thread(
                self._producer.send, message, queue=queue, shard_key=shard_key, timeout=timeout
            )
        if self._room is None:
            self._room = asyncio.Semaphore(OUTBOX_COUNT_MAX)
        async with self._room:
            future = self._producer.send_async(message, queue=queue, shard_key=shard_key, timeout=timeout)
            return await asyncio.wrap_future(future)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | Queue | None = None,
        shard_key: str | bytes | int | None = None,
    ) -> SendResult:
        """Store messages of one topic side by side in one queue, all or none: see mq.Producer.send_batch."""
        batch = list(messages)
        if self._waits:
            return await to_thread(self._producer.send_batch, batch, queue=queue, shard_key=shard_key)
        await self._let_others()
        return self._producer.send_batch(batch, queue=queue, shard_key=shard_key)

    async def close(self) -> None:
        """Wait until what was taken is sent, and send nothing more. The broker stays open."""
        if self._waits:
            await to_thread(self._producer.close)
        else:
            self._producer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.{self._producer!r}"

    async def _let_others(self) -> None:
        await asyncio.sleep(0)
        self._yielded_at = monotonic()
