"""iceoryx2 publish-subscribe through its Python binding: shared memory, nothing durable; a receiver spins."""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.speed.peers.queue import Peer


class IceoryxPair:
    def __init__(self, directory: Path, body: bytes) -> None:
        self._body = body
        self._name = f"mq-speed{str(directory).replace('/', '-')}"

    def echo(self, count: int, ready: Callable[[], object]) -> None:
        node, subscriber, publisher = self._ends("there", "back")
        ready()  # Both services are made. Of two processes that make one at the same time, one may give up.
        receive, send, body = self._receiver(subscriber), self._sender(publisher), self._body
        ready()
        for _ in range(count):
            receive()
            send(body)
        # The other end may still be reading what lies in the memory of this one.
        ready()
        del node

    def ping(self, count: int, ready: Callable[[], object]) -> list[int]:
        ready()
        node, subscriber, publisher = self._ends("back", "there")
        receive, send, body = self._receiver(subscriber), self._sender(publisher), self._body
        now, times = time.perf_counter_ns, []
        ready()
        for _ in range(count):
            begin = now()
            send(body)
            receive()
            times.append(now() - begin)
        ready()
        del node
        return times

    def _ends(self, read_name: str, write_name: str) -> tuple[Any, Any, Any]:
        iceoryx2 = importlib.import_module("iceoryx2")
        iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)
        node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)

        def service(name: str) -> Any:
            builder = node.service_builder(iceoryx2.ServiceName.new(f"{self._name}-{name}"))
            return builder.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8]).open_or_create()

        subscriber = service(read_name).subscriber_builder().create()
        publisher = service(write_name).publisher_builder().initial_max_slice_len(len(self._body)).create()
        return node, subscriber, publisher

    @staticmethod
    def _sender(publisher: Any) -> Callable[[bytes], None]:
        loan, copy = publisher.loan_slice_uninit, ctypes.memmove

        def send(body: bytes) -> None:
            sample = loan(len(body))
            copy(sample.payload_ptr, body, len(body))
            sample.assume_init().send()

        return send

    def _receiver(self, subscriber: Any) -> Callable[[], bytes]:
        poll, copy_out, size = subscriber.receive, ctypes.string_at, len(self._body)

        def receive() -> bytes:
            while (sample := poll()) is None:
                pass
            return copy_out(sample.payload_ptr, size)

        return receive


PUBLISH_SUBSCRIBE = Peer("iceoryx2 publish-subscribe", "iceoryx2", "iceoryx2", IceoryxPair)
