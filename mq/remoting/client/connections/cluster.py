"""What a client knows of a cluster: the routes of its topics, and the addresses of the brokers in them.

A route is asked for when it is first needed, again every 30 s as long as the topic is in use, and at once by
refresh(). Several threads that need the same one wait for the same request. A name server that does not
answer leaves everything as it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from mq.errors import MQError
from mq.remoting.client.connections.answers import checked
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.remoting import Remoting
from mq.remoting.codec.bodies.route import MASTER_ID, BrokerAddresses, ClusterInfo, TopicRoute
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.requests.name_servers import GetClusterInfo, GetRoute
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["Cluster"]

log = logging.getLogger("mq.remoting")

REFRESH_SECONDS = 30.0
UNUSED_SECONDS = 600.0  # after which a topic that nobody asked for is not refreshed any more
Changed = Callable[[str, TopicRoute | None], object]


class Cluster:
    """`changed` are called by the loop with a topic and its route, None for none, when it is another."""

    def __init__(
        self, remoting: Remoting, name_servers: NameServers, refresh_seconds: float = REFRESH_SECONDS
    ) -> None:
        self.changed: list[Changed] = []
        self._remoting = remoting
        self._name_servers = name_servers
        self._refresh_seconds = refresh_seconds
        self._routes: dict[str, TopicRoute] = {}
        self._needed_at: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._brokers: dict[str, BrokerAddresses] = {}
        self._others: dict[str, BrokerAddresses] = {}  # those that everything() found
        self._is_failing = False
        self._refreshing: asyncio.Task[None] | None = None
        remoting.events.post(self._start)

    def route(self, topic: str, timeout: float | None = None) -> TopicRoute | None:
        """Where the topic is, None for nowhere. Raises RemotingError where no name server answers."""
        self._needed_at[topic] = monotonic()
        route = self._routes.get(topic)
        return route if route is not None else self.refresh(topic, timeout)

    def refresh(self, topic: str, timeout: float | None = None) -> TopicRoute | None:
        """The route as it is now. Not for the loop's own thread."""
        self._needed_at[topic] = monotonic()
        self._remoting.check_open()
        limit = self._remoting.options.timeout if timeout is None else timeout
        return self._remoting.events.wait_for(
            self.fresh(topic), limit + 1, f"asking for the route of topic {topic!r}"
        )

    async def fresh(self, topic: str) -> TopicRoute | None:
        """refresh() for coroutines of the loop."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.ensure_future(self._ask(topic))
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        return await asyncio.shield(asking)

    def forget(self, topic: str) -> None:
        """It is not refreshed any more."""
        self._needed_at.pop(topic, None)
        self._routes.pop(topic, None)
        self._gather()

    @property
    def topics(self) -> tuple[str, ...]:
        """Those with a route."""
        return tuple(self._routes)

    @property
    def brokers(self) -> dict[str, BrokerAddresses]:
        """Those in the routes, by name."""
        return dict(self._brokers)

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Where a broker is: its master, or the slave with this id."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.broker_addrs.get(broker_id)

    def any_address(self, broker_name: str) -> str | None:
        """Its master, or, where there is none, the slave with the lowest id."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.broker_addrs:
            return None
        return broker.broker_addrs[min(broker.broker_addrs)]

    def everything(self) -> ClusterInfo:
        """All brokers there are, in routes or not. Asks a name server."""
        answer = checked(self._name_servers.call(GetClusterInfo()), GetClusterInfo, self._name_servers.chosen)
        info = from_json(ClusterInfo, answer.body)
        self._others = info.broker_addr_table
        self._gather()
        return info

    async def _ask(self, topic: str) -> TopicRoute | None:
        request = GetRoute(topic, accept_standard_json_only=True)
        answer = await self._name_servers.request(request)
        found: TopicRoute | None = None
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            checked(answer, GetRoute, self._name_servers.chosen)
            found = from_json(TopicRoute, answer.body)
        self._keep(topic, found)
        return found

    def _keep(self, topic: str, route: TopicRoute | None) -> None:
        if self._routes.get(topic) == route:
            return
        if route is None:
            del self._routes[topic]
        else:
            self._routes[topic] = route
        self._gather()
        for changed in self.changed:
            changed(topic, route)

    def _gather(self) -> None:
        """The brokers in all routes, and others that were found."""
        self._brokers = {
            **self._others,
            **{
                broker.broker_name: broker
                for route in list(self._routes.values())
                for broker in route.broker_datas
            },
        }

    def _start(self) -> None:
        self._refreshing = asyncio.ensure_future(self._refresh_all())

    async def _refresh_all(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            unused = monotonic() - UNUSED_SECONDS
            for topic, needed_at in list(self._needed_at.items()):
                if needed_at < unused:
                    self.forget(topic)
                    continue
                try:
                    await self.fresh(topic)
                except MQError as error:
                    # All topics fail alike: one warning, and the next round tries again.
                    log.log(
                        logging.DEBUG if self._is_failing else logging.WARNING,
                        "routes stay as they are: %s",
                        error,
                    )
                    self._is_failing = True
                    break
                self._is_failing = False
