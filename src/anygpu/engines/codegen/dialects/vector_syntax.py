"""Vectors in one dialect: their spelling, and how they are loaded and stored.

The rules of working in vectors are in `anygpu.engines.codegen.dialects.vectors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from anygpu.engines.codegen.index import Index
from anygpu.engines.codegen.kernel_ir import Buffer
from anygpu.engines.codegen.target import ComputeType, Syntax
from anygpu.program.dtypes import DType

#: Buffers whose elements are exactly of a compute type.
EXACT: dict[DType, ComputeType] = {
    "float32": "f32", "float64": "f64", "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
}  # fmt: skip


def is_multiple(index: Index, of: int) -> bool:
    """Whether a position surely is a multiple, whatever its variables are."""
    return index.constant % of == 0 and all(factor % of == 0 for _, factor in index.terms)


class VectorSyntax(ABC):
    """Vectors of `width` components in one dialect. Truth values of a vector are a vector, too."""

    syntax: Syntax
    width: int
    #: The number of vectors that one sum is kept in: each addition to a single one would wait for the last.
    chains: int = 1
    #: Whether an array of vectors is kept in registers when its positions are known.
    has_arrays: bool = False
    #: Whether it is worth while to do single components where there is no other way.
    patient: bool = True
    #: The number of loads and stores of whole vectors that have been printed.
    together: int = 0

    def type_name(self, type: ComputeType) -> str:
        return self.syntax.vector(type, self.width)

    def broadcast(self, type: ComputeType, text: str) -> str:
        return self.joined(type, [text])

    def joined(self, type: ComputeType, parts: Sequence[str]) -> str:
        """A vector of single values."""
        return self.syntax.construct(self.type_name(type), parts)

    def let(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.let(name, self.type_name(type), value)

    def variable(self, name: str, type: ComputeType, value: str) -> str:
        return self.syntax.variable(name, self.type_name(type), value)

    @abstractmethod
    def load(self, buffer: Buffer, index: Index) -> str | None:
        """Neighbours in a buffer from a position on; `None` where they cannot be had together."""

    @abstractmethod
    def store(self, buffer: Buffer, index: Index, value: str) -> list[str] | None: ...

    @abstractmethod
    def word(self, buffer: Buffer, value: str) -> str | None:
        """Elements that fill a word, as that word."""

    @abstractmethod
    def select(self, type: ComputeType, no: str, yes: str, mask: str) -> str: ...

    @abstractmethod
    def compare(self, fn: str, of: ComputeType, one: str, other: str) -> str: ...

    @abstractmethod
    def logic(self, pattern: str, texts: Sequence[str]) -> str: ...

    @abstractmethod
    def cast(self, of: ComputeType, to: ComputeType, text: str) -> str | None: ...

    @abstractmethod
    def call(self, fn: str, of: ComputeType, result: ComputeType, texts: Sequence[str]) -> str | None:
        """A function that takes vectors; `None` when it is for single values only."""

    def opaque(self, type: ComputeType, text: str) -> str:
        """The same values, hidden from the compiler's algebra."""
        return text

    def component(self, text: str, number: int) -> str:
        return self.syntax.component(text, number)

    def spread(self, buffer: Buffer, index: Index, offsets: Sequence[int]) -> str | None:
        """Elements at fixed distances from a position, as where several numbers share a byte; `None` if one by one."""
        return None

    def halved(self) -> VectorSyntax | None:
        """The same for vectors of half the size, where a vector has halves called `lo` and `hi`."""
        return None
