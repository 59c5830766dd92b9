"""The main job: replay a change history through one directory, or a cluster, to two consumer groups.

    python examples/replay.py                              the history of the checkout you are in
    python examples/replay.py --git ~/src/linux            of another checkout
    python examples/replay.py --input changes.jsonl.gz     recorded events, one JSON object a line
    python examples/replay.py --cluster 10.0.0.5:9876      through an Apache RocketMQ cluster

An event is the change of one file by one commit. Two producer processes divide the paths and send the events
to a topic of 8 queues, sharded by path; the data about the file are properties of the message. Meanwhile two
consumer groups of three processes each consume: `in-order` consumes every event, those of a path in sequence;
`selected` consumes the events that match an SQL expression over the properties. During the run one process of
each group is killed while it handles a message, and another one joins.

Every process appends what it consumes to its group's file, so the work of a killed process is known. At the
end the files are compared with the input: every event of the group and no other, with the same totals; those
of a path in order; and no redelivery except of messages that the killed process had not committed. Exit
status 1 if anything differs. On a cluster there may be other redeliveries, and `./run cluster` kills and
restarts one of its brokers meanwhile: each queue waits for its broker.
"""

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table

import mq

TOPIC = "changes"
QUEUE_COUNT = 8
PRODUCER_COUNT = 2
CONSUMER_COUNT = 3  # of each group; one more joins when the first one is killed
REPORT_INTERVAL = 0.1
STALLED_AFTER = 30.0  # seconds without progress
STALLED_AFTER_ON_CLUSTER = 180.0  # A broker keeps the queue locks of a killed member for 60 s.
BROKER_AWAY_MAX = 120.0  # seconds for which a send waits for a broker to come back
ANSWER_MAX = 15.0  # seconds: a broker takes its time for the first topics and groups after its start
SCHEME = "rocketmq://"

KINDS = {
    "code": "c cc cpp cs go h hpp java js kt pl proto py pyi rb rs scala sql thrift ts",
    "text": "adoc html markdown md po rst tex txt",
    "config": "cfg conf gradle ini json properties toml xml yaml yml",
    "script": "bash bat bazel bzl cmd ps1 sh",
}
KIND_OF_EXT = {ext: kind for kind, exts in KINDS.items() for ext in exts.split()}


@dataclass(frozen=True, slots=True)
class Plan:
    """One consumer group: its subscription, and the same condition in Python for the expected result."""

    group: str
    ordered: bool
    sql: str | None
    wants: Callable[[dict[str, Any]], bool]


IN_ORDER = Plan("in-order", True, None, lambda _: True)
# A binary file has no count of lines: its property is missing, the comparison unknown, and it is left out.
SELECTED = Plan(
    "selected",
    False,
    "added >= 2 AND module NOT IN ('root', 'docs')",
    lambda event: (event["added"] or 0) >= 2 and event["module"] not in {"root", "docs"},
)
PLANS = (IN_ORDER, SELECTED)


@dataclass(slots=True)
class Tally:
    """The totals of one process so far, or of the input."""

    events: int = 0
    added: int = 0
    deleted: int = 0
    modules: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def count(self, module: str, kind: str, added: int, deleted: int) -> None:
        self.events += 1
        self.added += added
        self.deleted += deleted
        self.modules[module] += 1
        self.kinds[kind] += 1

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.events + other.events,
            self.added + other.added,
            self.deleted + other.deleted,
            self.modules + other.modules,
            self.kinds + other.kinds,
        )


