"""What is known while a program is traced for XLA, and what is to be complained of after it has run.

Compiled code cannot raise. Where NumPy would raise because of values, the program returns a hidden flag beside its
results, and the flag becomes the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from anygpu.program.dtypes import DType
from anygpu.program.primitives import Spec

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

    @property
    def dtype(self) -> DType:
        """The type that the primitive works on."""
        return self.inputs[0].dtype if self.inputs else self.result.dtype
