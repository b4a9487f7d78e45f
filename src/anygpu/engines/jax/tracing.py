"""What is known while a program is traced for XLA, and what is to be complained of after it has run.

Compiled code cannot raise. Where NumPy would raise because of values, the program returns a hidden flag beside its
results, and the flag becomes the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from anygpu.program.dtypes import DType
from anygpu.program.primitives import Spec
from anygpu.program.rule_table import RuleTable

#: How each primitive is traced: with its site and the arrays that it takes.
LOWER: RuleTable[Callable[..., Any]] = RuleTable()


def hidden(values: Any) -> Array:
    """A constant behind a barrier: XLA simplifies what it knows, and x + 0 is not x when x is -0."""
    if values.dtype.kind == "c":
        # Complex numbers as such are simplified once more, behind the barriers.
        return lax.complex(hidden(values.real), hidden(values.imag))
    return lax.optimization_barrier(jnp.asarray(values))


Complaint = Callable[[], Exception]


class Site(NamedTuple):
    """Where a primitive stands in a program."""

    inputs: tuple[Spec, ...]
    result: Spec
    #: Called with a flag and the error that it stands for.
    complain: Callable[[Any, Complaint], None]
    #: Indices that no run can get wrong, and that name nothing twice.
    in_range: bool = False
    distinct: bool = False
    #: For each input the number that it is everywhere, where that is a part of the program.
    scalars: tuple[Any, ...] = ()

    @property
    def dtype(self) -> DType:
        """The type that the primitive works on."""
        return self.inputs[0].dtype if self.inputs else self.result.dtype

    def scalar(self, which: int) -> Any:
        return self.scalars[which] if self.scalars else None
