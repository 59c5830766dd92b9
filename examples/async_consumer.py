"""mq in an asyncio program: a task that sends, a loop over messages, a coroutine as a concurrent listener.

In the loop a message counts as consumed when the loop asks for the next one; with run(), when the coroutine
returns. If it raises, the message is retried, here after a second (delay level 1).
"""

import asyncio

import mq
import mq.aio


async def main() -> None:
    with mq.open("var/parcels") as broker:
        broker.create_topic("parcels")

        async with mq.aio.Producer(broker) as producer, mq.aio.Consumer(broker, "labels") as consumer:

            async def send() -> None:
                for number in range(100):
                    tag = "express" if number % 10 == 0 else "normal"
                    await producer.send(mq.Message("parcels", f"parcel {number}".encode(), tags=tag))

            sending = asyncio.create_task(send())
            consumer.subscribe("parcels", "express")
            labelled = 0
            async for _ in consumer:
                labelled += 1
                if labelled == 10:
                    consumer.commit()  # after a break the loop does not commit the last message
                    break
            await sending
            print(f"{labelled} express parcels have a label")

        delivered: dict[str, int] = {}  # in which attempt
        attempts = 0

        async def deliver(message: mq.MessageExt) -> None:
            nonlocal attempts
            attempts += 1
            await asyncio.sleep(0.001)  # on the road
            if message.body == b"parcel 7" and message.reconsume_times == 0:
                raise mq.Retry(delay_level=1)
            delivered[message.body.decode()] = message.reconsume_times + 1
            if len(delivered) == 100:
                await vans.close()

        vans = mq.aio.Consumer(broker, "vans")
        vans.subscribe("parcels")
        await vans.run(deliver, concurrency=20)
        print(f"100 parcels delivered in {attempts} attempts, parcel 7 in attempt {delivered['parcel 7']}")


asyncio.run(main())
