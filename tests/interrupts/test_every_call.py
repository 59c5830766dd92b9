"""Every public method is among the calls that are cut short: see calls.py.

The public names are those of mq, mq.aio and mq.remoting, and of the protocols in mq.api, by which clients
and brokers speak. A name counts as called once a kind has fetched it from an object of its class.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodDescriptorType
from typing import Any, Protocol

import pytest

import mq
import mq.aio
import mq.api
import mq.remoting
from mq.fastpath import HandedOver
from mq.remoting.replica.replica import Replica
from mq.remoting.server.server import Server
from tests.interrupts.calls import CALLS, SIZES

SPECIAL = {
    *("__call__", "__iter__", "__aiter__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.usefixtures("dropped_here"),
]
ATTEMPTS = 5  # Some things are done by other threads, which may come too late.
VALUE = "a value: it shares nothing with anybody, so nothing of it can stay locked or half done"
# Why no kind calls them: of a class, or of one name of a class.
NOT_CALLED = {
    **dict.fromkeys(
        ("Member", "MessageExt", "MessageQueue", "PullResult", "QueueState", "Retry", "Subscription"), VALUE
    ),
    "RemoteBroker": "needs a cluster: tests/cluster/test_interrupts.py interrupts its calls",
    "Cluster": "is of the broker of a cluster alone",
    **dict.fromkeys(("Claim.reserve", "Membership.unreserve"), "a server calls it, by threads of its own"),
}


class Seen:
    """Takes the place of an attribute of a class, and notes that it was fetched. Where the class has none,
    its objects have one each."""

    def __init__(self, attribute: Any, name: str, shown: str, names: set[str]) -> None:
        self._attribute = attribute
        self._name = name
        self._shown = shown
        self._names = names

    def __get__(self, of: object, owner: type) -> Any:
        # isinstance() of a protocol looks whether there are such names.
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        if frame.f_back.f_globals.get("__name__") != "typing":
            self._names.add(self._shown)
        own = getattr(of, "__dict__", {})
        if self._name in own:
            return own[self._name]
        if self._attribute is None:
            raise AttributeError(self._name)
        get = getattr(self._attribute, "__get__", None)
        return self._attribute if get is None else get(of, owner)

    def __set__(self, of: object, value: object) -> None:
        put = getattr(self._attribute, "__set__", None)
        if put is None:
            vars(of)[self._name] = value
        else:
            put(of, value)


def public_classes() -> Iterator[type]:
    """What users make, or get."""
    for module in (mq, mq.aio):
        for name in module.__all__:
            found = getattr(module, name)
            is_other = not inspect.isclass(found) or issubclass(found, (BaseException, enum.Enum))
            if not is_other and not is_protocol(found):
                yield found
    yield from (Server, Replica)


def protocols() -> Iterator[type]:
    for module in pkgutil.iter_modules(mq.api.__path__, "mq.api."):
        for found in vars(importlib.import_module(module.name)).values():
            if is_protocol(found) and found.__module__ == module.name:
                yield found


def is_protocol(found: object) -> bool:
    return inspect.isclass(found) and Protocol in found.__bases__


def public_names(of: type) -> dict[str, type]:
    """Methods, and what is worked out when it is asked for; each with the class that has it."""
    found: dict[str, type] = {}
    for each in of.__mro__:
        if each.__module__.partition(".")[0] == "mq":
            for name, value in vars(each).items():
                if is_call(name, value):
                    found.setdefault(name, each)
    return found


def is_call(name: str, value: object) -> bool:
    kinds = FunctionType, MethodDescriptorType, HandedOver, property, staticmethod, classmethod, _FAST
    return (not name.startswith("_") or name in SPECIAL) and isinstance(value, kinds)


_FAST = type(inspect.getattr_static(mq.Producer, "send"))  # see mq.fastpath.in_c


def brokers_classes() -> list[type]:
    """All that the broker of a directory consists of."""
    modules = [module for name, module in sys.modules.items() if name.startswith(("mq.broker.", "mq.store."))]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def implements(of: type, protocol: type, names: list[str]) -> bool:
    """Whether it most likely does: some of the names may be attributes of its objects."""
    has_most = 3 * sum(hasattr(of, name) for name in names) >= 2 * len(names)
    return has_most or of.__name__ == protocol.__name__


def watched() -> dict[str, list[tuple[type, str]]]:
    """The public names by "Class.name", with the classes of which each of them is an attribute."""
    found: dict[str, list[tuple[type, str]]] = {}
    for each in public_classes():
        for name, owner in public_names(each).items():
            found.setdefault(shown(owner, name), []).append((each, name))
    for protocol in protocols():
        names = [name for name in public_names(protocol) if name != "__call__"]
        implementing = [each for each in brokers_classes() if implements(each, protocol, names)]
        for name in names:
            found.setdefault(shown(protocol, name), []).extend((each, name) for each in implementing)
    return found


def shown(owner: type, name: str) -> str:
    return f"{'aio.' if owner.__module__.startswith('mq.aio') else ''}{owner.__name__}.{name}"


def test_every_public_method_is_called_by_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, wanted = set[str](), watched()
    for text, places in wanted.items():
        for owner, name in places:
            attribute = inspect.getattr_static(owner, name, None)
            monkeypatch.setattr(owner, name, Seen(attribute, name, text, names), raising=False)
    for attempt in range(ATTEMPTS):
        for number, kind in enumerate(CALLS):
            with mq.open(tmp_path / f"{attempt}-{number}" / "store", **SIZES) as broker:
                broker.create_topic("orders", 2)
                kind(broker)(0)
        missing = {
            name
            for name in wanted.keys() - names
            if NOT_CALLED.keys().isdisjoint((name, name.partition(".")[0]))
        }
        if not missing:
            return
    pytest.fail(f"no kind calls {sorted(missing)}")
