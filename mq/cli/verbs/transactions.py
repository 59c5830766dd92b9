"""`transactions`: list undecided transactions, and restart their checks."""

import time

import click

import mq
from mq.api.broker import Undecided
from mq.cli.printing import counted, emit_json, emit_table, span, visible
from mq.cli.session import Session, with_json


@click.command()
@click.option(
    "--resume",
    "resumed",
    multiple=True,
    metavar="MSGID",
    help="Restart the checks of this one; may be repeated.",
)
@with_json
@click.pass_obj
def transactions(session: Session, resumed: tuple[str, ...]) -> int:
    """List the undecided transactions, oldest first.

    A transaction is given up when the maximum number of checks brought no decision: its message waits in
    TRANS_CHECK_MAX_TIME_TOPIC. --resume restarts its checks, with a count of 0.
    """
    with session.open() as broker:
        if resumed:
            return _resume(session, broker, resumed)
        found = broker.transactions.undecided()
        if session.json:
            for each in found:
                emit_json(_facts(each))
        elif found:
            _show(found)
        else:
            click.echo("no transaction is undecided")
    return 0


def _resume(session: Session, broker: mq.Broker, ids: tuple[str, ...]) -> int:
    missing = 0
    for msg_id in ids:
        try:
            broker.transactions.resume(msg_id)
        except mq.MessageNotFound:
            click.echo(f"mq: no transaction with the id {visible(msg_id)} was given up", err=True)
            missing += 1
            continue
        if session.json:
            emit_json({"msg_id": msg_id, "resumed": True})
        else:
            click.echo(f"{visible(msg_id)} is checked again")
    if missing < len(ids):
        broker.flush()  # There may be no running application whose duties flush.
    return 1 if missing else 0


def _show(found: list[Undecided]) -> None:
    now_ms = time.time_ns() // 1_000_000
    emit_table(
        ("ID", "TOPIC", "GROUP", "AGE", "CHECKED", "STATE"),
        (
            (
                each.message.msg_id,
                each.message.topic,
                each.group,
                span(now_ms - each.message.born_time_ms),
                f"{each.times_checked:,}",
                "given up" if each.given_up else "undecided",
            )
            for each in found
        ),
        numbers={"AGE", "CHECKED"},
        below=("GROUP", "TOPIC"),
    )
    given_up = sum(each.given_up for each in found)
    if given_up:
        click.echo(f"{counted(given_up, 'transaction')} given up: --resume MSGID has one checked again")


def _facts(each: Undecided) -> dict[str, object]:
    message = each.message
    return {
        "msg_id": message.msg_id,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "group": each.group,
        "born_time_ms": message.born_time_ms,
        "times_checked": each.times_checked,
        "given_up": each.given_up,
    }
