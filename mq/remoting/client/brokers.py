"""Requests to brokers by name: the address of a broker, and its answer or its error as an exception."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mq.errors import MQError, RemotingError
from mq.remoting.client.broker_errors import translated
from mq.remoting.client.connections.answers import SUCCESS_ONLY, checked, fields_of, framed
from mq.remoting.client.connections.cluster import Cluster
from mq.remoting.client.connections.connection import Answered
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import JsonBody
from mq.remoting.codec.requests.offsets import OffsetAnswer
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["Brokers"]


class Brokers:
    """The brokers of a cluster, over the connections of one client."""

    def __init__(self, remoting: Remoting, cluster: Cluster) -> None:
        self.remoting: Final = remoting
        self.cluster: Final = cluster

    def master(self, broker_name: str) -> str:
        """The master's address. Raises RemotingError if the broker has no master now."""
        self._learn(broker_name)
        return self._known(broker_name, self.cluster.address(broker_name), "master")

    def address(self, broker_name: str) -> str:
        """The address for reads: the master's, or a slave's while there is no master. Raises
        RemotingError."""
        self._learn(broker_name)
        return self._known(broker_name, self.cluster.any_address(broker_name), "address")

    def _learn(self, broker_name: str) -> None:
        """Find the addresses of a broker that is in no known route, for a queue that the caller got
        elsewhere."""
        if not self.remoting.events.is_current and self.cluster.any_address(broker_name) is None:
            self.cluster.everything()

    def _known(self, broker_name: str, address: str | None, what: str) -> str:
        if address is None:
            known = ", ".join(sorted(self.cluster.brokers)) or "none"
            asked = self.cluster.name_servers
            raise RemotingError(
                f"broker {broker_name!r} has no {what} now; the brokers known are: {known}; asked was the"
                f" name server at {asked}",
                address=asked,
            )
        return address

    def ask(
        self,
        broker_name: str,
        request: Request,
        body: bytes | JsonBody = b"",
        *,
        timeout: float | None = None,
        also: Collection[int] = SUCCESS_ONLY,
        only_master: bool = False,
    ) -> Frame:
        """The answer of a broker, or of its slave while the master is down, if its code is SUCCESS or one of
        `also`. Raises RemotingError, or the subclass for its code (broker_errors.py), and RequestTimeout."""
        address = self.master(broker_name) if only_master else self.address(broker_name)
        answer = self.remoting.call(address, framed(request, body), timeout)
        try:
            return checked(answer, type(request), address, also)
        except RemotingError as error:
            raise translated(error) from None

    def ask_first(
        self,
        broker_names: Collection[str],
        request: Request,
        body: bytes | JsonBody = b"",
        *,
        also: Collection[int] = SUCCESS_ONLY,
    ) -> Frame:
        """The answer of the first broker that gives one. Raises the error of the last one if all fail."""
        asked = self.cluster.name_servers
        failure: MQError = RemotingError(
            f"there is no broker to be asked for {request.NAME}; the name server is at {asked}", address=asked
        )
        for name in broker_names:
            try:
                return self.ask(name, request, body, also=also)
            except MQError as error:
                failure = error
        raise failure

    def names(self) -> list[str]:
        """The names of all brokers, also of those that have only slaves now. Asks a name server."""
        found = self.cluster.everything().broker_addr_table
        return sorted(name for name, broker in found.items() if broker.broker_addrs)

    def masters(self, needed: Collection[str] | None = None) -> list[str]:
        """The names of all brokers with a master, for a change of each. Asks a name server. Raises
        RemotingError if one of `needed`, which are all by default, has none, or if there is no master."""
        names = self.names()
        found = [name for name in names if self.cluster.address(name) is not None]
        for name in names if needed is None else sorted(needed):
            self._known(name, self.cluster.address(name), "master")
        if not found:
            asked = self.cluster.name_servers
            raise RemotingError(
                f"no broker has a master now; the brokers known are: {', '.join(names) or 'none'}; asked was"
                f" the name server at {asked}",
                address=asked,
            )
        return found

    def cluster_names(self) -> set[str]:
        """The names of the clusters. Each broker has a topic of its cluster's name."""
        return set(self.cluster.everything().cluster_addr_table)

    def offset(self, broker_name: str, request: Request) -> int:
        """The offset in a broker's answer."""
        return fields_of(OffsetAnswer, self.ask(broker_name, request)).offset

    def offset_or_none(self, broker_name: str, request: Request) -> int | None:
        """The offset in a broker's answer; None if the broker has none."""
        answer = self.ask(broker_name, request, also=(ResponseCode.QUERY_NOT_FOUND,))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return fields_of(OffsetAnswer, answer).offset

    def send_oneway(self, broker_name: str, request: Request, body: bytes | JsonBody = b"") -> None:
        """Send a oneway request to the master; dropped if there is none in a route now. Thread-safe."""
        address = self.cluster.address(broker_name)
        if address is not None:
            self.remoting.oneway(address, framed(request, body))

    def ask_async(self, broker_name: str, request: Request, answered: Answered) -> bool:
        """Send a request; the loop calls `answered` with the answer or the error. False, and nothing is sent,
        if the broker is in no route now. Thread-safe."""
        address = self.cluster.any_address(broker_name)
        if address is None:
            return False
        self.remoting.call_async(address, framed(request), answered)
        return True
