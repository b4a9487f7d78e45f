"""Nested containers of arrays are taken apart and put together again as they were."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytest

from anygpu.array.core.structure import LEAF, flatten, unflatten

A, B, C = np.zeros(1), np.ones(2), np.full(3, 2.0)


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class State:
    position: Any
    name: str = "start"
    made: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made = 1
        self.squared = 2

    @cached_property
    def doubled(self) -> Any:
        return self.position * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any

    def __post_init__(self) -> None:
        if isinstance(self.x, str):
            raise TypeError("made again through __init__")


class Mine(dict[str, Any]):
    def __init__(self, *, needed: int) -> None:
        self["needed"] = needed


class Rows(list[Any]):
    pass


def test_every_container_comes_back_as_it_was() -> None:
    ordered = OrderedDict(second=A, first=B)
    counted: defaultdict[str, list[Any]] = defaultdict(list, a=[A])
    value = {"a": (A, [B, None, "text"]), 3: Pair(C, (1, 2.5)), "o": ordered, "d": counted, "empty": ((), [], {})}
    leaves, structure = flatten(value)
    assert leaves[0] is A
    assert leaves[2] == "text"
    again = unflatten(structure, leaves)
    assert repr(again) == repr(value)
    assert type(again[3]) is Pair
    assert type(again["o"]) is OrderedDict
    assert list(again["o"]) == ["second", "first"]
    assert again["d"]["new"] == []


def test_what_is_no_container_is_a_leaf() -> None:
    for value in (A, 1.5, "text", object(), {1, 2}, State):
        leaves, structure = flatten(value)
        assert leaves == [value] or leaves[0] is value
        assert structure is LEAF
    assert flatten(None)[0] == []
    assert unflatten(flatten(None)[1], []) is None


def test_dataclasses_are_made_without_their_init_and_keep_what_they_have() -> None:
    state = State(A, "here")
    assert state.doubled is not None
    leaves, structure = flatten(state)
    assert len(leaves) == 4  # position, name, made, squared; not the cached property
    leaves[0] = B
    again = unflatten(structure, leaves)
    assert type(again) is State
    assert (again.name, again.made, again.squared) == ("here", 1, 2)
    assert np.array_equal(again.doubled, B * 2)

    leaves, structure = flatten(Frozen(A, (B, C)))
    again = unflatten(structure, ["x", "y", "z"])
    assert (again.x, again.y) == ("x", ("y", "z"))


def test_subclasses_keep_their_type_and_those_with_attributes_stay_whole() -> None:
    mine = Mine(needed=3)
    again = unflatten(flatten(mine)[1], [4])
    assert type(again) is Mine
    assert again == {"needed": 4}
    rows = Rows([A, B])
    assert type(unflatten(flatten(rows)[1], [1, 2])) is Rows
    rows.name = "named"  # type: ignore[attr-defined]
    assert flatten(rows)[1] is LEAF


def test_structures_are_equal_and_hash_alike_when_containers_are_alike() -> None:
    one, other = flatten({"a": [A, (B,)]})[1], flatten({"a": [B, (A,)]})[1]
    assert one == other
    assert hash(one) == hash(other)
    assert one != flatten({"b": [A, (B,)]})[1]
    assert one != flatten({"a": [A, [B]]})[1]
    assert flatten((A, B))[1] is flatten((1, 2.0))[1]
    kind = namedtuple("kind", "a b")
    assert flatten((A, B))[1] != flatten(kind(A, B))[1]
    assert repr(one) == "dict(a: list(*, tuple(*)))"


def test_a_wrong_number_of_leaves_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 leaves"):
        unflatten(flatten((A, B))[1], [A])
