"""The screen of `top`: what it says of a store, and what its keys do. It looks when told to; no clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

import mq
from mq.api.group import Member, Subscription
from mq.cli.screen.dashboard import INTERVALS, Dashboard
from mq.cli.screen.snapshot import GroupSnapshot, MemberSnapshot, Rates, Snapshot, TopicSnapshot, rates
from mq.cli.screen.table import SortedTable

ONE, TWO = (
    Member(f"host@{pid}", pid, "host", 0, "clustering", "push", False, (Subscription("orders", tags),))
    for pid, tags in ((11, "*"), (22, "paid"))
)


def snapshot(at_s: float, *, sent: int = 0, consumed: int = 0, reasons: tuple[str, ...] = ()) -> Snapshot:
    """Two topics and two groups; what differs from look to look is given."""
    return Snapshot(
        int(at_s * 1000),
        (TopicSnapshot("orders", 4, 100 + sent, 100 + sent), TopicSnapshot("logs", 1, 9000, 9000)),
        (
            GroupSnapshot("billing", "orders", 1, consumed, 100 + sent - consumed, 500, 3, reasons),
            GroupSnapshot("audit", "orders", 1, 0, 7, None, 0, ()),
        ),
        (
            MemberSnapshot("billing", ONE, 3, 60, reasons),
            MemberSnapshot("billing", None, 1, 40, ("no member has taken it yet",)),
            MemberSnapshot("audit", TWO, 4, 7, ()),
        ),
    )


Steps = Callable[[Dashboard, Pilot[None]], Awaitable[None]]


def show(steps: Steps, *looks: Snapshot | Exception, interval: float | None = None) -> None:
    """Run the screen on these looks; the last one is had again and again."""
    waiting = list(looks)

    def look() -> Snapshot:
        seen = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(seen, Exception):
            raise seen
        return seen

    async def play() -> None:
        screen = Dashboard("var/orders", look, interval)
        async with screen.run_test(size=(150, 40)) as pilot:
            await pilot.pause()
            await becomes(lambda: screen.focused is screen.groups, True)
            await steps(screen, pilot)

    asyncio.run(play())


async def becomes(what: Callable[[], object], wanted: object) -> None:
    """Wait until the screen has done what a key asks for. The pilot waits until the process looks idle, as it
    does while it gets no processor, too."""
    until = time.monotonic() + 60
    while what() != wanted and time.monotonic() < until:  # noqa: ASYNC110 - what is shown sets no event
        await asyncio.sleep(0.01)
    assert what() == wanted


Table = SortedTable[GroupSnapshot] | SortedTable[TopicSnapshot] | SortedTable[MemberSnapshot]


def text(table: Table) -> list[list[str]]:
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


def names(table: Table) -> list[str]:
    return [row[0] for row in text(table)]


def order(table: Table) -> tuple[int, bool, list[str]]:
    """By which column, whether the largest comes first, and what comes of it."""
    return table.sorted_by, table.reverse, names(table)


def pace(screen: Dashboard) -> str:
    """What the status says of when it looks."""
    return str(screen.status.render()).split("   ")[2]


def test_it_shows_topics_groups_and_the_members_of_the_first_group() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert [row[:3] for row in text(screen.topics)] == [["logs", "1", "9,000"], ["orders", "4", "100"]]
        assert text(screen.groups)[1] == [
            "billing", "orders", "1", "-", "100", "2 s", "0", "3", "listener running for 12 s"
        ]  # fmt: skip
        assert names(screen.members) == ["host@22"]
        assert screen.members.border_title == "members of audit"

    show(steps, snapshot(2.5, reasons=("listener running for 12 s",)))


def test_the_second_look_has_rates() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert {row[3] for row in text(screen.topics)} == {"-"}
        screen.look()
        assert [row[3] for row in text(screen.topics)] == ["0/s", "1,500/s"]
        assert [row[3] for row in text(screen.groups)] == ["0/s", "1,000/s"]
        assert "sent 1,500/s" in str(screen.status.render())
        assert "consumed 1,000/s" in str(screen.status.render())

    show(steps, snapshot(1), snapshot(3, sent=3000, consumed=2000))


def test_the_cursor_chooses_whose_members_are_shown() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        await becomes(lambda: names(screen.members), ["host@11", "nobody"])
        assert text(screen.members)[1][-1] == "no member has taken it yet"
        screen.look()
        assert screen.groups.selected == "billing orders"

    show(steps, snapshot(1))


def test_sorting_goes_from_column_to_column_and_turns_round() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.press("s", "s", "s", "s")
        await becomes(lambda: order(screen.groups), (4, True, ["billing", "audit"]))
        assert str(screen.groups.ordered_columns[4].label).endswith("▼")
        await pilot.press("r")
        await becomes(lambda: order(screen.groups), (4, False, ["audit", "billing"]))
        await pilot.press("s")
        # What has no age stands last, whichever way round.
        await becomes(lambda: order(screen.groups), (5, True, ["billing", "audit"]))
        await pilot.press("r")
        await becomes(lambda: order(screen.groups), (5, False, ["billing", "audit"]))

    show(steps, snapshot(1))


def test_the_cursor_stays_on_its_row_when_sorting_moves_it() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert screen.groups.selected == "audit orders"
        await pilot.press("r")
        await becomes(lambda: order(screen.groups), (0, True, ["billing", "audit"]))
        assert screen.groups.selected == "audit orders"

    show(steps, snapshot(1))


def test_a_click_on_a_heading_sorts_by_it() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        x, y = 16, 1  # in the heading of the second column, once it is drawn
        await becomes(lambda: screen.screen.get_style_at(x, screen.topics.region.y + y).meta.get("column"), 1)
        await pilot.click("#topics", offset=(x, y))
        await becomes(lambda: order(screen.topics), (1, True, ["orders", "logs"]))

    show(steps, snapshot(1))


def test_tab_goes_to_the_next_table() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        for table in (screen.groups, screen.members, screen.topics):
            await becomes(lambda: screen.focused, table)
            await pilot.press("tab")

    show(steps, snapshot(1))


def test_what_comes_and_goes_is_shown_and_gone() -> None:
    empty = Snapshot(2000, (), (), ())

    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert text(screen.topics) == text(screen.groups) == text(screen.members) == []
        screen.look()
        assert len(text(screen.topics)) == 2
        screen.look()
        await pilot.pause()
        assert text(screen.topics) == text(screen.groups) == text(screen.members) == []

    show(steps, empty, snapshot(1), empty)


def test_a_look_that_fails_leaves_the_screen_and_says_why() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        screen.look()
        assert "closed" in str(screen.status.render())
        assert len(text(screen.groups)) == 2
        screen.look()
        assert "closed" not in str(screen.status.render())

    show(steps, snapshot(1), mq.BrokerClosed("it is closed"), snapshot(2))


def test_keys_pause_change_the_interval_and_quit() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.press("plus")
        await becomes(lambda: pace(screen), "every 60 s")
        await pilot.press("minus", "minus")
        await becomes(lambda: pace(screen), "every 10 s")
        await pilot.press("p")
        await becomes(lambda: pace(screen), "paused")
        await pilot.press("p")
        await becomes(lambda: pace(screen), "every 10 s")
        await pilot.press(*["minus"] * 20)
        await becomes(lambda: pace(screen), f"every {INTERVALS[0]:g} s")
        await pilot.press("p", "q")
        await becomes(lambda: screen.return_code, 0)

    show(steps, snapshot(1), interval=30.0)


def test_names_are_shown_as_they_are() -> None:
    """No markup, and nothing that would reprogram the terminal."""
    reasons = ("[red]paused[/red]", "\x1b[31mlistener")

    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert text(screen.groups)[1][-1] == "[red]paused[/red]; \\x1b[31mlistener"

    show(steps, snapshot(1, reasons=reasons))


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, Rates({}, {})),
        (snapshot(3, sent=30), Rates({}, {})),
        (snapshot(2, sent=40), Rates({"logs": 0.0}, {("billing", "orders"): 10.0, ("audit", "orders"): 0.0})),
        (snapshot(2, consumed=20), Rates({"orders": 30.0, "logs": 0.0}, {("audit", "orders"): 0.0})),
        (Snapshot(2000, (), (), ()), Rates({}, {})),
    ],
)
def test_there_is_a_rate_only_of_what_went_forward(before: Snapshot | None, expected: Rates) -> None:
    assert rates(before, snapshot(3, sent=30, consumed=10)) == expected
