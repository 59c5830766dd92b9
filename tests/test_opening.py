"""mq.open: an option that is none names the nearest one."""

from __future__ import annotations

import ast
import inspect
import pydoc
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import mq
from mq import opening
from mq.api.local import directory as directory_of
from mq.broker.options import Options
from mq.opening import RemoteOptions

CLUSTER = "rocketmq://127.0.0.1:9876"


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("retention_hour", "retention_hours"),
        ("flush_intervall", "flush_interval"),
        ("auto_create_topic", "auto_create_topics"),
        ("readonly", "read_only"),
        ("default_queues_count", "default_queue_count"),
    ],
)
def test_an_unknown_option_of_a_directory_names_the_nearest(directory: Path, wrong: str, meant: str) -> None:
    given: dict[str, Any] = {wrong: 1}
    with pytest.raises(TypeError, match=f"'{wrong}' is no option of mq.open for a directory: .*'{meant}'"):
        mq.open(directory, **given)
    assert not directory.exists()


@pytest.mark.parametrize(("wrong", "meant"), [("secretkey", "secret_key"), ("time_out", "timeout")])
def test_an_unknown_option_of_a_cluster_names_the_nearest(wrong: str, meant: str) -> None:
    given: dict[str, Any] = {wrong: "x"}
    with pytest.raises(TypeError, match=f"'{wrong}' is no option of mq.open for a cluster: .*'{meant}'"):
        mq.open(CLUSTER, **given)


@pytest.mark.parametrize("kind", [Options, RemoteOptions])
def test_where_none_is_near_all_are_named(directory: Path, kind: type) -> None:
    given: dict[str, Any] = {"zzz": 1}
    with pytest.raises(TypeError, match="there are ") as caught:
        mq.open(directory if kind is Options else CLUSTER, **given)
    assert all(name in str(caught.value) for name in inspect.signature(kind).parameters)


def overloads() -> list[ast.FunctionDef]:
    """Those of mq.open, as a type checker reads them."""
    statements = ast.parse(inspect.getsource(opening)).body
    found = [each for each in statements if isinstance(each, ast.FunctionDef) and each.name == "open"]
    return [each for each in found if [ast.unparse(name) for name in each.decorator_list] == ["overload"]]


@pytest.mark.parametrize(("number", "kind"), [(0, Options), (1, RemoteOptions)])
def test_an_overload_has_the_options_with_their_types_and_defaults(
    number: int, kind: type[Options | RemoteOptions]
) -> None:
    arguments = overloads()[number].args
    declared = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        assert argument.annotation is not None
        assert default is not None
        value = eval(compile(ast.Expression(default), "mq.open", "eval"))
        declared[argument.arg] = ast.unparse(argument.annotation), value
    # Both sides of a comparison are printed alike: quotes may differ in the sources.
    options = {each.name: (ast.unparse(ast.parse(str(each.type))), each.default) for each in fields(kind)}
    assert declared == options


def test_help_shows_the_options_of_a_directory() -> None:
    """And their defaults, where a directory is opened by its class."""
    parameters = inspect.signature(mq.LocalBroker).parameters
    options = inspect.signature(Options).parameters
    assert dict(parameters) == {"path": parameters["path"], **options}
    assert list(inspect.signature(mq.open).parameters)[1 : len(parameters)] == list(options)
    assert "options: Any" not in pydoc.render_doc(mq.LocalBroker)


def documented(text: str) -> list[str]:
    """The options that a docstring explains, "name: ..." or "name, name: ..." where a sentence begins."""
    found = re.findall(r"(?:^\s*|\. )((?:[a-z_]+, )*[a-z_]+):\s", text, re.MULTILINE)
    return [name for names in found for name in names.split(", ")]


def test_the_docstring_of_open_explains_each_option_once() -> None:
    of_directory, of_cluster = (mq.open.__doc__ or "").split("Options of a cluster.")
    assert sorted(documented(of_directory)) == sorted(each.name for each in fields(Options))
    assert sorted(documented(of_cluster)) == sorted(each.name for each in fields(RemoteOptions))


@pytest.mark.parametrize(
    "name", ["append_once", "bulk", "expire", "kept_settings", "read_arrow", "retention"]
)
def test_what_a_directory_alone_has_is_no_attribute_of_a_cluster(name: str) -> None:
    with mq.open("rocketmq://127.0.0.1:1") as broker:
        with pytest.raises(mq.NotSupported, match=f"broker.{name} needs the broker of a directory"):
            getattr(broker, name)
        assert not hasattr(broker, name)
        assert not hasattr(broker, "no_such_name")
        with pytest.raises(mq.NotSupported, match="tidying needs"):
            directory_of(broker, "tidying")
