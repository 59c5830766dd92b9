"""Tables as lines of text that fit into a terminal of 80 columns, or into a wider one.

Nothing is truncated. If a table is too wide, the columns that the caller names move below their rows, one
after the other, as `heading: value`. If it is still too wide, a long first cell gets a line of its own.
"""

import textwrap
from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len

__all__ = ["WIDTH_MIN", "table_lines"]

WIDTH_MIN = 80
GAP = "  "
INDENT = "    "


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numbers: Collection[str] = (),
    below: Sequence[str] = (),
    width: int = WIDTH_MIN,
) -> list[str]:
    """The heading, and the lines of each row. Columns in `numbers` are right-aligned. `below`: the columns
    that may move below their rows, in this order; of the table's last column only the part that does not fit
    moves."""
    table = [dict(zip(headings, row, strict=True)) for row in rows]
    widths = {name: max(map(cell_len, (name, *(row[name] for row in table)))) for name in headings}
    kept, beneath = list(headings), set[str]()
    for name in below:
        if _total(kept, widths) <= width:
            break
        beneath.add(name)
        if name == headings[-1]:
            widths[name] = cell_len(name)
            if _total(kept, widths) <= width:
                break
        kept.remove(name)
    first, last = kept[0], kept[-1]
    room = width - _total(kept[1:], widths) - len(GAP)
    widths[first] = max(
        cell_len(first), *(size for row in table if (size := cell_len(row[first])) <= room), 0
    )
    start_of_last = _total(kept[:-1], widths) + len(GAP)
    lines = [_line(kept, dict(zip(kept, kept, strict=True)), widths, numbers)]
    for row in table:
        cells = dict(row)
        if cell_len(cells[first]) > widths[first]:
            lines.append(cells[first])
            cells[first] = ""
        if last in beneath and start_of_last + cell_len(cells[last]) > width:
            cells[last] = ""
        lines.append(_line(kept, cells, widths, numbers))
        for name in headings:
            is_shown = name in kept and cells[name] == row[name]
            if name in beneath and not is_shown and row[name] not in {"", "-"}:
                lines += _wrapped(name, row[name], width)
    return lines


def _wrapped(name: str, cell: str, width: int) -> list[str]:
    """A cell below its row. A single word, such as a recall handle, is not broken, so that it can be
    copied."""
    text = f"{name}: {cell}"
    if " " not in cell:
        return [INDENT + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT + GAP,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _total(headings: Sequence[str], widths: dict[str, int]) -> int:
    return sum(widths[heading] for heading in headings) + len(GAP) * (len(headings) - 1)


def _line(
    headings: Sequence[str], cells: dict[str, str], widths: dict[str, int], numbers: Collection[str]
) -> str:
    parts = []
    for name in headings:
        blank = " " * (widths[name] - cell_len(cells[name]))
        parts.append(blank + cells[name] if name in numbers else cells[name] + blank)
    return GAP.join(parts).rstrip()
