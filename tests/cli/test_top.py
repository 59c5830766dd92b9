"""The screen of `top`: what it says of a store, and what its keys do. It looks when told to; no clock."""

import asyncio
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
            await steps(screen, pilot)

    asyncio.run(play())


def text(
    table: "SortedTable[GroupSnapshot] | SortedTable[TopicSnapshot] | SortedTable[MemberSnapshot]",
) -> list[list[str]]:
    return [[cell.plain for cell in table.get_row_at(row)] for row in range(table.row_count)]


def test_it_shows_topics_groups_and_the_members_of_the_first_group() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert [row[:3] for row in text(screen.topics)] == [["logs", "1", "9,000"], ["orders", "4", "100"]]
        assert text(screen.groups)[1] == [
            "billing", "orders", "1", "-", "100", "2 s", "0", "3", "listener running for 12 s"
        ]  # fmt: skip
        assert [row[0] for row in text(screen.members)] == ["host@22"]
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
        assert [row[0] for row in text(screen.members)] == ["host@11", "nobody"]
        assert text(screen.members)[1][-1] == "no member has taken it yet"
        screen.look()
        assert screen.groups.selected == "billing orders"

    show(steps, snapshot(1))


def test_sorting_goes_from_column_to_column_and_turns_round() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.press("s", "s", "s", "s")
        assert [row[0] for row in text(screen.groups)] == ["billing", "audit"]
        assert str(screen.groups.ordered_columns[4].label).endswith("▼")
        await pilot.press("r")
        assert [row[0] for row in text(screen.groups)] == ["audit", "billing"]
        await pilot.press("s")
        # What has no age stands last, whichever way round.
        assert [row[0] for row in text(screen.groups)] == ["billing", "audit"]
        await pilot.press("r")
        assert [row[0] for row in text(screen.groups)] == ["billing", "audit"]

    show(steps, snapshot(1))


def test_the_cursor_stays_on_its_row_when_sorting_moves_it() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        assert screen.groups.selected == "audit orders"
        await pilot.press("r")
        assert [row[0] for row in text(screen.groups)] == ["billing", "audit"]
        assert screen.groups.selected == "audit orders"

    show(steps, snapshot(1))


def test_a_click_on_a_heading_sorts_by_it() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        await pilot.click("#topics", offset=(16, 1))
        assert screen.topics.sorted_by == 1
        assert [row[0] for row in text(screen.topics)] == ["orders", "logs"]

    show(steps, snapshot(1))


def test_tab_goes_to_the_next_table() -> None:
    async def steps(screen: Dashboard, pilot: Pilot[None]) -> None:
        met = []
        for _ in range(3):
            assert screen.focused is not None
            met.append(screen.focused.id)
            await pilot.press("tab")
        assert met == ["groups", "members", "topics"]

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
        assert "every 60 s" in str(screen.status.render())
        await pilot.press("minus", "minus")
        assert "every 10 s" in str(screen.status.render())
        await pilot.press("p")
        assert "paused" in str(screen.status.render())
        await pilot.press("p")
        assert "every 10 s" in str(screen.status.render())
        await pilot.press(*["minus"] * 20)
        assert f"every {INTERVALS[0]:g} s" in str(screen.status.render())
        await pilot.press("p", "q")
        assert screen.return_code == 0

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
