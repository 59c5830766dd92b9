"""The grammar of SQL92 expressions: words to a condition.

NOT binds tighter than any comparison, as in RocketMQ: `NOT a = 'x'` reads `(NOT a) = 'x'`, compares a
condition with a text, and selects nothing. Write `NOT (a = 'x')`. The parser is Lark's LALR, which keeps
its own stack: no expression is too deep for it, and what it builds is bounded by conditions.DEPTH_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedToken
from lark.lexer import Lexer

from mq.errors import FilterSyntaxError
from mq.filter.sql.conditions import (
    Condition,
    Nonsense,
    Number,
    Operand,
    Property,
    Text,
    Truth,
    among,
    between,
    condition,
    equal,
    is_null,
    junction,
    negation,
    ordered,
    search,
    signed,
)
from mq.filter.sql.words import LENGTH_MAX, syntax_error, words

GRAMMAR = """
    start:       any

    ?any:        all        | all (OR all)+                                -> disjunction
    ?all:        equality   | equality (AND equality)+                     -> conjunction
    ?equality:   comparison | equality EQUAL comparison                    -> equal
                            | equality UNEQUAL comparison                  -> unequal
                            | equality IS NULL                             -> null
                            | equality IS NOT NULL                         -> not_null
    ?comparison: unary      | comparison ORDER unary                       -> ordered
                            | comparison sought TEXT                       -> search
                            | comparison NOT sought TEXT                   -> search_not
                            | comparison BETWEEN unary AND unary           -> between
                            | comparison NOT BETWEEN unary AND unary       -> between_not
                            | comparison IN OPEN texts CLOSE               -> among
                            | comparison NOT IN OPEN texts CLOSE           -> among_not
    ?unary:      primary    | PLUS unary                                   -> signed
                            | MINUS unary                                  -> signed
                            | NOT unary                                    -> negation
    ?primary:    OPEN any CLOSE                                            -> grouped
                            | NAME                                         -> property
                            | NUMBER                                       -> number
                            | TEXT                                         -> text
                            | TRUE                                         -> true
                            | FALSE                                        -> false
                            | NULL                                         -> unknown
    ?sought:     CONTAINS | STARTSWITH | ENDSWITH
    texts:       TEXT (COMMA TEXT)*

    %declare OR AND EQUAL UNEQUAL IS NOT NULL ORDER CONTAINS STARTSWITH ENDSWITH
    %declare BETWEEN IN OPEN CLOSE COMMA PLUS MINUS NAME NUMBER TEXT TRUE FALSE