class Delivery(NamedTuple):
    """One line of a group's file: a message that a process consumed."""

    process: str
    msg_id: str
    broker_name: str
    queue_id: int
    queue_offset: int
    seq: int
    module: str
    kind: str
    added: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a process to its parent: its totals so far, and the event that it holds, if any."""

    tally: Tally
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Truth:
    """The expected result of a group, from the input alone."""

    tally: Tally = field(default_factory=Tally)
    seqs: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Killed:
    """The killed process of a group, and the group's committed offsets before the kill."""

    process: str
    committed: dict[tuple[str, int], int]
    held: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run: the sent events, the deliveries of each group, the killed processes."""

    sent: Tally
    deliveries: Mapping[str, Sequence[Delivery]]
    killed: Mapping[str, Killed]


def kind_of(event: dict[str, Any]) -> str:
    """The tag of an event: what kind of file was changed."""
    kind = KIND_OF_EXT.get(event["ext"].lower(), "other")
    return "test" if kind == "code" and "test" in event["path"].lower() else kind


def git_events(checkout: Path) -> Iterator[dict[str, Any]]:
    """The history of a checkout, oldest first, one event for each file that a commit changed."""
    command = ["git", "-C", str(checkout), "log", "-z", "--reverse", "--no-renames", "--numstat"]
    command.append("--format=tformat:commit %H %ct")
    seq = 0
    commit, time_s = "", 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as log:
        assert log.stdout is not None
        for part in _parts(log.stdout):
            text = part.decode("utf-8", "backslashreplace").lstrip("\n")
            if text.startswith("commit "):
                _, commit, when = text.split(" ")
                time_s = int(when)
            elif text:
                added, deleted, path = text.split("\t", 2)
                yield {
                    "seq": seq,
                    "commit": commit[:12],
                    "time": time_s,
                    "module": path.split("/", 1)[0] if "/" in path else "root",
                    "path": path,
                    "ext": PurePosixPath(path).suffix[1:],
                    "added": None if added == "-" else int(added),
                    "deleted": None if deleted == "-" else int(deleted),
                }
                seq += 1
    if log.returncode:
        sys.exit(f"replay: git log failed in {checkout}; --input FILE takes recorded events instead")


def _parts(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while chunk := stream.read(1 << 16):
        *whole, rest = (rest + chunk).split(b"\0")
        yield from whole
    yield rest


def recorded_events(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            yield json.loads(line)


def opened(directory: str) -> mq.Broker:
    """The store, or the cluster."""
    return mq.open(directory, timeout=ANSWER_MAX) if directory.startswith(SCHEME) else mq.open(directory)


def produce(directory: str, events: str, number: int, parent: Connection) -> None:
    """Send the events of every path that is this producer's."""
    sent = Tally()
    reported = time.monotonic()
    with opened(directory) as broker, mq.Producer(broker, group="replay") as producer:
        # Fixed for all messages, even while a broker is down: so a path keeps its queue and its order.
        queues = broker.topic(TOPIC).queues
        for event in recorded_events(Path(events)):
            if zlib.crc32(event["path"].encode()) % PRODUCER_COUNT != number:
                continue
            kind = kind_of(event)
            lines = {name: str(event[name]) for name in ("added", "deleted") if event[name] is not None}
            message = mq.Message(
                TOPIC,
                json.dumps(event).encode(),
                tags=kind,
                keys=event["commit"],
                properties={"module": event["module"], **lines},
            )
            send(producer, message, queues[zlib.crc32(event["path"].encode()[::-1]) % len(queues)])
            sent.count(event["module"], kind, event["added"] or 0, event["deleted"] or 0)
            if time.monotonic() - reported > REPORT_INTERVAL:
                parent.send(Report(sent))
                reported = time.monotonic()
    parent.send(Report(sent))


def send(producer: mq.Producer, message: mq.Message, queue: mq.Queue) -> None:
    """Send to a queue; if its broker is down, wait for it."""
    until = time.monotonic() + BROKER_AWAY_MAX
    while True:
        try:
            producer.send(message, queue=queue)
        except (mq.RemotingError, mq.RequestTimeout):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
        else:
            return


def consume(
    directory: str, plan_number: int, name: str, journal: str, hold_at: int | None, parent: Connection
) -> None:
    """Join a group at the parent's signal, and consume until the parent ends it.

    At its hold_at-th event the listener blocks: the event is recorded but not committed. It informs the
    parent, which kills this process.
    """
    plan = PLANS[plan_number]
    tally = Tally()
    held: int | None = None
    writing = threading.Lock()
    # All processes of the group append to it, one write per line, so the kernel orders the lines.
    lines = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def count(message: mq.MessageExt) -> None:
        nonlocal held
        properties = message.properties
        delivery = Delivery(
            name,
            message.msg_id,
            message.broker_name,
            message.queue_id,
            message.queue_offset,
            json.loads(message.body)["seq"],
            properties["module"],
            message.tags or "",
            int(properties.get("added", 0)),
            int(properties.get("deleted", 0)),
        )
        with writing:
            os.write(lines, json.dumps(delivery).encode() + b"\n")
            tally.count(delivery.module, delivery.kind, delivery.added, delivery.deleted)
            if tally.events != hold_at:
                return
            held = delivery.seq
        threading.Event().wait()

    with opened(directory) as broker, mq.PushConsumer(broker, plan.group, ordered=plan.ordered) as consumer:
        if plan.sql:
            consumer.subscribe(TOPIC, sql=plan.sql, listener=count)
        else:
            consumer.subscribe(TOPIC, listener=count)
        parent.send(Report(tally))
        parent.recv()
        consumer.start()
        while not parent.poll(REPORT_INTERVAL):
            with writing:
                report = Report(Tally() + tally, held)
            parent.send(report)  # It waits for the parent; the listeners need not.
    parent.send(Report(tally))


