"""RocketMQ's own store library as an oracle: it writes stores and tells what it finds in others.

A small Java program (src/main/java) around the library does both; this module builds it, once for
each state of its sources, and runs it. It needs a JDK of 17 or newer and Maven (Debian packages
default-jdk-headless and maven). Maven fetches the library from Maven Central on the first build.

maven.py keeps the program; nothing is written into the source tree.

Every call is a process of its own that has ended when the call returns, so a directory may be handed
from the oracle to mq and back. Nothing listens on the network.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.support import maven

HERE = Path(__file__).resolve().parents[1] / "oracle"
JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # The library unmaps files through these packages.
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
BORN_HOST = "192.168.1.10:51000"
STORE_HOST = "10.0.0.5:10911"
BORN_TIME_MS = 1_700_000_000_000

RUN_TIMEOUT = 300.0  # Twenty times what the largest store of the tests takes.

Step = dict[str, Any]
Properties = Mapping[str, str] | Sequence[tuple[str, str]]


class OracleFailed(Exception):
    """The program ended with an error; the text is what it and the library said."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The file sizes of a store. The first four are keywords of mq.open()."""

    commitlog_file_size: int = 16 * 1024
    queue_file_units: int = 50
    index_slot_count: int = 10
    index_unit_count: int = 200
    property_crc: bool = False
    consume_queue_ext_file_size: int = 0  # of extensions of queue units; 0: none are written


# What RocketMQ and mq use unless told otherwise.
USUAL_SIZES = Sizes(
    commitlog_file_size=1 << 30,
    queue_file_units=300_000,
    index_slot_count=5_000_000,
    index_unit_count=20_000_000,
)


@dataclass(frozen=True, slots=True)
class Record:
    """What the library decodes from one record. The members are named like those of mq.MessageExt."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    store_size: int
    version: int
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: str
    store_time_ms: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    stored_body_size: int  # as it stands in the log, perhaps compressed
    stored_body_sha256: str
    body_size: int  # as a consumer gets it
    body_sha256: str
    properties: dict[str, str]
    offset_msg_id: str
    unit_log_offset: int | None = None  # the unit of the consume queue; None where there is none
    unit_size: int | None = None
    tags_code: int | None = None
    extension_tags_code: int | None = None  # the unit's extension; None where there is none
    extension_time_ms: int | None = None
    extension_bits: str | None = None  # hexadecimal; a message that is put says them itself, as property BITS

    @property
    def keys(self) -> list[str]:
        """The words under which the record is indexed, without repeats."""
        words = [self.properties.get("UNIQ_KEY", ""), *self.properties.get("KEYS", "").split(" ")]
        return list(dict.fromkeys(word for word in words if word))


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the library finds in a store."""

    min_log_offset: int
    max_log_offset: int
    queues: dict[tuple[str, int], tuple[int, int]]  # (topic, queue_id) -> (first offset, next offset)
    records: list[Record]  # found by queue offset: by topic, queue, offset
    missing: list[tuple[str, int, int, str]]  # (topic, queue_id, queue_offset, why a pull finds nothing)
    unqueued: list[Record]  # prepared and rolled back: in the log only
    damaged: list[int]  # log offsets where there is no record before the log's end
    by_key: dict[tuple[str, str], list[int]]  # (topic, key) -> log offsets
    by_id: dict[str, int | None]  # offset id -> log offset
    lines: list[str]  # the answer as it was printed

    def queue(self, topic: str, queue_id: int) -> list[Record]:
        """The records of one queue, by offset."""
        return [record for record in self.records if (record.topic, record.queue_id) == (topic, queue_id)]


def property_text(properties: Properties) -> str:
    """The property string of a record, in the order given."""
    pairs = properties.items() if isinstance(properties, Mapping) else properties
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def put(
    topic: str,
    body: bytes,
    *,
    queue_id: int = 0,
    properties: Properties | str = (),
    flag: int = 0,
    sys_flag: int = 0,
    compression: Literal["ZLIB", "LZ4", "ZSTD"] | None = None,
    old_compression_flag: bool = False,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    born_time_ms: int = BORN_TIME_MS,
    born_host: str = BORN_HOST,
    store_time_ms: int | None = None,
    store_host: str = STORE_HOST,
) -> Step:
    """A step that stores one message.

    A store_time_ms sets the clock of the store, which then stands still until it is set again;
    without any it is the wall clock. Properties given as str are stored as they are.
    """
    step: Step = {
        "do": "put",
        "topic": topic,
        "queue_id": queue_id,
        "sys_flag": sys_flag,
        "born_time_ms": born_time_ms,
        "born_host": born_host,
        "store_host": store_host,
        "compression": compression,
        "old_compression_flag": old_compression_flag,
        "reconsume_times": reconsume_times,
        "prepared_transaction_offset": prepared_transaction_offset,
    }
    if store_time_ms is not None:
        step["store_time_ms"] = store_time_ms
    return step | _content(body, properties, flag)


