"""A program: an immutable graph of primitives in the order in which they can be computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from anygpu.base.events import drawn
from anygpu.base.own_files import blake2b
from anygpu.errors import InvalidProgram
from anygpu.program.ops.source import Input
from anygpu.program.primitive import Primitive, Spec

#: The user's own line that a node comes from: file name and line number.
Line = tuple[str, int]


class Node(NamedTuple):
    """One primitive, applied to the values of earlier nodes, given by their positions."""

    op: Primitive
    inputs: tuple[int, ...] = ()


class Program:
    """An immutable, hashable graph with one or more results.

    Nodes stand in topological order, and the inputs come first. Two programs that compute the same thing by the same
    nodes are equal and have the same `key`, in every process and on every machine.
    """

    __slots__ = ("__dict__", "lines", "nodes", "outputs", "specs")

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    #: Shape and type of every node.
    specs: tuple[Spec, ...]
    #: For each node the user's line, where it is known. No part of the program's identity.
    lines: tuple[Line | None, ...]

    def __init__(
        self, nodes: Iterable[Node], outputs: Sequence[int], *, lines: Sequence[Line | None] | None = None
    ) -> None:
        self.nodes = tuple(nodes)
        self.outputs = tuple(outputs)
        self.specs = tuple(_infer(self.nodes))
        self.lines = tuple(lines) if lines is not None else (None,) * len(self.nodes)
        if not self.outputs:
            raise InvalidProgram("a program returns at least one value.")
        for output in self.outputs:
            if not 0 <= output < len(self.nodes):
                raise InvalidProgram(f"a program of {len(self.nodes)} nodes cannot return node {output}.")
        if len(self.lines) != len(self.nodes):
            raise InvalidProgram(f"{len(self.lines)} lines for {len(self.nodes)} nodes.")

    @classmethod
    def trusted(
        cls, nodes: tuple[Node, ...], outputs: tuple[int, ...], specs: tuple[Spec, ...], lines: tuple[Line | None, ...]
    ) -> Program:
        """From parts that are known to fit, as a recorder has them; nothing is inferred or checked again."""
        program = object.__new__(cls)
        program.nodes, program.outputs, program.specs, program.lines = nodes, outputs, specs, lines
        return program

    @cached_property
    def input_count(self) -> int:
        return sum(isinstance(node.op, Input) for node in self.nodes)

    @property
    def inputs(self) -> tuple[Spec, ...]:
        return self.specs[: self.input_count]

    @property
    def results(self) -> tuple[Spec, ...]:
        return tuple(self.specs[output] for output in self.outputs)

    @cached_property
    def key(self) -> str:
        """A hash of the content, the same in every process and on every machine."""
        return blake2b(msgspec.msgpack.encode((self.nodes, self.outputs)), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        # By its bytes: numbers that are equal, such as 0.0 and -0.0, need not be the same.
        return self is other or self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        ends = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.results))
        return f"<Program {self.key[:8]}: ({ends[0]}) -> ({ends[1]}), {len(self.nodes)} nodes>"

    def __str__(self) -> str:
        from anygpu.program.text import to_text

        return to_text(self)

    def _repr_html_(self) -> str | None:
        return drawn(self)


class Recorder:
    """Builds a program node by node; a node that is already there is not added again."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._specs: list[Spec] = []
        self._lines: list[Line | None] = []
        self._known: dict[Node, int] = {}

    def spec(self, position: int) -> Spec:
        return self._specs[position]

    def input(self, spec: Spec) -> int:
        """A new input; two of the same shape and type are still two."""
        if self._nodes and not isinstance(self._nodes[-1].op, Input):
            raise InvalidProgram("inputs come before everything else.")
        return self._append(Node(Input(*spec)), spec, None)

    def add(self, op: Primitive, *inputs: int, spec: Spec | None = None, line: Line | None = None) -> int:
        """The position of `op(*inputs)`; its spec is inferred unless the caller has it already."""
        node = Node(op, inputs)
        known = self._known.get(node)
        if known is not None:
            return known
        if spec is None:
            spec = op.infer(*(self._specs[position] for position in inputs))
        position = self._append(node, spec, line)
        self._known[node] = position
        return position

    def _append(self, node: Node, spec: Spec, line: Line | None) -> int:
        self._nodes.append(node)
        self._specs.append(spec)
        self._lines.append(line)
        return len(self._nodes) - 1

    def program(self, outputs: Sequence[int]) -> Program:
        return Program.trusted(tuple(self._nodes), tuple(outputs), tuple(self._specs), tuple(self._lines))


def _infer(nodes: Sequence[Node]) -> Iterator[Spec]:
    specs: list[Spec] = []
    inputs_are_over = False
    for position, (op, inputs) in enumerate(nodes):
        for earlier in inputs:
            if not 0 <= earlier < position:
                raise InvalidProgram(f"node {position} ({op.name}) uses node {earlier}, which does not come before it.")
        if isinstance(op, Input):
            if inputs_are_over:
                raise InvalidProgram(f"node {position} is an input; inputs come before everything else.")
        else:
            inputs_are_over = True
        specs.append(op.infer(*(specs[earlier] for earlier in inputs)))
    yield from specs
