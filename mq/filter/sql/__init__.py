"""SQL92 expressions over the properties of a message: `price > 100 AND region IN ('EU', 'US')`.

The language is RocketMQ's; docs/filters.md describes it, and lists where mq differs on purpose. What reads
it, in this order: tokens (characters to words), grammar (words to conditions), conditions (what may be
compared with what), program (a condition to a Python function over the property string).

All values are texts. A condition is true, false or unknown; a missing property makes a comparison unknown.
Only a message for which the whole is true is selected. A text compared as a number that is none makes the
message one that is not selected, whatever else the expression says.
"""

from __future__ import annotations

from mq.filter.sql.grammar import parse
from mq.filter.sql.program import Matches, matcher
from mq.filter.sql.wake import test_of

__all__ = ["Matches", "compiled", "wake_test"]


def compiled(expression: str) -> Matches:
    """The function that says of an encoded property string whether the expression selects its message.

    Raises FilterSyntaxError, with the place marked, for what is not a sound expression.
    """
    return matcher(parse(expression))


def wake_test(expression: str) -> bytes | None:
    """What a sender can tell of the expression: see wake.py. None: nothing. Raises FilterSyntaxError."""
    return test_of(parse(expression))
