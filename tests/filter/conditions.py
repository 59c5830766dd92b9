"""Conditions that Hypothesis makes up, and messages that they may select."""

from __future__ import annotations

import hypothesis.strategies as st

NAMES = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.sampled_from(["1", "2", "3.5", "-4", "+2", "1e1", "x", "xy", "true", "TRUE", "y"])
NUMBERS = st.sampled_from(["1", "2", "3.5", "-4", "10", "0"])
TEXTS = st.sampled_from(["'x'", "'y'", "'1'", "'xy'", "'true'", "''"])
TRUTHS = st.sampled_from(["TRUE", "FALSE"])
ORDERS = st.sampled_from(["<", "<=", ">", ">="])
EQUALS = st.sampled_from(["=", "<>"])
LEAVES = st.one_of(
    NAMES,
    TRUTHS | st.just("NULL"),
    st.builds("{} {} {}".format, NAMES, ORDERS, NAMES | NUMBERS),
    st.builds("{} {} {}".format, NAMES | NUMBERS, ORDERS | EQUALS, NAMES),
    st.builds("{} {} {}".format, NAMES, EQUALS, NAMES | TEXTS | NUMBERS | TRUTHS),
    st.builds("{} {} -{}".format, NAMES, ORDERS | EQUALS, NAMES),
    st.builds("{} {} ({}, {})".format, NAMES, st.sampled_from(["IN", "NOT IN"]), TEXTS, TEXTS),
    st.builds(
        "{} {} {} AND {}".format, NAMES, st.sampled_from(["BETWEEN", "NOT BETWEEN"]), NAMES, NAMES | NUMBERS
    ),
    st.builds(
        "{} {}{} {}".format,
        NAMES,
        st.sampled_from(["", "NOT "]),
        st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]),
        TEXTS,
    ),
    st.builds("{} {}".format, NAMES, st.sampled_from(["IS NULL", "IS NOT NULL"])),
)


EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("({0}) {1} ({2}) {1} ({3})".format, inner, st.sampled_from(["AND", "OR"]), inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("({}) IS {}NULL".format, inner, st.sampled_from(["", "NOT "])),
        st.builds("({}) {} ({})".format, inner, EQUALS, inner),
        st.builds("({}) {} {}".format, inner, EQUALS, NAMES | TEXTS),
        st.builds("{} {} ({})".format, NAMES | TEXTS, EQUALS, inner),
    ),
    max_leaves=10,
)


MESSAGES = st.dictionaries(NAMES, VALUES)
