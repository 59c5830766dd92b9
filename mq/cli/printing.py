"""Messages as text: one line, a full record, or JSON.

Bodies, keys and properties are untrusted bytes, so no control character of them reaches a terminal:
unprintable characters and bytes that are not UTF-8 are escaped as in Python (`\\x1b`). JSON output is pure
ASCII; a body that is not UTF-8 is in `body_base64` instead of `body`.
"""

import base64
import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import click

import mq
from mq.cli.text_table import WIDTH_MIN, table_lines

FACTS = (
    "topic",
    "queue_id",
    "queue_offset",
    "msg_id",
    "offset_msg_id",
    "tags",
    "keys",
    "log_offset",
    "store_size",
    "born_time_ms",
    "store_time_ms",
    "born_host",
    "store_host",
    "reconsume_times",
    "flag",
    "sys_flag",
    "body_crc",
    "transaction_id",
    "prepared_transaction_offset",
)


def visible(text: str | bytes) -> str:
    """The text on one line, with unprintable characters escaped."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def moment(time_ms: int) -> str:
    """Local time with its zone, to the millisecond; the plain number if it is beyond the calendar's range."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def span(milliseconds: int) -> str:
    """A duration, rounded for people: 300 ms, 12 s, 5 min, 3 h, 2 d."""
    seconds = max(milliseconds, 0) / 1000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size, up_to in (("s", 1, 120), ("min", 60, 120 * 60), ("h", 3600, 48 * 3600)):
        if seconds < up_to:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def counted(count: int, noun: str) -> str:
    """1 member, 2 members."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def emit_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Collection[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print a table that fits into the terminal, or into 80 columns without one: see table_lines."""
    shown = [[visible(cell) for cell in row] for row in rows]
    width = max(WIDTH_MIN, shutil.get_terminal_size().columns)
    heading, *lines = table_lines(headings, shown, numbers=numbers, below=below, width=width)
    click.echo(click.style(heading, bold=True))
    for line in lines:
        click.echo(line)


def emit_json(facts: Mapping[str, object]) -> None:
    """Print one object on one line. DEL is the only control character that JSON does not escape."""
    click.echo(json.dumps(facts, separators=(",", ":")).replace("\x7f", "\\u007f"))


def as_json(message: mq.MessageExt) -> dict[str, object]:
    """All attributes of a message, under their names in the API."""
    facts: dict[str, object] = {name: _plain(getattr(message, name)) for name in FACTS}
    facts["properties"] = dict(message.properties)
    body = message.body
    try:
        facts["body"] = body.decode()
    except UnicodeDecodeError:
        facts["body_base64"] = base64.b64encode(body).decode()
    return facts


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple | list | frozenset | set):
        return [_plain(one) for one in value]
    return str(value)


def emit_line(message: mq.MessageExt) -> None:
    """Print a message on one line: store time, queue and offset, tag, keys, body."""
    where = f"{visible(message.topic)}/{message.queue_id}@{message.queue_offset}"
    labels = "".join(f" {visible(label)}" for label in (message.tags, ",".join(message.keys)) if label)
    click.echo(f"{moment(message.store_time_ms)} {where}{labels}  {visible(message.body)}")


def emit_record(message: mq.MessageExt) -> None:
    """Print a message in full: attributes, one per line, then the properties, then the body."""
    for name in FACTS:
        value = _plain(getattr(message, name))
        shown = moment(value) if name.endswith("_time_ms") and isinstance(value, int) else _shown(value)
        click.echo(f"{name:<28} {shown}")
    for name, text in message.properties.items():
        click.echo(f"property {visible(name):<19} {visible(text)}")
    click.echo(f"body ({len(message.body)} bytes)")
    for line in message.body.decode("utf-8", "backslashreplace").split("\n"):
        click.echo(f"  {visible(line)}")


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return visible(" ".join(map(str, value))) or "-"
    return visible(str(value))
