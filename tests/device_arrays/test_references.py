"""Objects with one reference, and with more, on the interpreter that runs the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from anygpu.workers.device_arrays import handle
from anygpu.workers.device_arrays.handle import is_shared


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Struct(msgspec.Struct):
    value: object


HOLDERS = [Slotted, Struct, lambda value: SimpleNamespace(value=value)]


@pytest.mark.parametrize("hold", HOLDERS)
def test_what_only_its_holder_refers_to_is_not_shared(hold: Any) -> None:
    holder = hold(object())
    assert not is_shared(holder, "value")


@pytest.mark.parametrize("hold", HOLDERS)
def test_a_variable_a_list_and_an_argument_share_it(hold: Any) -> None:
    holder = hold(object())
    value = holder.value
    assert is_shared(holder, "value")
    listed = [value]
    del value
    assert is_shared(holder, "value")
    listed.clear()
    assert not is_shared(holder, "value")

    def called_with(argument: object) -> bool:
        return is_shared(holder, "value")

    assert called_with(holder.value)
    assert not is_shared(holder, "value")


def test_the_answer_stays_when_the_interpreter_has_specialised_the_call() -> None:
    holder, other = Slotted(object()), Slotted(object())
    kept = other.value
    for _ in range(5_000):
        assert not is_shared(holder, "value")
        assert is_shared(other, "value")
    assert kept is other.value


def test_a_constant_that_everything_shares_is_shared() -> None:
    assert is_shared(Slotted(None), "value")


def test_the_count_is_measured_and_not_written_down() -> None:
    handle._count_of_unshared.cache_clear()
    holder = Slotted(object())
    assert not is_shared(holder, "value")
    assert handle._count_of_unshared.cache_info().currsize == 1
