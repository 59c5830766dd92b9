"""`recall`: a message that waits for its time is taken back."""

import click

import mq
from mq.cli.printing import emit_json, visible
from mq.cli.session import Session, with_json


@click.command()
@click.argument("handle")
@with_json
@click.pass_obj
def recall(session: Session, handle: str) -> int:
    """Take back the message of HANDLE, which waits for its time: it is never delivered.

    HANDLE is what `send --deliver-at` or `--delay-ms` printed; `timers --list` shows those of all that wait.
    """
    # With the duties, which put a recall into effect: perhaps no application is there that does them.
    with session.open(duties=True) as broker:
        try:
            msg_id = broker.recall(handle)
        except mq.MessageNotFound as error:
            click.echo(f"mq: no message with the id {visible(error.msg_id)} waits", err=True)
            return 1
    if session.json:
        emit_json({"msg_id": msg_id, "recalled": True})
    else:
        click.echo(f"{msg_id} is recalled")
    return 0
