"""A table of the screen: its rows are replaced with each snapshot, and sorted by the user's column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.widgets import DataTable

from mq.cli.printing import visible

Row = TypeVar("Row")
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its heading, its value of a row, and its format."""

    heading: str
    value: Callable[[Row], Value]
    shown: Callable[[Value], str] = str
    is_number: bool = False


class SortedTable(DataTable[Text], Generic[Row]):
    """A table of rows by key. The cursor stays on its row when the order changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort_next", "sort by next column"),
        Binding("r", "turn_round", "reverse order"),
    ]

    sorted_by: reactive[int] = reactive(0, init=False)
    reverse: reactive[bool] = reactive(False, init=False)

    def __init__(self, title: str, columns: tuple[Column[Row], ...], *, id: str) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id, cursor_type="row", zebra_stripes=True, header_height=1)
        self.border_title = title
        self._fields = columns
        self._shown: dict[str, Row] = {}
        self._order: list[str] = []

    def on_mount(self) -> None:
        for number, column in enumerate(self._fields):
            self.add_column(self._heading(number, column), key=str(number))

    def fill(self, rows: Mapping[str, Row]) -> None:
        """Replace all rows."""
        self._shown = dict(rows)
        self._lay_out()

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._order[self.cursor_row] if 0 <= self.cursor_row < len(self._order) else None

    def action_sort_next(self) -> None:
        self.sorted_by = (self.sorted_by + 1) % len(self._fields)

    def action_turn_round(self) -> None:
        self.reverse = not self.reverse

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on a heading sorts by it; a second click reverses the order."""
        event.stop()
        if event.column_index == self.sorted_by:
            self.action_turn_round()
        else:
            self.sorted_by = event.column_index

    def watch_sorted_by(self, sorted_by: int) -> None:
        # Numbers are sorted with the largest first.
        self.reverse = self._fields[sorted_by].is_number
        self._lay_out()

    def watch_reverse(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        for number, column in enumerate(self._fields):
            self.ordered_columns[number].label = self._heading(number, column)
        order = self._sorted()
        if order == self._order:
            for key in order:
                for number, cell in enumerate(self._cells(key)):
                    self.update_cell(key, str(number), cell, update_width=True)
        else:
            selected, top = self.selected, self.scroll_y
            self.clear()
            self._order = order
            for key in order:
                self.add_row(*self._cells(key), key=key)
            if selected in self._shown:
                self.move_cursor(row=order.index(selected), scroll=False)
            self.scroll_to(y=top, animate=False)
        self.refresh()

    def _sorted(self) -> list[str]:
        """The keys, sorted by the chosen column, then by key; rows without a value come last."""
        value = self._fields[self.sorted_by].value
        keys = sorted(self._shown)
        with_value = [key for key in keys if value(self._shown[key]) is not None]
        with_value.sort(key=lambda key: value(self._shown[key]), reverse=self.reverse)  # type: ignore[arg-type,return-value]  # The values of one column compare with each other.
        return with_value + [key for key in keys if value(self._shown[key]) is None]

    def _cells(self, key: str) -> list[Text]:
        row = self._shown[key]
        cells = []
        for column in self._fields:
            value = column.value(row)
            text = "-" if value is None else visible(column.shown(value))
            cells.append(Text(text, justify="right" if column.is_number else "left"))
        return cells

    def _heading(self, number: int, column: Column[Row]) -> Text:
        arrow = ("▼" if self.reverse else "▲") if number == self.sorted_by else " "
        return Text(f"{column.heading} {arrow}", justify="right" if column.is_number else "left")
