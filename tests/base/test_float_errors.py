"""NumPy's floating-point modes: changed inside, and as before outside, wherever an interrupt comes."""

from __future__ import annotations

import contextvars
from typing import Any

import numpy as np

from anygpu.base.interrupts import float_errors, float_errors_ignored
from tests.support.interrupting import AtMoment, places_of

ASKED: contextvars.ContextVar[int] = contextvars.ContextVar("ASKED", default=0)


def modes() -> dict[str, Any]:
    return {**np.geterr()}


def test_modes_are_those_that_were_asked_for_beside_those_of_the_caller() -> None:
    with np.errstate(divide="raise", over="raise"):
        assert set(float_errors_ignored(modes)().values()) == {"ignore"}
        assert float_errors(over="ignore")(modes)() == modes() | {"over": "ignore"}


def test_users_functions_inside_see_the_callers_context() -> None:
    """As the reference of a kernel, or an offloaded function that must know that it is inside of another one."""
    token = ASKED.set(7)
    try:
        assert float_errors_ignored(ASKED.get)() == 7
        assert float_errors(over="ignore")(ASKED.get)() == 7
    finally:
        ASKED.reset(token)


def test_an_interrupt_leaves_nothing_changed() -> None:
    before = modes()
    call = float_errors_ignored(lambda: len("a"))
    places = places_of(call)
    assert places
    for place in places:
        AtMoment(place).run(call)
        assert modes() == before
