"""Columns of tags, keys and properties as the property strings of records (see mq/properties.py).

Arrow encodes a column in one go if every row is in the usual form. Otherwise the column is encoded row by
row: this normalizes what has no meaning (repeated blanks between keys, an empty tag) and rejects what
RocketMQ could not return. Both ways give the same result for every row in the usual form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mq.errors import MessageInvalid
from mq.properties import BLANKS, PROPERTIES_SIZE_MAX, RESERVED_NAMES, TRANSIENT_PREFIX, encode
from mq.spark.errors import SparkError

__all__ = ["joined", "keys_of", "properties_of", "tags_of"]

BEFORE_VALUE, BEHIND_VALUE = "\x01", "\x02"
# White space besides the blank: a text of nothing else would be invisible.
SPACES = (b"\t", b"\n", b"\v", b"\f", b"\r", b"\x1c", b"\x1d", b"\x1e", b"\x1f")
OTHER_SPACES = "[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"


def joined(parts: list[Any], rows: int) -> Any:
    """The concatenated parts of each row's property string, as binary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not parts:
        return pa.repeat(pa.scalar(b"", pa.binary()), rows)
    whole = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, "")
    largest = pc.max(pc.binary_length(whole)).as_py()
    if largest > PROPERTIES_SIZE_MAX:
        raise SparkError(
            "MQ_ROW",
            f"tags, keys and properties of a row come to {largest:,} bytes, over the limit of"
            f" {PROPERTIES_SIZE_MAX:,}: move what is large into the body",
        )
    return whole.cast(pa.binary())


def tags_of(column: Any) -> Any | None:
    """The encoded tags of a column of strings; None if it has no tag."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # An empty text is no tag.
    texts = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    if texts.null_count == len(texts):
        return None
    if _is_usual(texts) and not _may_be_no_tag(texts):
        return _named("TAGS", texts)
    return _by_row(column, lambda text: encode(text or None, (), None, 0, None, None, True))


def keys_of(column: Any) -> Any | None:
    """The encoded keys of a column of strings (keys separated by blanks) or of lists; None if it has no
    key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return None
    texts = column
    if pa.types.is_list(column.type):
        each = column.flatten()
        if each.null_count or b" " in _bytes_of(each) or not _is_usual(each) or _has_empty(each):
            return _by_row(column, _encoded_keys)
        texts = pc.binary_join(column, " ")
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if texts.null_count == len(texts):
        return None
    if _is_usual(texts) and not _has_odd_blanks(texts):
        return _named("KEYS", texts)
    return _by_row(column, _encoded_keys)


def properties_of(column: Any) -> Any | None:
    """The encoded properties of a column of maps; None if it has none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return None
    offsets = column.offsets
    first, behind = offsets[0].as_py(), offsets[-1].as_py()
    if first == behind:
        return None
    names = column.keys.slice(first, behind - first)
    values = column.items.slice(first, behind - first)
    if not (_are_names(names) and not values.null_count and _is_usual(values) and not _has_empty(values)):
        return _by_row(column, _encoded_properties)
    each = pc.binary_join_element_wise(names, BEFORE_VALUE, values, BEHIND_VALUE, "")
    rows = pc.binary_join(pa.ListArray.from_arrays(pc.subtract(offsets, first), each), "")
    return pc.if_else(column.is_valid(), rows, "") if column.null_count else rows


def _are_names(names: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    return (
        not names.null_count
        and _is_usual(names)
        and not _has_empty(names)
        and not pc.any(pc.is_in(names, value_set=pa.array(sorted(RESERVED_NAMES)))).as_py()
        and not (
            TRANSIENT_PREFIX.encode() in _bytes_of(names)
            and pc.any(pc.starts_with(names, TRANSIENT_PREFIX)).as_py()
        )
    )


def _named(name: str, texts: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.binary_join_element_wise(name + BEFORE_VALUE, texts, BEHIND_VALUE, ""), "")


def _is_usual(texts: Any) -> bool:
    """Whether all texts can go into a property string as they are: no separator, no white space but the
    blank, valid UTF-8, and none of blanks alone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    content = _bytes_of(texts)
    if any(mark in content for mark in (b"\x01", b"\x02", *SPACES)):
        return False
    if content.isascii():
        return b" " not in content or not pc.any(pc.utf8_is_space(texts)).as_py()
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return not pc.any(pc.utf8_is_space(texts)).as_py()


def _may_be_no_tag(texts: Any) -> bool:
    """Whether a text may be one that no tag expression can name."""
    content = _bytes_of(texts)
    return b"||" in content or b"*" in content or len(content.translate(None, BLANKS.encode())) < len(content)


def _has_empty(texts: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.any(pc.equal(pc.binary_length(texts), 0)).as_py())


def _has_odd_blanks(texts: Any) -> bool:
    """Whether there are superfluous blanks, or a key that may be of other white space alone."""
    import pyarrow.compute as pc

    content = _bytes_of(texts)
    if b" " not in content:
        return False
    if not content.isascii() and pc.any(pc.match_substring_regex(texts, OTHER_SPACES)).as_py():
        return True
    # This also matches across two adjacent texts: then the rows are checked in vain.
    return b"  " in content or bool(
        pc.any(pc.or_(pc.starts_with(texts, " "), pc.ends_with(texts, " "))).as_py()
    )


def _bytes_of(texts: Any) -> bytes:
    """The bytes of all texts, including the unused bytes of null values."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return b""
    places = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[places[texts.offset] : places[texts.offset + len(texts)]])


def _by_row(column: Any, encoded: Callable[[Any], bytes]) -> Any:
    import pyarrow as pa

    try:
        strings = [b"" if value is None else encoded(value) for value in column.to_pylist()]
    except UnicodeDecodeError as error:
        raise SparkError("MQ_ROW", f"a text of a row is not UTF-8: {error}") from None
    except (MessageInvalid, TypeError) as error:
        raise SparkError("MQ_ROW", f"a row cannot be a message: {error}") from None
    return pa.array(strings, pa.binary()).cast(pa.string())


def _encoded_keys(value: str | Iterable[str | None]) -> bytes:
    keys = value.split(" ") if isinstance(value, str) else value
    return encode(None, [key for key in keys if key], None, 0, None, None, True)


def _encoded_properties(entries: list[tuple[str, str | None]]) -> bytes:
    properties = {}
    for name, value in entries:
        if value is None:
            raise MessageInvalid(f"property {name!r} is null, which a message cannot hold: leave it out")
        if name in RESERVED_NAMES or name.startswith(TRANSIENT_PREFIX):
            raise MessageInvalid(
                f"property name {name!r} is reserved by RocketMQ; what was read with includeProperties is"
                f" written without it by map_filter(properties, (k, v) -> k != {name!r})"
            )
        properties[name] = value
    return encode(None, (), properties, 0, None, None, True)
