"""The main job on Spark: lines changed per module and day, by a query whose driver is killed three times.

    python -m examples.pipeline                              the history of the checkout you are in
    python -m examples.pipeline --input changes.jsonl.gz     recorded events, as examples/replay.py has them
    python -m examples.pipeline --master 'local[2]'          Spark in one process, with two threads

Two producers replay a change history into a topic. A Structured Streaming query adds up the changed lines,
and writes its sums to a second topic exactly once; a push consumer stores them in a table. Meanwhile the
driver of the query is killed with kill -9, its Python process or its JVM, and restarted.

At the end the table, and a batch job over the whole topic, are compared with the result of plain Python. The
result is plotted. Exit status 1 if anything differs.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live
from rich.table import Table as Lines

import mq.spark
from examples.pipeline.plan import Plan
from examples.pipeline.plot import plot
from examples.pipeline.run import Run, Status
from examples.pipeline.sums import sums_of, verdict
from examples.pipeline.table import Table
from examples.replay import git_events, recorded_events

ROOT = Path(__file__).resolve().parents[2]


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    sys.exit("pipeline: terminated")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pipeline", description="Lines changed per module and day, by a Spark that is killed."
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--git", type=Path, metavar="CHECKOUT", help="its history (default: this one's)")
    source.add_argument("--input", type=Path, metavar="FILE", help="recorded events, .jsonl or .jsonl.gz")
    parser.add_argument(
        "--kills",
        type=int,
        default=3,
        metavar="N",
        help="times that the driver is killed (default: %(default)s)",
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=1000.0,
        metavar="N",
        help="events a second that are sent (default: %(default)g)",
    )
    parser.add_argument(
        "--master",
        default="local-cluster[2,1,1024]",
        metavar="URL",
        help="Spark's (default: %(default)s, two executors in processes of their own)",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=ROOT / "build" / "pipeline.png",
        metavar="FILE",
        help="where the picture goes (default: build/pipeline.png of the checkout)",
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="a new one; by default temporary")
    arguments = parser.parse_args()
    if arguments.kills < 0 or not arguments.rate > 0:
        parser.error("the number of kills must be at least 0, and the rate over 0")
    if arguments.directory is not None and arguments.directory.exists():
        parser.error(f"{arguments.directory} exists already")
    if reason := cannot():
        sys.exit(f"pipeline: {reason}")
    # Turn SIGTERM into an exception, so that no process is left behind.
    signal.signal(signal.SIGTERM, _terminated)
    with tempfile.TemporaryDirectory(prefix="mq-pipeline-", ignore_cleanup_errors=True) as scratch:
        directory = (arguments.directory or Path(scratch, "run")).resolve()
        directory.mkdir(parents=True)
        try:
            sys.exit(0 if done(arguments, directory, Path(scratch, "spark")) else 1)
        except KeyboardInterrupt:
            sys.exit("pipeline: interrupted")


def cannot() -> str | None:
    """The reason why this interpreter cannot run Spark; None if it can."""
    how = "pip install 'mq[cli,spark,plot]', or start it by ./run pipeline, which does so"
    if find_spec("pyspark") is None:
        return f"there is no PySpark for {sys.executable}: {how}"
    if find_spec("pyspark_mq") is None:
        return f"mq is not installed for {sys.executable}, so that Spark does not find it: {how}"
    try:
        mq.spark.use_java()
    except mq.MQError as error:
        return str(error)
    return None


def done(arguments: argparse.Namespace, directory: Path, scratch: Path) -> bool:
    """Whether the result is as expected."""
    console = Console()
    checkout = arguments.git or ROOT
    events = list(recorded_events(arguments.input) if arguments.input else git_events(checkout))
    if not events:
        sys.exit("pipeline: there is nothing to replay")
    plan = Plan(directory, scratch, arguments.master, len(events), arguments.rate, arguments.kills)
    with plan.events.open("w") as lines:
        lines.writelines(json.dumps(event) + "\n" for event in events)
    truth = sums_of(events)
    console.print(
        f"{len(events):,} events from {arguments.input or checkout}, Spark on {plan.master}",
        f"What is left to do: mq {plan.store} groups",
        sep="\n",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    started = time.monotonic()
    with closing(Table(plan.table)) as table:
        with mq.open(plan.store) as broker, Live(console=console, auto_refresh=False) as live:
            run = Run(plan, broker, table)
            found = run.go_on(lambda status: live.update(progress(plan, status, started), refresh=True))
            kills = run.status().kills
        batch_count = table.batch_count()
    seconds = time.monotonic() - started
    statements = verdict(found, truth)
    console.print()
    for statement, holds in statements.items():
        console.print(f"[green]holds[/] {statement}" if holds else f"[bold red]FAILS[/] {statement}")
    console.print(f"{batch_count:,} micro-batches wrote {found.results:,} results.")
    for kill in kills:
        console.print(
            f"{kill.victim} was killed after {kill.seconds:.1f} s, with {kill.event_count:,} events"
            " in the table"
        )
    try:
        plot(found.table, arguments.plot)
        console.print(f"The picture: {arguments.plot}")
    except ImportError:
        console.print("No picture: that needs matplotlib (pip install 'mq[plot]').", markup=False)
    console.print(f"{len(events):,} events in {seconds:.1f} s, with {len(kills) + 1} starts of Spark")
    return all(statements.values())


def progress(plan: Plan, status: Status, started: float) -> Lines:
    table = Lines(title=f"{time.monotonic() - started:.1f} s", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("events sent", f"{status.sent:,} of {plan.event_count:,}")
    table.add_row("not yet through the query", f"{status.query_lag:,}")
    table.add_row("events in the table", f"{status.event_count:,}")
    table.add_row("results in the table", f"{status.result_count:,}")
    life = f"life {len(status.kills) + 1} of {plan.kill_count + 1}"
    if status.event_count == plan.event_count and not status.query_lag:
        table.add_row("the query", f"has done all, {life}; the batch job follows")
    else:
        table.add_row("the query", f"{'works' if status.is_working else 'starts'}, {life}")
    return table


if __name__ == "__main__":
    main()
