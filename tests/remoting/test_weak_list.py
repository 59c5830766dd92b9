"""Objects that others keep, listed while another thread adds and drops some."""

from __future__ import annotations

import sys
import threading

from mq.remoting.weak_list import WeakList


class Kept:
    """Something that can be referred to weakly."""


def test_what_is_dropped_is_gone() -> None:
    listed = WeakList[Kept]()
    one, two = Kept(), Kept()
    listed.add(one)
    listed.add(two)
    assert listed.items() == [one, two]
    del one
    assert listed.items() == [two]


def test_it_is_listed_while_others_are_added_and_dropped() -> None:
    """A WeakSet raises here, as its size changes while it is listed."""
    listed, stays, switching = WeakList[Kept](), Kept(), sys.getswitchinterval()
    listed.add(stays)

    def add() -> None:
        kept = []
        for number in range(20_000):
            kept.append(Kept())
            listed.add(kept[-1])
            if number % 100 == 0:
                kept.clear()

    adding = threading.Thread(target=add)
    sys.setswitchinterval(1e-6)
    try:
        adding.start()
        while adding.is_alive():
            assert listed.items()[0] is stays
    finally:
        sys.setswitchinterval(switching)
        adding.join()
    assert listed.items() == [stays]
