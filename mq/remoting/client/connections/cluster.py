"""A client's cache of a cluster: the routes of its topics, and the addresses of the brokers in them.

A route is fetched when it is first needed, every 30 s while the topic is in use, and at once by refresh(). A
route that was not used for 10 minutes is dropped; the next use fetches it. Threads that need the same route
wait for the same request. If no name server answers, the cache stays unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic

from mq.errors import MQError, RequestTimeout
from mq.remoting.client.connections.answers import body_of, checked
from mq.remoting.client.connections.name_servers import NameServers
from mq.remoting.client.connections.remoting import LATE_SECONDS, Remoting
from mq.remoting.codec.bodies.route import MASTER_ID, BrokerAddresses, ClusterInfo, TopicRoute
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.requests.name_servers import GetClusterInfo, GetRoute
from mq.remoting.codec.response_codes import ResponseCode

__all__ = ["Cluster"]

log = logging.getLogger("mq.remoting")

REFRESH_SECONDS = 30.0
UNUSED_SECONDS = 600.0  # after this time without a use, a topic is no longer refreshed
Changed = Callable[[str, TopicRoute | None], object]


class Cluster:
    """The event loop calls each function in `changed` with a topic and its new route, or None without a
    route."""

    def __init__(
        self, remoting: Remoting, name_servers: NameServers, refresh_seconds: float | None = None
    ) -> None:
        self.changed: list[Changed] = []
        self._remoting = remoting
        self._name_servers = name_servers
        self._refresh_seconds = REFRESH_SECONDS if refresh_seconds is None else refresh_seconds
        self._routes: dict[str, TopicRoute] = {}
        self.keeps_all: Callable[[], bool] = lambda: False  # whether brokers in no route are needed, too
        self._needed_at: dict[str, float] = {}
        self._used: set[str] = set()  # the topics used since the last refresh
        self._asking: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._brokers: dict[str, BrokerAddresses] = {}
        self._newest: dict[str, BrokerAddresses] = {}  # as the last answer had them; routes differ in age
        self._others: dict[str, BrokerAddresses] = {}  # those that everything() found
        self._is_failing = False
        self._refreshing: asyncio.Task[None] | None = None
        self._learning: set[asyncio.Task[None]] = set()
        remoting.events.post(self._start)

    def route(self, topic: str, timeout: float | None = None) -> TopicRoute | None:
        """The route of a topic; None if it has none. Raises RemotingError if no name server answers, and
        RequestTimeout if there is no answer within `timeout` seconds; others that wait go on."""
        self._needed_at[topic] = monotonic()
        route = self._routes.get(topic)
        return route if route is not None else self.refresh(topic, timeout)

    def refresh(self, topic: str, timeout: float | None = None) -> TopicRoute | None:
        """The current route, from a name server. Must not be called by the loop's own thread."""
        self._needed_at[topic] = monotonic()
        self._remoting.check_open()
        # The question has its own limit, and its error lists the attempts.
        return self._remoting.events.wait_for(
            self.fresh(topic),
            self._remoting.options.timeout + LATE_SECONDS if timeout is None else timeout,
            f"asking {self.name_servers} for the route of topic {topic!r}",
            self.name_servers,
        )

    async def fresh(self, topic: str) -> TopicRoute | None:
        """refresh() for coroutines of the loop."""
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.ensure_future(self._ask(topic))
            asking.add_done_callback(partial(self._asked, topic))
        return await asyncio.shield(asking)

    def _asked(self, topic: str, asking: asyncio.Task[TopicRoute | None]) -> None:
        self._asking.pop(topic, None)
        if not asking.cancelled():
            asking.exception()  # asyncio logs an error that nobody reads, and all callers may have timed out.

    def use(self, topic: str) -> None:
        """Keep the topic's route fresh for another 10 minutes. Cheap enough for each send and each pull."""
        self._used.add(topic)

    def forget(self, topic: str) -> None:
        """Stop refreshing the topic."""
        self._needed_at.pop(topic, None)
        self._routes.pop(topic, None)
        self._gather()

    @property
    def name_servers(self) -> str:
        """The addresses of the name servers, separated by ;."""
        return ";".join(self._name_servers.addresses)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics with a known route."""
        return tuple(self._routes)

    @property
    def brokers(self) -> dict[str, BrokerAddresses]:
        """The brokers in the known routes, by name."""
        return dict(self._brokers)

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of a broker's master, or of the slave with this id."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.broker_addrs.get(broker_id)

    def any_address(self, broker_name: str) -> str | None:
        """The address of a broker's master, or without a master, of the slave with the lowest id."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.broker_addrs:
            return None
        return broker.broker_addrs[min(broker.broker_addrs)]

    def everything(self) -> ClusterInfo:
        """All brokers, in known routes or not. Asks a name server."""
        return self._learn(self._name_servers.call(GetClusterInfo()))

    def find_all(self, found: Callable[[], object]) -> None:
        """Ask a name server for all brokers without waiting; the loop then calls `found`. An error is
        logged."""
        self._remoting.events.post(self._start_finding, found)

    def _start_finding(self, found: Callable[[], object]) -> None:
        task = asyncio.ensure_future(self._find_all(found))
        self._learning.add(task)
        task.add_done_callback(self._learning.discard)

    async def _find_all(self, found: Callable[[], object]) -> None:
        try:
            await self._fetch_all()
        except MQError as error:
            log.warning("the brokers of the cluster are not known yet: %s", error)
        else:
            found()

    async def _fetch_all(self) -> None:
        self._learn(await self._name_servers.request(GetClusterInfo()))

    def _learn(self, answer: Frame) -> ClusterInfo:
        checked(answer, GetClusterInfo, self._name_servers.chosen)
        info = body_of(ClusterInfo, answer)
        self._others = info.broker_addr_table
        self._newest.update(self._others)
        self._gather()
        return info

    async def _ask(self, topic: str) -> TopicRoute | None:
        request = GetRoute(topic, accept_standard_json_only=True)
        answer = await self._name_servers.request(request)
        found: TopicRoute | None = None
        if answer.code != ResponseCode.TOPIC_NOT_EXIST:
            checked(answer, GetRoute, self._name_servers.chosen)
            found = body_of(TopicRoute, answer)
        self._keep(topic, found)
        return found

    def _keep(self, topic: str, route: TopicRoute | None) -> None:
        told = {broker.broker_name: broker for broker in route.broker_datas} if route is not None else {}
        self._newest.update(told)
        if self._routes.get(topic) == route:
            if any(self._brokers.get(name) != broker for name, broker in told.items()):
                self._gather()
            return
        if route is None:
            self._routes.pop(topic, None)  # Another thread may have forgotten it meanwhile.
        else:
            self._routes[topic] = route
        self._gather()
        for changed in self.changed:
            changed(topic, route)

    def _gather(self) -> None:
        """Collect the brokers in all routes, and those that everything() found."""
        self._brokers = {
            **self._others,
            **{
                broker.broker_name: self._newest.get(broker.broker_name, broker)
                for route in list(self._routes.values())
                for broker in route.broker_datas
            },
        }

    def _start(self) -> None:
        self._refreshing = asyncio.ensure_future(self._refresh_all())

    async def _refresh_all(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_seconds)
            self._drop_unused()
            failure: Exception | None = None
            rounds: list[Callable[[], Awaitable[object]]] = [self._fetch_all] if self.keeps_all() else []
            rounds += [partial(self.fresh, topic) for topic in list(self._needed_at)]
            for refresh in rounds:
                try:
                    await refresh()
                except Exception as error:  # noqa: BLE001 - who would know that the task ended?
                    failure = error
                    if isinstance(error, RequestTimeout):
                        break  # No name server answers.
            if failure is not None:
                # Log one warning; the next round retries.
                log.log(
                    logging.DEBUG if self._is_failing else logging.WARNING,
                    "routes stay as they are: %s",
                    failure,
                )
            self._is_failing = failure is not None

    def _drop_unused(self) -> None:
        now = monotonic()
        for topic in list(self._used):
            self._used.discard(topic)
            self._needed_at[topic] = now
        for topic, needed_at in list(self._needed_at.items()):
            if needed_at < now - UNUSED_SECONDS:
                self.forget(topic)
                for changed in self.changed:  # The next user fetches the route and trusts no old one.
                    changed(topic, None)