def batch(
    topic: str,
    messages: Iterable[tuple[bytes, Properties | str, int]],
    *,
    queue_id: int = 0,
    sys_flag: int = 0,
    born_time_ms: int = BORN_TIME_MS,
    born_host: str = BORN_HOST,
    store_time_ms: int | None = None,
    store_host: str = STORE_HOST,
) -> Step:
    """A step that stores messages (body, properties, flag) as one client batch."""
    step: Step = {
        "do": "batch",
        "topic": topic,
        "queue_id": queue_id,
        "sys_flag": sys_flag,
        "born_time_ms": born_time_ms,
        "born_host": born_host,
        "store_host": store_host,
        "messages": [_content(*message) for message in messages],
    }
    if store_time_ms is not None:
        step["store_time_ms"] = store_time_ms
    return step


def flush() -> Step:
    """A step that forces everything to disk, the checkpoint included."""
    return {"do": "flush"}


def delete_old_segments() -> Step:
    """A step that deletes all commit log segments but the last, and what points into them."""
    return {"do": "delete_old_segments"}


def write(
    directory: Path, sizes: Sizes, steps: Iterable[Step], *, end: Literal["close", "kill"] = "close"
) -> list[Record]:
    """Opens or creates a store and does the steps; the records that were stored, in order.

    With end "kill" the process halts without any shutdown.
    """
    request = {"sizes": asdict(sizes), "steps": list(steps), "end": end}
    answers = [json.loads(line) for line in _run("write", directory, request)]
    return [_record(answer) for answer in answers]


def read(directory: Path, sizes: Sizes, *, close: bool = False) -> Report:
    """Opens a store as a broker does (load, recover, start) and tells what is in it.

    The library writes to the directory while it recovers, and leaves it like a crashed one unless
    asked to close.
    """
    lines = _run("read", directory, {"sizes": asdict(sizes), "close": close})
    return parse(lines)


def wire(tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What RocketMQ's classes of the wire make of each task (Wire.java tells which there are)."""
    return [json.loads(line) for line in _run("wire", Path(os.curdir), {"tasks": list(tasks)})]


def parse(lines: list[str]) -> Report:
    """The report behind the lines of an answer."""
    answers = [json.loads(line) for line in lines]
    of_kind: dict[str, list[dict[str, Any]]] = {}
    for answer in answers:
        of_kind.setdefault(answer["kind"], []).append(answer)
    (store,) = of_kind["store"]
    return Report(
        min_log_offset=store["min_log_offset"],
        max_log_offset=store["max_log_offset"],
        queues={
            (queue["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
            for queue in of_kind.get("queue", [])
        },
        records=[_record(answer) for answer in of_kind.get("message", [])],
        missing=[
            (gap["topic"], gap["queue_id"], gap["queue_offset"], gap["reason"])
            for gap in of_kind.get("missing", [])
        ],
        unqueued=[_record(answer) for answer in of_kind.get("unqueued", [])],
        damaged=[place["log_offset"] for place in of_kind.get("damaged", [])],
        by_key={(found["topic"], found["key"]): found["log_offsets"] for found in of_kind.get("key", [])},
        by_id={found["offset_msg_id"]: found["log_offset"] for found in of_kind.get("id", [])},
        lines=lines,
    )


def build() -> Path:
    """The directory of the program, built if these sources have not been built yet."""
    return maven.built(HERE, "oracle.build", ["package"])


def _run(command: str, directory: Path, request: dict[str, Any]) -> list[str]:
    program = build()
    maven.need("java")
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as spec:
        json.dump(request, spec)
        spec.flush()
        classpath = f"{program / 'oracle.jar'}:{program / 'lib'}/*"
        done = subprocess.run(
            ["java", *JVM_OPTIONS, "-cp", classpath, "mq.oracle.Oracle", command, str(directory), spec.name],
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=RUN_TIMEOUT,
        )
    lines = done.stdout.split("\n")[:-1]
    if done.returncode != 0:
        raise OracleFailed(f"oracle {command} {directory} ended with {done.returncode}:\n{done.stderr}")
    if command == "read" and not json.loads(lines[0])["loaded"]:
        raise OracleFailed(f"the library refuses to load {directory}:\n{done.stderr}")
    return lines


def _content(body: bytes, properties: Properties | str, flag: int) -> Step:
    text = properties if isinstance(properties, str) else property_text(properties)
    return {"body": base64.b64encode(body).decode(), "properties": text, "flag": flag}


def _record(answer: dict[str, Any]) -> Record:
    return Record(**{name: value for name, value in answer.items() if name != "kind"})