class Run:
    """The processes of one run, their last reports, and their kills."""

    def __init__(self, directory: str, events: str, broker: mq.Broker, truths: Mapping[str, Truth]) -> None:
        self.started = time.monotonic()
        self.reports: dict[str, Report] = {}
        self.remarks: dict[str, str] = {}
        self.killed: dict[str, Killed] = {}
        self._directory = directory
        self._stalled_after = STALLED_AFTER_ON_CLUSTER if directory.startswith(SCHEME) else STALLED_AFTER
        self._lag = 0
        self._events = events
        self._truths = truths
        self._groups = {plan.group: broker.group(plan.group) for plan in PLANS}
        self._journals = {plan.group: f"{events}.{plan.group}" for plan in PLANS}
        self._context = get_context("spawn")
        self._processes: dict[str, BaseProcess] = {}
        self._pipes: dict[Connection, str] = {}
        self._pipe_of: dict[str, Connection] = {}
        self._awaited: set[str] = set()  # the processes whose next report is awaited
        self._victims = {f"{plan.group} 1": plan.group for plan in PLANS}
        self._closing = False

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.join()

    def start(self) -> None:
        """Let the groups assemble, then start the producers."""
        for number, plan in enumerate(PLANS):
            # Skip the messages of earlier runs in this directory.
            self._groups[plan.group].reset(TOPIC, to="latest")
            Path(self._journals[plan.group]).touch()
            for consumer in range(1, CONSUMER_COUNT + 2):
                name = f"{plan.group} {consumer}"
                share = self._truths[plan.group].tally.events // CONSUMER_COUNT
                hold_at = max(1, share // 4) if name in self._victims else None
                self._start(name, consume, number, name, self._journals[plan.group], hold_at)
                self._awaited.add(name)
        self._hear_all_awaited()
        for plan in PLANS:
            for consumer in range(1, CONSUMER_COUNT + 1):
                self._join(f"{plan.group} {consumer}")
        self._hear_all_awaited()
        for producer in range(PRODUCER_COUNT):
            self._start(f"producer {producer + 1}", produce, self._events, producer)

    def go_on(self) -> None:
        """Process reports until all is sent and consumed. Exits if a process dies by itself."""
        progress, since = -1, time.monotonic()
        while self._pipes:
            self._hear_all()
            lag = self.lag()
            if self._producing():
                since = time.monotonic()
            elif not self._closing and lag == 0 and not self._awaited:
                if self._victims:  # So little came to it that it never held any.
                    self._kill(next(iter(self._victims)), None)
                else:
                    self._close()
            if (moved := sum(report.tally.events for report in self.reports.values()) - lag) != progress:
                progress, since = moved, time.monotonic()
            elif time.monotonic() - since > self._stalled_after:
                sys.exit(f"replay: nothing moves any more: {self._why()}")

    def lag(self) -> int:
        with contextlib.suppress(mq.RemotingError, mq.RequestTimeout):  # A broker is away: as it was.
            self._lag = sum(group.lag(TOPIC) for group in self._groups.values())
        return self._lag

    def outcome(self) -> Outcome:
        deliveries: dict[str, list[Delivery]] = {}
        for group, journal in self._journals.items():
            with Path(journal).open() as lines:
                deliveries[group] = [Delivery(*json.loads(line)) for line in lines]
        sent = sum(
            (self.reports[name].tally for name in self.reports if name.startswith("producer")), Tally()
        )
        return Outcome(sent, deliveries, self.killed)

    def _start(self, name: str, target: Any, *arguments: Any) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=target, args=(self._directory, *arguments, there), name=name)
        process.start()
        there.close()
        self._processes[name], self._pipes[here], self._pipe_of[name] = process, name, here
        self.reports[name] = Report(Tally())

    def _join(self, name: str) -> None:
        self._pipe_of[name].send("join")
        self._awaited.add(name)

    def _hear_all_awaited(self) -> None:
        while self._awaited:
            self._hear_all()

    def _hear_all(self) -> None:
        for ready in wait(list(self._pipes), REPORT_INTERVAL):
            assert isinstance(ready, Connection)
            self._hear(ready)

    def _hear(self, pipe: Connection) -> None:
        name = self._pipes[pipe]
        try:
            report: Report = pipe.recv()
        except (EOFError, ConnectionResetError):
            del self._pipes[pipe]
            process = self._processes[name]
            process.join()
            if process.exitcode and self.remarks.get(name) != "killed":
                sys.exit(f"replay: {name} ended with status {process.exitcode}")
            return
        self.reports[name] = report
        self._awaited.discard(name)
        if report.held is not None and name in self._victims:
            self._kill(name, report.held)

    def _kill(self, name: str, held: int | None) -> None:
        """Kill a consumer with SIGKILL, and start a new one."""
        group = self._victims.pop(name)
        committed: dict[tuple[str, int], int] = {}
        with contextlib.suppress(mq.RemotingError, mq.RequestTimeout):  # as in lag()
            for queue, offset in self._groups[group].offsets(TOPIC).items():
                committed[queue.broker_name, queue.queue_id] = offset
        self._processes[name].kill()
        self.remarks[name] = "killed"
        self.killed[group] = Killed(name, committed, held)
        new = f"{group} {CONSUMER_COUNT + 1}"
        self.remarks[new] = "joined"
        self._join(new)

    def _close(self) -> None:
        self._closing = True
        for pipe, name in self._pipes.items():
            if name not in {killed.process for killed in self.killed.values()}:
                pipe.send("close")

    def _producing(self) -> bool:
        return any(name.startswith("producer") for name in self._pipes.values())

    def _why(self) -> str:
        states = [state for group in self._groups.values() for state in group.states(TOPIC) if state.lag]
        return (
            "; ".join(f"{state.queue.broker_name} {state.queue.queue_id}: {state.reason}" for state in states)
            or "no queue says why"
        )


