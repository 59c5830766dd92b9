"""Name servers: any of them answers for the cluster.

Which one is asked first is chance, so that clients spread. It is kept until it fails; then the next one is
asked, within the same time limit.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from time import monotonic

from mq.errors import MQError, RemotingError, RequestTimeout
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody

__all__ = ["NameServers"]

log = logging.getLogger("mq.remoting")

ATTEMPT_SECONDS_MIN = 0.5


class NameServers:
    """Asked by coroutines of the loop, or by any other thread."""

    def __init__(self, remoting: Remoting, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._chosen = random.randrange(len(self.addresses))

    @property
    def chosen(self) -> str:
        """The one that is asked first."""
        return self.addresses[self._chosen]

    def call(self, request: Request, body: bytes | JsonBody = b"", timeout: float | None = None) -> Frame:
        """The answer, whatever its code. Raises RemotingError where no name server answers in time."""
        limit = self._remoting.options.timeout if timeout is None else timeout
        self._remoting.check_open()
        # The coroutine keeps the limit itself, and says what was tried.
        return self._remoting.events.wait_for(
            self.request(request, body, limit), limit + 1, f"asking {', '.join(self.addresses)}"
        )

    def call_all(self, request: Request, body: bytes | JsonBody = b"") -> dict[str, Frame | MQError]:
        """What each of them says: some requests change what is kept by all, like a deleted topic."""
        answers: dict[str, Frame | MQError] = {}
        for address in self.addresses:
            try:
                answers[address] = self._remoting.call(address, framed(request, body))
            except MQError as error:
                answers[address] = error
        return answers

    async def request(
        self, request: Request, body: bytes | JsonBody = b"", timeout: float | None = None
    ) -> Frame:
        """call() for coroutines of the loop."""
        limit = self._remoting.options.timeout if timeout is None else timeout
        deadline = monotonic() + limit
        failures = []
        first = self._chosen
        for attempt in range(len(self.addresses)):
            address = self.addresses[(first + attempt) % len(self.addresses)]
            others = len(self.addresses) - attempt - 1
            left = deadline - monotonic()
            share = left if not others else max(left / (others + 1), min(left, ATTEMPT_SECONDS_MIN))
            try:
                answer = await self._remoting.request(address, framed(request, body), share)
            except (RemotingError, RequestTimeout) as error:
                failures.append(str(error))
                log.info("the next name server is asked: %s", error)
            else:
                self._chosen = (first + attempt) % len(self.addresses)
                return answer
            if monotonic() >= deadline:
                break
        raise RemotingError(
            f"no name server answered {request.NAME} within {limit:g} s: {'; '.join(failures)}",
            address=";".join(self.addresses),
        )
