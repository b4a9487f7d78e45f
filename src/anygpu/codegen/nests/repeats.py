"""Values that one loop would compute so often that they are stored instead, found without writing the loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from anygpu.codegen.nests.lowering import SHORT, is_computed
from anygpu.codegen.nests.roots import Root
from anygpu.program.graph import Program
from anygpu.program.primitives import Contract, Reduce, product

#: A value may be computed so often for each of its elements, or more often where that takes few values in all.
_FEW_TIMES = 4
_FEW_VALUES = 128
#: Larger counts say no more.
_COUNTED = 1 << 60


def computed_too_often(program: Program, order: Sequence[int], root: Root, stored: Collection[int]) -> set[int]:
    """Values between a root and what is stored that are to be stored as well, because loops would repeat them.

    `order` has the nodes of the program, each after its inputs. Places multiply: nine terms of a sum, each of which is
    a sum of nine, are 81 places of the innermost value, and 6561 where that is such a sum again. This takes no longer
    than the program is long. Two ways to the same place count twice, unless all between them is elementwise.
    """
    given = {*stored} - {root.node}
    often = _places_from(program, order, root, given)
    return _values_of_one(program, order, given, often)[1]


def _places_from(program: Program, order: Sequence[int], root: Root, given: Collection[int]) -> dict[int, int]:
    """What is computed too often, and at how many places, if all of it that comes before in the loops is stored."""
    values, _ = _values_of_one(program, order, given, {})
    found: dict[int, int] = {}
    # For each value the inputs of nodes that it is read as; and how many places there are of each of these in a round
    # of a loop, and in all rounds. Elementwise functions read at their own places.
    places: dict[int, dict[tuple[int, int], tuple[int, int]]] = {root.source: {(root.node, -1): (1, root.size)}}
    for node in reversed(order):
        if node in given or node not in places:
            continue
        op, inputs = program.nodes[node]
        own = places.pop(node)
        in_round, in_all = (min(sum(counts), _COUNTED) for counts in zip(*own.values(), strict=True))
        size = program.specs[node].size
        repeated = in_all > _FEW_TIMES * size and in_round * values[node] > _FEW_VALUES
        if repeated and is_computed(op) and node not in (root.source, root.node):
            found[node] = in_round
            in_round, in_all = 1, size
            own = {(node, -1): (in_round, in_all)}
        terms = _terms(program, node)
        for number, source in enumerate(inputs):
            of_source = places.setdefault(source, {})
            if op.is_elementwise:
                of_source.update(own)
            else:
                of_source[node, number] = in_round * terms, in_all * terms
    return found


def _values_of_one(
    program: Program, order: Sequence[int], given: Collection[int], often: Mapping[int, int]
) -> tuple[dict[int, int], set[int]]:
    """How many values one element of each node takes, at most, down to what is stored.

    With values at so many places, those of them come second that are many values even where those below are stored.
    """
    values: dict[int, int] = {}
    kept: set[int] = set()
    for node in order:
        op, inputs = program.nodes[node]
        below = sum(values[source] for source in inputs if source not in given and source not in kept)
        values[node] = min(below * _terms(program, node) + is_computed(op), _COUNTED)
        if often.get(node, 0) * values[node] > _FEW_VALUES:
            kept.add(node)
    return values, kept


def _terms(program: Program, node: int) -> int:
    """The elements of its inputs that are written out for one of a node."""
    op, inputs = program.nodes[node]
    axes = op.axes if isinstance(op, Reduce) else op.left if isinstance(op, Contract) else ()
    length = product(tuple(program.specs[inputs[0]].shape[axis] for axis in axes)) if axes else 1
    return length if length <= SHORT else 1