def summary(run: Run) -> Table:
    """The progress of each process."""
    seconds = time.monotonic() - run.started
    title = f"{TOPIC}: {QUEUE_COUNT} queues, lag {run.lag():,}, {seconds:.1f} s"
    table = Table(title=title, title_justify="left")
    for heading in ("process", "", "events", "added", "deleted", "busiest modules"):
        table.add_column(heading, justify="right" if heading in {"events", "added", "deleted"} else "left")
    for name, report in list(run.reports.items()):  # The other thread may be adding one.
        tally = report.tally
        modules = ", ".join(f"{module} {count:,}" for module, count in tally.modules.most_common(3))
        remark = run.remarks.get(name, "")
        table.add_row(name, remark, f"{tally.events:,}", f"{tally.added:,}", f"{tally.deleted:,}", modules)
    return table


def verdict(
    outcome: Outcome, truths: Mapping[str, Truth], paths: list[str], *, on_cluster: bool = False
) -> dict[str, bool]:
    """Each statement about the run, with whether it holds. `paths[seq]` is the path of an event."""
    everything = truths[IN_ORDER.group].tally

    def identity(delivery: Delivery) -> str | int:
        # On a cluster a send without an answer is repeated and may have been stored: two messages
        return delivery.seq if on_cluster else delivery.msg_id

    statements = {f"all {everything.events:,} events were sent": outcome.sent == everything}
    for plan in PLANS:
        truth, killed = truths[plan.group], outcome.killed[plan.group]
        first: dict[str | int, Delivery] = {}
        again = [
            delivery
            for delivery in outcome.deliveries[plan.group]
            if first.setdefault(identity(delivery), delivery) is not delivery
        ]
        result = Tally()
        for delivery in first.values():
            result.count(delivery.module, delivery.kind, delivery.added, delivery.deleted)
        seqs = [delivery.seq for delivery in first.values()]
        expected = truth.tally
        statements |= {
            f"{plan.group}: its {expected.events:,} events were consumed, and no others": (
                len(seqs) == len(truth.seqs) and set(seqs) == truth.seqs
            ),
            f"{plan.group}: {expected.added:,} lines added, {expected.deleted:,} deleted, as in the input": (
                (result.added, result.deleted) == (expected.added, expected.deleted)
            ),
            f"{plan.group}: the counts of {len(expected.modules):,} modules and {len(expected.kinds)} tags,"
            " as in the input": (result.modules, result.kinds) == (expected.modules, expected.kinds),
        }
        if on_cluster:
            held = killed.held is None or killed.held in {delivery.seq for delivery in again}
            statements[
                f"{plan.group}: {len(again):,} came again, the event among them that {killed.process} held"
                " when it was killed"
            ] = held
        else:
            statements[
                f"{plan.group}: {len(again):,} came again, what {killed.process} had not committed when it"
                " was killed"
            ] = with_cause(again, first, killed)
        if plan.ordered:
            statements[f"{plan.group}: those of each of {len(set(paths)):,} paths in order"] = in_order(
                seqs, paths
            )
    return statements


