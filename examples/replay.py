"""The main job: replay a change history through one directory, by four processes.

    python examples/replay.py                              the history of the checkout you are in
    python examples/replay.py --git ~/src/linux            of another checkout
    python examples/replay.py --input changes.jsonl.gz     recorded events, one JSON object a line

An event says that one commit changed one file. Two producer processes share the paths between them
and send the events to a topic of 8 queues, sharded by path; the tag says what kind of file it is. Two
reader processes read all 8 queues, each with the tags of its own, while the sending goes on. After its
last event a producer puts an end marker into every queue; a reader is done with a queue once it has met
the markers of both.

At the end the events that the readers met are held against the input: each once, those of a path in
order, with the same totals. Exit status 1 if anything differs.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

import mq

TOPIC = "changes"
QUEUE_COUNT = 8
PRODUCER_COUNT = 2
END = "end"
REPORT_INTERVAL = 0.1

KINDS = {
    "code": "c cc cpp cs go h hpp java js kt pl proto py pyi rb rs scala sql thrift ts",
    "text": "adoc html markdown md po rst tex txt",
    "config": "cfg conf gradle ini json properties toml xml yaml yml",
    "script": "bash bat bazel bzl cmd ps1 sh",
}
KIND_OF_EXT = {ext: kind for kind, exts in KINDS.items() for ext in exts.split()}
READERS = {"reader A": ("code",), "reader B": ("test", "text", "config", "script", "other")}


@dataclass(slots=True)
class Tally:
    """What one process has done so far, or what the input holds."""

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


# What a reader met, queue by queue, in the order in which it met it.
Met = dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class Report:
    """A process to the one that started it: its tally so far; with the last one, all that it met."""

    tally: Tally
    met: Met | None = None


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


def produce(directory: str, events: str, number: int, parent: Connection) -> None:
    """Send the events of every path that is this producer's, then an end marker to every queue."""
    sent = Tally()
    reported = time.monotonic()
    with mq.open(directory) as broker, mq.Producer(broker, group="replay") as producer:
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
            producer.send(message, shard_key=event["path"])
            sent.count(event["module"], kind, event["added"] or 0, event["deleted"] or 0)
            if time.monotonic() - reported > REPORT_INTERVAL:
                parent.send(Report(sent))
                reported = time.monotonic()
        for queue in broker.topic(TOPIC).queues:
            producer.send(mq.Message(TOPIC, b"end", tags=END), queue=queue.message_queue)
    parent.send(Report(sent))


def consume(directory: str, kinds: tuple[str, ...], begins: dict[int, int], parent: Connection) -> None:
    """Read every queue, one thread each, until both producers have said that nothing more comes."""
    tallies = {queue_id: Tally() for queue_id in begins}
    met: Met = {queue_id: [] for queue_id in begins}
    with mq.open(directory) as broker:
        threads = [
            threading.Thread(
                target=read_queue,
                args=(queue, kinds, begins[queue.queue_id], tallies[queue.queue_id], met[queue.queue_id]),
                name=f"read {queue.queue_id}",
            )
            for queue in broker.topic(TOPIC).queues
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(REPORT_INTERVAL)
                parent.send(Report(sum(tallies.values(), Tally())))
    parent.send(Report(sum(tallies.values(), Tally()), met))


def read_queue(queue: mq.Queue, kinds: tuple[str, ...], begin: int, tally: Tally, met: list[int]) -> None:
    """Read one queue to its end markers, sleeping inside `read` while there is nothing to do."""
    expression = " || ".join((*kinds, END))
    queue_offset = begin
    ends_met = 0
    while ends_met < PRODUCER_COUNT:
        result = queue.read(queue_offset, count_max=256, expression=expression, wait=1.0)
        for message in result.messages:
            if message.tags == END:
                ends_met += 1
                continue
            event = json.loads(message.body)
            properties = message.properties
            added, deleted = int(properties.get("added", 0)), int(properties.get("deleted", 0))
            tally.count(properties["module"], message.tags or "", added, deleted)
            met.append(event["seq"])
        queue_offset = result.next_offset


def run(directory: str, events: str, console: Console) -> dict[str, Report]:
    """The last report of every process. Ends the program if one of them dies."""
    with mq.open(directory) as broker:
        topic = broker.create_topic(TOPIC, QUEUE_COUNT)
        begins = {queue.queue_id: queue.max_offset for queue in topic.queues}
    context = get_context("spawn")
    processes: dict[str, BaseProcess] = {}
    pipes: dict[Connection, str] = {}

    def start(name: str, target: Any, *arguments: Any) -> None:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(directory, *arguments, there), name=name)
        process.start()
        there.close()
        processes[name], pipes[here] = process, name

    for name, kinds in READERS.items():
        start(name, consume, kinds, begins)
    for number in range(PRODUCER_COUNT):
        start(f"producer {number + 1}", produce, events, number)

    reports = {name: Report(Tally()) for name in processes}
    started = time.monotonic()
    try:
        with Live(console=console, refresh_per_second=10, get_renderable=lambda: summary(reports, started)):
            while pipes:
                for ready in wait(list(pipes)):
                    assert isinstance(ready, Connection)
                    try:
                        reports[pipes[ready]] = ready.recv()
                    except EOFError:
                        process = processes[pipes.pop(ready)]
                        process.join()
                        if process.exitcode:
                            sys.exit(f"replay: {process.name} ended with status {process.exitcode}")
    finally:
        for process in processes.values():
            process.terminate()
            process.join()
    return reports


