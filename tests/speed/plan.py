"""How much a run does: the full benchmark, a quick look, or the smallest that still runs every line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    """Pairs of turns that count."""
    seconds: float
    """Of one turn, where a turn is measured by time."""
    latency_count: int
    """Sends of one turn whose times are kept one by one."""
    latency_file_size: int
    """Of a commit log segment there, so small that several roll in a turn."""
    copy_size: int
    """Bytes of bodies that one turn writes or reads where bytes a second are compared."""
    sync_count: int
    """Flushes of one turn."""
    read_count: int
    """Messages stored for one turn of reading."""
    round_trip_count: int
    writer_counts: tuple[int, int]
    """Processes that write together, the issue's 4 and 32."""
    thread_counts: tuple[int, int]
    """Processes, and threads in each, the issue's 16 threads over 4 processes."""
    stored_count: int
    """Messages of an ordinary store (opening, disk)."""
    backlog_count: int
    """Messages of the deep backlog, and of the large stores."""
    stall_seconds: float
    """Of a run at full speed whose stalls are looked for."""
    topic_counts: tuple[int, int, int]
    """Of a store of few topics, of one of more, and of one of many."""
    grown_count: int
    """Messages of a store that has grown; `backlog_count` is that of one that has grown large."""
    memory_size: int
    """Free memory that is made ready before a turn: several times what a turn writes."""

    @classmethod
    def full(cls) -> Plan:
        return cls(
            rounds=5,
            seconds=0.6,
            latency_count=300_000,
            latency_file_size=64 << 20,
            copy_size=512 << 20,
            sync_count=400,
            read_count=200_000,
            round_trip_count=20_000,
            writer_counts=(4, 32),
            thread_counts=(4, 4),
            stored_count=1_000_000,
            backlog_count=10_000_000,
            stall_seconds=10.0,
            topic_counts=(10, 1_000, 10_000),
            grown_count=100_000,
            memory_size=2 << 30,
        )

    @classmethod
    def quick(cls) -> Plan:
        return cls(
            rounds=5,
            seconds=0.1,
            latency_count=50_000,
            latency_file_size=16 << 20,
            copy_size=64 << 20,
            sync_count=50,
            read_count=20_000,
            round_trip_count=2_000,
            writer_counts=(4, 32),
            thread_counts=(4, 4),
            stored_count=100_000,
            backlog_count=500_000,
            stall_seconds=2.0,
            topic_counts=(10, 100, 1_000),
            grown_count=20_000,
            memory_size=1 << 30,
        )

    @classmethod
    def smoke(cls) -> Plan:
        return cls(
            rounds=1,
            seconds=0.005,
            latency_count=500,
            latency_file_size=256 << 10,
            copy_size=1 << 20,
            sync_count=5,
            read_count=2_000,
            round_trip_count=20,
            writer_counts=(2, 3),
            thread_counts=(2, 2),
            stored_count=2_000,
            backlog_count=4_000,
            stall_seconds=0.02,
            topic_counts=(2, 3, 5),
            grown_count=2_000,
            memory_size=0,
        )
