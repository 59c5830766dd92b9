"""Name servers: each of them knows the whole cluster.

The first one is chosen at random, which spreads the clients. It is used until it fails; then the next one is
asked, within the same time limit.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from time import monotonic

from mq.errors import MQError, RemotingError, RequestTimeout
from mq.remoting.client.connections.answers import framed
from mq.remoting.client.connections.remoting import LATE_SECONDS, Remoting
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody

__all__ = ["NameServers"]

log = logging.getLogger("mq.remoting")

ATTEMPT_SECONDS_MIN = 0.5


class NameServers:
    """The name servers of a cluster. Callable from coroutines of the loop and from any other thread."""

    def __init__(self, remoting: Remoting, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._remoting = remoting
        self._chosen = random.randrange(len(self.addresses))

    @property
    def chosen(self) -> str:
        """The name server that is asked first."""
        return self.addresses[self._chosen]

    def call(self, request: Request, body: bytes | JsonBody = b"", timeout: float | None = None) -> Frame:
        """The answer, whatever its code. Raises RemotingError if no name server answers in time."""
        limit = self._remoting.options.timeout if timeout is None else timeout
        self._remoting.check_open()
        # The coroutine applies the limit itself, and its error lists the attempts.
        return self._remoting.events.wait_for(
            self.request(request, body, limit),
            limit + LATE_SECONDS,
            f"asking {', '.join(self.addresses)} for {request.NAME}",
            ";".join(self.addresses),
        )

    def call_all(self, request: Request, body: bytes | JsonBody = b"") -> dict[str, Frame | MQError]:
        """The answer of each name server, for requests that change the state of all, such as a deleted
        topic."""
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
                log.info("trying the next name server: %s", error)
            else:
                self._chosen = (first + attempt) % len(self.addresses)
                return answer
            if monotonic() >= deadline:
                break
        raise RemotingError(
            f"no name server answered {request.NAME} within {limit:g} s: {'; '.join(failures)}",
            address=";".join(self.addresses),
        )