def with_cause(again: Sequence[Delivery], first: Mapping[str | int, Delivery], killed: Killed) -> bool:
    """Whether all redeliveries are messages that the killed process had pulled but not committed, including
    the one that it held."""
    return (killed.held is None or killed.held in {delivery.seq for delivery in again}) and all(
        first[delivery.msg_id].process == killed.process != delivery.process
        and delivery.queue_offset >= killed.committed.get((delivery.broker_name, delivery.queue_id), 0)
        for delivery in again
    )


def in_order(seqs: Sequence[int], paths: list[str]) -> bool:
    newest: dict[str, int] = {}
    for seq in seqs:
        if newest.get(paths[seq], -1) >= seq:
            return False
        newest[paths[seq]] = seq
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay a change history through one directory.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--git", type=Path, metavar="CHECKOUT", help="its history (default: this one's)")
    source.add_argument("--input", type=Path, metavar="FILE", help="recorded events, .jsonl or .jsonl.gz")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--directory", metavar="DIR", help="the store; by default a temporary one")
    target.add_argument("--cluster", metavar="HOST:PORT", help="the name servers of a cluster, ';' between")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mq-replay-") as scratch:
        truths = {plan.group: Truth() for plan in PLANS}
        paths: list[str] = []
        events = Path(scratch) / "events.jsonl"
        checkout = arguments.git or Path(__file__).resolve().parent.parent
        with events.open("w") as lines:
            for event in recorded_events(arguments.input) if arguments.input else git_events(checkout):
                event["seq"] = len(paths)
                paths.append(event["path"])
                lines.write(json.dumps(event) + "\n")
                for plan in PLANS:
                    if plan.wants(event):
                        truth = truths[plan.group]
                        truth.seqs.add(event["seq"])
                        added, deleted = event["added"] or 0, event["deleted"] or 0
                        truth.tally.count(event["module"], kind_of(event), added, deleted)
        if not paths:
            sys.exit("replay: there is nothing to replay")
        console.print(f"{len(paths):,} events from {arguments.input or checkout}")
        started = time.monotonic()
        where = arguments.directory or str(Path(scratch) / "store")
        if arguments.cluster:
            where = SCHEME + arguments.cluster
        with opened(where) as broker:
            broker.create_topic(TOPIC, QUEUE_COUNT)
            with (
                Run(where, str(events), broker, truths) as run,
                Live(console=console, refresh_per_second=10, get_renderable=lambda: summary(run)),
            ):
                run.start()
                run.go_on()
        seconds = time.monotonic() - started
        statements = verdict(run.outcome(), truths, paths, on_cluster=arguments.cluster is not None)
    console.print()
    for statement, holds in statements.items():
        console.print(f"[green]holds[/] {statement}" if holds else f"[bold red]FAILS[/] {statement}")
    if not all(statements.values()):
        sys.exit(1)
    processes = PRODUCER_COUNT + len(PLANS) * (CONSUMER_COUNT + 1)
    console.print(f"Every event is accounted for ({seconds:.1f} s with the start of {processes} processes).")


if __name__ == "__main__":
    main()
