"""`sinks`: the state of Spark's sinks: transaction ids, their last epochs, and staged files."""

import time
from pathlib import Path

import click

from mq.cli.printing import counted, emit_json, emit_table, span, visible
from mq.cli.session import Session, with_json
from mq.spark.sink.check import lost
from mq.spark.sink.ledger import recovery_advice
from mq.spark.sink.sinks import Sink
from mq.spark.sink.sinks import sinks as sinks_of


@click.command()
@click.option("--all", "every", is_flag=True, help="Include completed single writes.")
@with_json
@click.pass_obj
def sinks(session: Session, every: bool) -> int:
    """List the exactly-once sinks of Spark on this store, by transaction id.

    Shows the last epoch of each sink, how many of its rows are in the log and since when, whether the epoch
    is complete, and how many bytes are staged but not appended. If files with the rest of an epoch are lost,
    it lists them and what can be done.
    """
    with session.open_directory("sinks") as broker:
        found = sinks_of(broker)
    root = Path(session.target)
    shown = [sink for sink in found if every or sink.is_needed]
    if session.json:
        for sink in shown:
            emit_json(_facts(root, sink))
        return 0
    if shown:
        _show(root, shown)
    elif not found:
        click.echo("no sink has written here exactly once")
    if hidden := len(found) - len(shown):
        click.echo(f"{counted(hidden, 'completed single write')} not shown: --all lists them")
    return 0


def _show(root: Path, found: list[Sink]) -> None:
    now_ms = time.time_ns() // 1_000_000
    emit_table(
        ("TXN", "EPOCH", "ROWS", "AGE", "STATE", "STAGED"),
        (
            (
                sink.txn,
                "-" if sink.last is None else f"{sink.last.epoch:,}",
                f"{sink.rows:,}",
                "-" if sink.last is None else span(now_ms - sink.last.time_ms),
                _state(root, sink),
                f"{sum(file.size for file in sink.staged):,}",
            )
            for sink in found
        ),
        numbers={"EPOCH", "ROWS", "AGE", "STAGED"},
        below=("STATE",),
    )
    for sink in found:
        for path, why in lost(root, sink):
            click.echo(visible(f"{path}: {why}; {recovery_advice(str(root), sink.txn)}"))


def _state(root: Path, sink: Sink) -> str:
    if sink.last is None:
        return "nothing yet"
    if sink.last.is_whole:
        return "whole"
    gone = len(lost(root, sink))
    return f"unfinished, {counted(len(sink.last.files), 'file')} left" + (
        f", {gone} of them lost" if gone else ""
    )


def _facts(root: Path, sink: Sink) -> dict[str, object]:
    last = sink.last
    return {
        "txn": sink.txn,
        "query_id": last and last.query_id,
        "epoch": last and last.epoch,
        "rows": sink.rows,
        "time_ms": last and last.time_ms,
        "whole": last and last.is_whole,
        "single": last and not last.lasting,
        "files_left": list(last.files) if last else [],
        "files_lost": [str(path) for path, _ in lost(root, sink)],
        "staged_files": len(sink.staged),
        "staged_bytes": sum(file.size for file in sink.staged),
        "being_written": sum(file.is_being_written for file in sink.staged),
    }
