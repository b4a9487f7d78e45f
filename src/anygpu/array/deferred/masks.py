"""Elements that a mask selects, `x[mask]`: calls on them wait as well, though nobody knows yet how many there are.

They can be computed with: with numbers, and with elements that the same mask has selected. They can be assigned to the
elements of an array that the same mask selects. Their sum and their mean wait too. Whatever else is wanted of them
needs their values.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.deferred.layouts import Fact, Op, Selection, is_number
from anygpu.array.deferred.script import Form, Step

if TYPE_CHECKING:
    from anygpu.array.deferred.standing_in import StandIn

#: Elements that a mask selects, and an assignment to them. As native code everything is computed, and chosen of then:
#: with a selected element in the place of others, so that nothing is met that NumPy would not meet. One is quicker,
#: where `ones_are_harmless`: to find a selected element takes passes over all.
SELECTED = Op(operator.getitem, "np.where({1}, {0}, {0}.reshape(-1)[np.argmax({1})])")
ASSIGNED = Op(operator.setitem, "{0}[...] = np.where({1}, {2}, {0})", writes=True)
#: What is computed of the elements that a mask has selected: these, the mask, and what they were selected of.
REDUCED = {
    "sum": Op(lambda selected, mask, array: selected.sum(), "np.where({1}, {2}, 0.0).sum()"),
    "mean": Op(lambda selected, mask, array: selected.mean(), "(np.where({1}, {2}, 0.0).sum() / {1}.sum())"),
}
_OPPOSITES = frozenset(("(~{0})", "np.logical_not({0})", "np.invert({0})", "np.bitwise_not({0})"))
#: Forms that compute each element by itself, beside those that call a ufunc.
ELEMENTWISE_TOO: set[Op] = set()


def mask_key(last: Step, mask: StandIn) -> Any:
    """What a mask is known by in a script that has come to a step: its entry, or what it is the opposite of."""
    step = last
    while step.number > mask._entry and step.before is not None:
        step = step.before
    is_opposite = type(step.entry) is tuple and step.entry[0].op.text in _OPPOSITES
    return ("~", step.entry[1][0]) if is_opposite else mask._entry


def selected_by(op: Op, operands: tuple[Any, ...], segment: object) -> Any:
    """The key of the mask, where elements that one mask has selected are computed with; else `None`."""
    if op is ASSIGNED:
        return operands[2]._selected
    if op.ufunc is None and op not in ELEMENTWISE_TOO:
        return None
    found: set[Any] = set()
    for each in operands:
        layout = getattr(each, "_layout", None)
        if type(layout) is Selection:
            found.add(each._selected if each._segment is segment else None)
        elif not (is_number(each) if layout is None else layout.is_number):
            return None
    return found.pop() if len(found) == 1 else None


def ones_are_harmless(script: Form, constants: dict[int, Any]) -> bool:
    """Whether NumPy warns of nothing where all elements that masks select are one.

    `constants` are numbers that go in and are known, by their entries.
    """
    ones: dict[int, Any] = {}
    known = dict(constants)
    try:
        with np.errstate(all="raise"):
            for place, (fact, operands) in [
                (at, each) for at, each in enumerate(script.entries) if type(each) is tuple
            ]:
                if fact.op is SELECTED:
                    ones[place] = known[place] = np.ones(1, fact.layout.dtype)
                elif not ones.keys().isdisjoint(operands) and fact.op is not ASSIGNED and fact.op not in _REDUCING:
                    result = fact.op.apply(*[known[each] for each in operands])
                    ones[place] = known[place] = known[operands[0]] if fact.op.writes else result
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return False  # of a number that is not known, too
    return True


def text_with_ones(fact: Fact) -> str:
    """What is written for elements that a mask selects, with ones in the place of the others."""
    assert fact.layout is not None
    return f"np.where({{1}}, {{0}}, {fact.layout.dtype.type(1).item()!r})"


_REDUCING = frozenset(REDUCED.values())