def summary(reports: dict[str, Report], started: float) -> Table:
    """Who has done how much, as of now."""
    seconds = time.monotonic() - started
    table = Table(title=f"{TOPIC}: {QUEUE_COUNT} queues, {seconds:.1f} s", title_justify="left")
    for heading in ("process", "events", "added", "deleted", "busiest modules"):
        table.add_column(heading, justify="right" if heading in {"events", "added", "deleted"} else "left")
    for name, report in reports.items():
        tally = report.tally
        modules = ", ".join(f"{module} {count:,}" for module, count in tally.modules.most_common(3))
        table.add_row(name, f"{tally.events:,}", f"{tally.added:,}", f"{tally.deleted:,}", modules)
    return table


def verdict(reports: dict[str, Report], truth: Tally, paths: list[str]) -> dict[str, bool]:
    """Each statement about the run, with whether it holds. `paths[seq]` is the path of an event."""
    readers = [reports[name] for name in READERS]
    read = sum((report.tally for report in readers), Tally())
    sent = sum((report.tally for name, report in reports.items() if name not in READERS), Tally())
    met: Counter[int] = Counter()
    in_order = True
    newest: dict[str, int] = {}
    for report in readers:
        for seqs in (report.met or {}).values():
            met.update(seqs)
            for seq in seqs:
                in_order &= newest.get(paths[seq], -1) < seq
                newest[paths[seq]] = seq
    return {
        f"all {truth.events:,} events were sent": sent == truth,
        f"all {truth.events:,} events were read": met.keys() == set(range(truth.events)),
        "each of them once": met.total() == len(met),
        f"those of each of {len(set(paths)):,} paths in order": in_order,
        f"{truth.added:,} lines added, {truth.deleted:,} deleted, as in the input": (
            (read.added, read.deleted) == (truth.added, truth.deleted)
        ),
        f"the counts of {len(truth.modules):,} modules and {len(truth.kinds)} tags, as in the input": (
            (read.modules, read.kinds) == (truth.modules, truth.kinds)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay a change history through one directory.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--git", type=Path, metavar="CHECKOUT", help="its history (default: this one's)")
    source.add_argument("--input", type=Path, metavar="FILE", help="recorded events, .jsonl or .jsonl.gz")
    parser.add_argument("--directory", metavar="DIR", help="the store; by default a temporary one")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="mq-replay-") as scratch:
        truth = Tally()
        paths: list[str] = []
        events = Path(scratch) / "events.jsonl"
        checkout = arguments.git or Path(__file__).resolve().parent.parent
        with events.open("w") as lines:
            for event in recorded_events(arguments.input) if arguments.input else git_events(checkout):
                event["seq"] = truth.events
                truth.count(event["module"], kind_of(event), event["added"] or 0, event["deleted"] or 0)
                paths.append(event["path"])
                lines.write(json.dumps(event) + "\n")
        if not truth.events:
            sys.exit("replay: there is nothing to replay")
        console.print(f"{truth.events:,} events from {arguments.input or checkout}")
        started = time.monotonic()
        reports = run(arguments.directory or str(Path(scratch) / "store"), str(events), console)
        seconds = time.monotonic() - started
        statements = verdict(reports, truth, paths)
    console.print()
    for statement, holds in statements.items():
        console.print(f"[green]holds[/] {statement}" if holds else f"[bold red]FAILS[/] {statement}")
    if not all(statements.values()):
        sys.exit(1)
    console.print(f"Every event is accounted for ({seconds:.1f} s with the start of four processes).")


if __name__ == "__main__":
    main()