"""


def parse(expression: str) -> Condition:
    """The condition that an expression stands for. Raises FilterSyntaxError."""
    if len(expression) > LENGTH_MAX:
        raise syntax_error(expression, LENGTH_MAX, f"an expression has at most {LENGTH_MAX:,} characters")
    try:
        found: Any = _parser().parse(expression)
    except UnexpectedToken as error:
        raise _unexpected(expression, error) from None
    except Nonsense as error:
        raise syntax_error(expression, error.at, error.problem) from None
    meaning: Condition = found
    return meaning


class _Lexer(Lexer):
    """The words, as the parser wants them."""

    __future_interface__ = 0

    def __init__(self, _: object) -> None:
        pass

    def lex(self, expression: str) -> Iterator[Token]:  # type: ignore[override]  # Lark gives a lexer of this interface the text alone.
        return (Token(word.kind, word.value, start_pos=word.at) for word in words(expression))


class _Meaning(Transformer[Token, Operand]):
    """Builds conditions from the bottom up while the parser runs; no tree is made."""

    def start(self, parts: list[Any]) -> Condition:
        return condition(parts[0])

    def disjunction(self, parts: list[Any]) -> Operand:
        return junction("OR", *parts[::2])

    def conjunction(self, parts: list[Any]) -> Operand:
        return junction("AND", *parts[::2])

    def equal(self, parts: list[Any]) -> Operand:
        return equal(parts[0], parts[2])

    def unequal(self, parts: list[Any]) -> Operand:
        return negation(equal(parts[0], parts[2]))

    def null(self, parts: list[Any]) -> Operand:
        return is_null(parts[0])

    def not_null(self, parts: list[Any]) -> Operand:
        return negation(is_null(parts[0]))

    def ordered(self, parts: list[Any]) -> Operand:
        return ordered(parts[0], parts[1].value, parts[2])

    def search(self, parts: list[Any]) -> Operand:
        return search(parts[0], parts[-2].value, parts[-1].value, negated=len(parts) == 4)

    search_not = search

    def between(self, parts: list[Any]) -> Operand:
        return between(parts[0], parts[-3], parts[-1], negated=len(parts) == 6)

    between_not = between

    def among(self, parts: list[Any]) -> Operand:
        return among(parts[0], parts[-2], negated=len(parts) == 6)

    among_not = among

    def texts(self, parts: list[Any]) -> list[str]:
        return [token.value for token in parts[::2]]

    def signed(self, parts: list[Any]) -> Operand:
        return signed(parts[0].value, parts[1], parts[0].start_pos)

    def negation(self, parts: list[Any]) -> Operand:
        return negation(parts[1])

    def grouped(self, parts: list[Any]) -> Operand:
        grouped: Operand = parts[1]
        return grouped

    def property(self, parts: list[Any]) -> Operand:
        return Property(parts[0].value, parts[0].start_pos)

    def number(self, parts: list[Any]) -> Operand:
        return Number(parts[0].value, parts[0].start_pos)

    def text(self, parts: list[Any]) -> Operand:
        return Text(parts[0].value, parts[0].start_pos)

    def true(self, parts: list[Any]) -> Operand:
        return Truth(True, parts[0].start_pos, written=True)

    def false(self, parts: list[Any]) -> Operand:
        return Truth(False, parts[0].start_pos, written=True)

    def unknown(self, parts: list[Any]) -> Operand:
        return Truth(None, parts[0].start_pos, written=True)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", lexer=_Lexer, transformer=_Meaning())


_BEGINS_OPERAND: Final = frozenset(
    {"NAME", "NUMBER", "TEXT", "TRUE", "FALSE", "NULL", "OPEN", "PLUS", "MINUS", "NOT"}
)
_OPERATORS: Final = frozenset(
    {"EQUAL", "UNEQUAL", "ORDER", "IS", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_WORDS: Final = {
    "$END": "the end",
    "OPEN": "'('",
    "CLOSE": "')'",
    "COMMA": "','",
    "TEXT": "a text in single quotes",
}
_UNKNOWN_OPERATORS: Final = {
    "LIKE": "there is no LIKE: CONTAINS, STARTSWITH and ENDSWITH search a text",
    "DIV": "there is no arithmetic",
    "MOD": "there is no arithmetic",
}


def _unexpected(expression: str, error: UnexpectedToken) -> FilterSyntaxError:
    token = error.token
    at = len(expression) if token.type == "$END" else token.start_pos
    assert at is not None
    accepted = set(error.accepts)
    if "OR" in accepted and (hint := _hint(expression, token)):
        return syntax_error(expression, at, hint)
    expected = []
    if accepted >= _BEGINS_OPERAND:
        expected.append("a property or a value")
        accepted -= _BEGINS_OPERAND
    if accepted >= _OPERATORS:
        expected.append("an operator")
        accepted -= _OPERATORS | {"NOT"}
    expected += sorted((_WORDS.get(kind, kind) for kind in accepted), key=_unquoted)
    found = "the expression ends" if token.type == "$END" else f"{str(token.value)[:20]!r} stands"
    return syntax_error(expression, at, f"{found} where {' or '.join(expected)} is expected")


def _unquoted(word: str) -> tuple[bool, str]:
    """Keywords before symbols."""
    return not word.isalpha(), word


def _hint(expression: str, token: Token) -> str | None:
    if token.type == "MINUS" and expression.startswith("--", token.start_pos):
        return "a comment that begins with -- ends with a line end, and here is none"
    if token.type in {"PLUS", "MINUS"}:
        return "there is no arithmetic"
    return _UNKNOWN_OPERATORS.get(str(token.value).upper()) if token.type == "NAME" else None
