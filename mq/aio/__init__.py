"""mq for asyncio: await producer.send(...), async for message in consumer, await consumer.run(listener).

    async with mq.aio.Producer(broker) as producer, mq.aio.Consumer(broker, "billing") as consumer:
        await producer.send(mq.Message("orders", b"..."))
        consumer.subscribe("orders", "paid")
        async for message in consumer:
            ...

The same rules and the same groups as without asyncio. What only touches memory is done on the loop, in
microseconds; what may wait for a disk is done elsewhere. One thread for each broker waits for all its
consumers. An object belongs to the loop that it is first used in.
"""

from __future__ import annotations

from mq.aio.consumer import Consumer
from mq.aio.producer import Producer

__all__ = ["Consumer", "Producer"]
