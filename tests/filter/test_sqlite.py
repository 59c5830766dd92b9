"""The evaluator against sqlite3, where both speak the same language.

Properties that hold numbers are compared with numbers only, and stand in a column of numbers; the others are
compared with texts. Left out is where RocketMQ is no SQL: `=` of two properties or conditions, a property as
condition, NOT before a comparison without brackets; and a search in a property that is missing, which is
false both ways.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from mq.filter.sql import compiled

# A condition written for mq, and for sqlite3.
Both = tuple[str, str]

WHOLE = st.integers(-(2**31), 2**31) | st.integers(-3, 3)
FRACTIONS = st.integers(-30, 30).map(lambda number: number / 8) | st.floats(-1e9, 1e9, width=32)
NUMBERS = WHOLE | FRACTIONS
ALPHABET = "ab'% é中\n"
TEXTS = st.text(ALPHABET, min_size=1, max_size=3)
NUMBER_NAMES = st.sampled_from(["n1", "n2", "n3"])
TEXT_NAMES = st.sampled_from(["t1", "t2", "t3"])
ORDERS = st.sampled_from(["<", "<=", ">", ">="])
EQUALS = st.sampled_from(["=", "<>"])


def written(number: float) -> str:
    return repr(number)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def same(text: str) -> Both:
    return text, text


def searched(name: str, word: str, text: str, negated: bool) -> Both:
    place = {
        "CONTAINS": f"instr({name}, {quoted(text)}) > 0",
        "STARTSWITH": f"substr({name}, 1, {len(text)}) = {quoted(text)}",
        "ENDSWITH": f"substr({name}, -{len(text)}) = {quoted(text)}",
    }[word]
    theirs = f"({name} IS NOT NULL AND {'NOT ' * negated}({place}))"
    return f"{name} {'NOT ' * negated}{word} {quoted(text)}", theirs


LITERALS = NUMBERS.map(written)
BOUNDS = st.tuples(NUMBERS, NUMBERS).map(sorted)
COMPARISONS: SearchStrategy[Both] = st.one_of(
    st.builds("{} {} {}".format, NUMBER_NAMES, ORDERS | EQUALS, LITERALS).map(same),
    st.builds("{} {} {}".format, LITERALS, ORDERS | EQUALS, NUMBER_NAMES).map(same),
    st.builds("{} {} {}".format, NUMBER_NAMES, ORDERS, NUMBER_NAMES).map(same),
    st.builds("{} {} {}".format, LITERALS, ORDERS | EQUALS, LITERALS).map(same),
    st.builds("{} {} {}".format, TEXT_NAMES, EQUALS, TEXTS.map(quoted)).map(same),
    st.builds("{} {} {}".format, TEXTS.map(quoted), EQUALS, TEXT_NAMES).map(same),
    st.builds(
        lambda name, word, bounds: f"{name} {word} {written(bounds[0])} AND {written(bounds[1])}",
        NUMBER_NAMES,
        st.sampled_from(["BETWEEN", "NOT BETWEEN"]),
        BOUNDS,
    ).map(same),
    st.builds("{} BETWEEN {} AND {}".format, NUMBER_NAMES, NUMBER_NAMES, LITERALS).map(same),
    st.builds(
        lambda name, word, texts: f"{name} {word} ({', '.join(map(quoted, texts))})",
        TEXT_NAMES,
        st.sampled_from(["IN", "NOT IN"]),
        st.lists(TEXTS, min_size=1, max_size=4),
    ).map(same),
    st.builds("{} {}".format, NUMBER_NAMES | TEXT_NAMES, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(
        same
    ),
    st.sampled_from(["TRUE", "FALSE", "NULL"]).map(same),
    st.builds(
        searched, TEXT_NAMES, st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), TEXTS, st.booleans()
    ),
)


def joined(word: str, bracketed: bool, *conditions: Both) -> Both:
    """With or without brackets: both have to see that AND binds tighter than OR."""
    ours, theirs = (f" {word} ".join(texts) for texts in zip(*conditions, strict=True))
    return (f"({ours})", f"({theirs})") if bracketed else (ours, theirs)


def around(before: str, condition: Both, after: str) -> Both:
    return f"{before}({condition[0]}){after}", f"{before}({condition[1]}){after}"


CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(joined, st.sampled_from(["AND", "OR"]), st.booleans(), inner, inner),
        st.builds(joined, st.sampled_from(["AND", "OR"]), st.booleans(), inner, inner, inner),
        st.builds(around, st.just("NOT "), inner, st.just("")),
        st.builds(around, st.just(""), inner, st.sampled_from([" IS NULL", " IS NOT NULL"])),
    ),
    max_leaves=12,
)

NUMBER_COLUMNS, TEXT_COLUMNS = ("n1", "n2", "n3"), ("t1", "t2", "t3")
ROWS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(NUMBER_COLUMNS, NUMBERS) | dict.fromkeys(TEXT_COLUMNS, TEXTS),
)
Value = int | float | str


@pytest.fixture(scope="module")
def table() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("create table message (n1 numeric, n2 numeric, n3 numeric, t1 text, t2 text, t3 text)")
    yield connection
    connection.close()


def theirs_of(table: sqlite3.Connection, condition: str, row: dict[str, Value]) -> bool | None:
    table.execute("delete from message")
    values = [row.get(name) for name in NUMBER_COLUMNS + TEXT_COLUMNS]
    table.execute("insert into message values (?, ?, ?, ?, ?, ?)", values)
    ((found,),) = table.execute(f"select ({condition}) from message")
    return None if found is None else bool(found)


def ours_of(condition: str, row: dict[str, Value]) -> bool | None:
    pairs = [
        f"{name}\x01{value if isinstance(value, str) else written(value)}\x02" for name, value in row.items()
    ]
    encoded = "".join(pairs).encode()
    true = compiled(condition)(encoded)
    false = compiled(f"NOT ({condition})")(encoded)
    unknown = compiled(f"({condition}) IS NULL")(encoded)
    assert [true, false, unknown].count(True) == 1
    return None if unknown else true


@settings(max_examples=600, deadline=None)
@given(CONDITIONS, st.lists(ROWS, min_size=1, max_size=4))
def test_a_condition_is_what_sqlite_says(
    table: sqlite3.Connection, condition: Both, rows: list[dict[str, Value]]
) -> None:
    ours, theirs = condition
    for row in rows:
        assert ours_of(ours, row) is theirs_of(table, theirs, row)
