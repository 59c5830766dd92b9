"""The screen of `top`: topics, groups, and the members of the group under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.widgets import DataTable, Footer, Static

import mq
from mq.cli.printing import moment, span, visible
from mq.cli.screen.snapshot import GroupSnapshot, MemberSnapshot, Rates, Snapshot, TopicSnapshot, rates
from mq.cli.screen.table import Column, SortedTable, Value
from mq.cli.verbs.groups import subscribed

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


def _count(value: Value) -> str:
    return f"{value:,}"


def _rate(value: Value) -> str:
    return f"{value:,.0f}/s"


def _age(value: Value) -> str:
    assert isinstance(value, int)
    return span(value)


class Dashboard(App[None]):
    """Takes a snapshot of the store in each interval, and shows it with rates."""

    CSS = """
    #status { height: 1; padding: 0 1; }
    #status.wrong { color: $error; }
    SortedTable { height: 1fr; border: round $surface-lighten-2; border-title-color: $text-muted; }
    SortedTable:focus { border: round $accent; }
    #members { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("plus,equals_sign", "slower(1)", "slower", key_display="+"),
        Binding("minus", "slower(-1)", "faster", key_display="-"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, target: str, look: Callable[[], Snapshot], interval: float | None) -> None:
        """interval None: snapshots are taken only by refresh()."""
        super().__init__()
        self._target = target
        self._look = look
        self._interval = interval
        self._timer: Timer | None = None
        self._paused = False
        self._snapshot: Snapshot | None = None
        self._moved = Rates({}, {})
        self.status = Static(id="status", markup=False)
        self.topics: SortedTable[TopicSnapshot] = SortedTable(
            "topics",
            (
                Column("topic", lambda topic: topic.name),
                Column("queues", lambda topic: topic.queue_count, _count, is_number=True),
                Column("messages", lambda topic: topic.kept, _count, is_number=True),
                Column("sent", lambda topic: self._moved.sent.get(topic.name), _rate, is_number=True),
            ),
            id="topics",
        )
        self.groups: SortedTable[GroupSnapshot] = SortedTable(
            "groups",
            (
                Column("group", lambda group: group.name),
                Column("topic", lambda group: group.topic),
                Column("members", lambda group: group.member_count, _count, is_number=True),
                Column("consumed", self._consumed, _rate, is_number=True),
                Column("lag", lambda group: group.lag, _count, is_number=True),
                Column("oldest", self._oldest, _age, is_number=True),
                Column("retry", lambda group: group.retrying, _count, is_number=True),
                Column("dead", lambda group: group.dead_letters, _count, is_number=True),
                Column("why it does not move", lambda group: "; ".join(group.reasons)),
            ),
            id="groups",
        )
        self.members: SortedTable[MemberSnapshot] = SortedTable(
            "members",
            (
                Column("member", lambda row: row.member.client_id if row.member else "nobody"),
                Column("pid", lambda row: row.member.pid if row.member else None, is_number=True),
                Column("host", lambda row: row.member.host if row.member else None),
                Column("queues", lambda row: row.queue_count, _count, is_number=True),
                Column("lag", lambda row: row.lag, _count, is_number=True),
                Column("since", lambda row: moment(row.member.since_ms) if row.member else None),
                Column("subscribes to", lambda row: subscribed(row.member) if row.member else None),
                Column("why it does not move", lambda row: "; ".join(row.reasons)),
            ),
            id="members",
        )

    def compose(self) -> ComposeResult:
        yield self.status
        yield self.topics
        yield self.groups
        yield self.members
        yield Footer()

    def on_mount(self) -> None:
        self.groups.focus()
        self.look()
        self._restart()

    def look(self) -> None:
        """Take a snapshot now. If that fails, the screen keeps the last one and shows the error."""
        try:
            snapshot = self._look()
        except (mq.MQError, OSError) as error:
            self.status.add_class("wrong")
            self.status.update(f"{visible(self._target)}   {visible(str(error))}")
            return
        self._moved = rates(self._snapshot, snapshot)
        self._snapshot = snapshot
        self.topics.fill({topic.name: topic for topic in snapshot.topics})
        self.groups.fill({f"{group.name} {group.topic}": group for group in snapshot.groups})
        self._show_members()
        self._show_status()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table is self.groups:
            self._show_members()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._restart()
        self._show_status()

    def action_slower(self, step: int) -> None:
        """Switch to the next longer interval, or with -1 to the next shorter one."""
        if self._interval is None:
            return
        if step > 0:
            self._interval = next((each for each in INTERVALS if each > self._interval), INTERVALS[-1])
        else:
            self._interval = next((each for each in INTERVALS[::-1] if each < self._interval), INTERVALS[0])
        self._restart()
        self._show_status()

    def _restart(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self._interval is not None and not self._paused:
            self._timer = self.set_interval(self._interval, self.look)

    def _show_members(self) -> None:
        if self._snapshot is None:
            return
        name = (self.groups.selected or "").partition(" ")[0]
        self.members.border_title = f"members of {name}" if name else "members"
        self.members.fill(
            {
                row.member.client_id if row.member else "": row
                for row in self._snapshot.members
                if row.group == name
            }
        )

    def _show_status(self) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        self.status.remove_class("wrong")
        every = "paused" if self._paused else f"every {self._interval:g} s" if self._interval else "when told"
        self.status.update(
            f"{visible(self._target)}   {moment(snapshot.time_ms)[11:19]}   {every}   "
            f"sent {_rate(sum(self._moved.sent.values()))}   "
            f"consumed {_rate(sum(self._moved.consumed.values()))}   "
            f"lag {_count(sum(group.lag for group in snapshot.groups))}"
        )

    def _consumed(self, group: GroupSnapshot) -> float | None:
        return self._moved.consumed.get((group.name, group.topic))

    def _oldest(self, group: GroupSnapshot) -> int | None:
        if group.oldest_unconsumed_ms is None or self._snapshot is None:
            return None
        return max(0, self._snapshot.time_ms - group.oldest_unconsumed_ms)
