"""A store with timer messages, the engine that delivers them, and a clock that is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mq.message import MessageExt
from mq.store.log.reappend import Copies
from mq.store.native import check, ffi, lib
from mq.store.store import Store
from mq.store.timer.engine import Event, TimerEngine, rolls_of
from mq.store.timer.progress import TimerProgress

TOPIC = "rmq_sys_wheel_timer"
STEPS_MAX = 10_000
BEGIN_MS = 1_700_000_000_000
SMALL: dict[str, Any] = {
    "commitlog_file_size": 1 << 20,
    "queue_file_units": 512,
    "index_slot_count": 101,
    "index_unit_count": 40_000,
}


class Bench:
    """One store, whose timer messages go to orders/0. The test moves now_ms."""

    def __init__(
        self,
        root: Path,
        *,
        precision_ms: int = 1000,
        roll_ms: int | None = None,
        file_size: int = 1 << 20,
        now_ms: int = BEGIN_MS,
        **options: Any,
    ) -> None:
        self.root = root
        self.precision_ms = precision_ms
        self.roll_ms = roll_ms
        self.file_size = file_size
        self.now_ms = now_ms
        self.last_store_ms = 0  # by the same clock
        self.options = {**SMALL, **options}
        self.store = Store(root, **self.options)
        self.copies = Copies(self.store)
        self.asked: list[str] = []
        self.lost: list[int] = []
        self.seen = 0
        self._sent = 0
        self._progress: TimerProgress | None = None
        self._engine: TimerEngine | None = None

    @property
    def progress(self) -> TimerProgress:
        if self._progress is None:
            self._progress = TimerProgress(self.root, self.copies.epoch())
        return self._progress

    @property
    def engine(self) -> TimerEngine:
        if self._engine is None:
            number = self.copies.number(TOPIC, 0, add=True)
            assert number is not None
            self._engine = TimerEngine(
                self.store,
                self.progress,
                number,
                self.precision_ms,
                roll_ms=self.roll_ms,
                file_size=self.file_size,
                now_ms=self.now_ms,
                last_store_ms=self.last_store_ms,
            )
        return self._engine

    def put_aside(self, due_ms: int, body: bytes = b"", **properties: str | int) -> str:
        """Store a timer message as a broker does; its unique id."""
        self._sent += 1
        unique_id = f"{self._sent:032X}"
        self.append(
            body or b"%d" % self._sent,
            **{
                "TIMER_DELIVER_MS": due_ms,
                "TIMER_OUT_MS": (due_ms - 1) // self.precision_ms * self.precision_ms,
                "REAL_TOPIC": "orders",
                "REAL_QID": 0,
                "UNIQ_KEY": unique_id,
                **properties,
            },
        )
        return unique_id

    def recall(self, unique_id: str, due_ms: int) -> None:
        out_ms = (due_ms - 1) // self.precision_ms * self.precision_ms
        self.append(
            b"0",
            TAGS="_RECALL_TAG_",
            UNIQ_KEY=unique_id,
            TIMER_DEL_UNIQKEY=f"orders+{unique_id}",
            TIMER_DELIVER_MS=due_ms,
            TIMER_OUT_MS=out_ms,
            REAL_TOPIC="orders",
            REAL_QID=0,
        )

    def append(self, body: bytes, **properties: str | int) -> None:
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
        number = self.copies.number(TOPIC, 0, add=True)
        result = lib.mq_append(
            self.store.live(), number, -1, 0, 0, body, len(body), encoded, len(encoded), ffi.NULL, ffi.NULL,
            ffi.new("mq_receipt *"),
        )  # fmt: skip
        check(result)
        self.last_store_ms = max(self.last_store_ms, self.now_ms)

    def turn(self, *, deliveries: int | None = None) -> int:
        """Have all done that is to be done by now, or so many steps of it; when there will be more."""
        engine = self.engine
        steps = 0
        while deliveries is None or steps < deliveries:
            assert steps < STEPS_MAX, "it never comes to rest"
            event = engine.step(self.now_ms, 512 if deliveries is None else 1)
            steps += 1
            if event is None:
                continue
            if event.kind == lib.MQ_TIMER_IDLE:
                return event.next_ms
            self.handle(event)
        return self.now_ms

    def handle(self, event: Event) -> None:
        engine = self.engine
        if event.kind == engine.LOST:
            self.lost.append(event.log_offset)
            return
        message = engine.record(event.log_offset)
        assert message is not None
        if event.kind == engine.ASK:
            self.asked.append(message.msg_id)
            topic = TOPIC if event.is_rolled else "orders"
            rolls = rolls_of(message) if event.is_rolled else -1
            engine.answer(engine.was_stored(topic, message, rolls))
        else:
            assert event.kind == engine.PLACE
            number = self.copies.number(
                message.properties["REAL_TOPIC"], int(message.properties["REAL_QID"]), add=True
            )
            assert number is not None
            engine.place(number)

    def delivered(self) -> Iterator[MessageExt]:
        """What came since the last call."""
        number = self.copies.number("orders", 0, add=False)
        if number is None:
            return
        out = ffi.new("int64_t *"), ffi.new("int32_t *"), ffi.new("int64_t *")
        while self.seen < self.copies.next_offset(number):
            check(lib.mq_queue_unit(self.store.live(), number, self.seen, *out))
            self.seen += 1
            message = self.engine.record(out[0][0])
            assert message is not None
            yield message

    def take_over(self) -> None:
        """Another process becomes the leader, without a handover."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def close(self, *, last: bool = True) -> None:
        if self._engine is not None:
            if last:
                self._engine.save(last=True, now_ms=self.now_ms)
            self._engine.close()
            self._engine = None
        if self._progress is not None:
            self._progress = None
        self.store.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close(last=False)

    def reopen(self, *, last: bool = True, forget: bool = False) -> None:
        """Close, and open again; forget: as after a reboot, or when a RocketMQ broker was here."""
        self.close(last=last)
        self.reopen_closed(forget=forget)

    def reopen_closed(self, *, forget: bool = False) -> None:
        if forget:
            (self.root / "mq" / "control").unlink()
        self.store = Store(self.root, **self.options)
        self.copies = Copies(self.store)
