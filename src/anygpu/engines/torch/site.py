"""Where a primitive stands in a program: what its torch function can be chosen by before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from anygpu.program.dtypes import DType
from anygpu.program.primitives import Spec
from anygpu.program.rule_table import RuleTable

#: What a primitive becomes: tensors in, one tensor out.
Step: TypeAlias = Callable[..., Any]


class Site(NamedTuple):
    inputs: tuple[Spec, ...]
    result: Spec
    place: torch.device
    #: For each input the number that it is everywhere, where that is a part of the program.
    scalars: tuple[Any, ...] = ()
    #: Indices that no run can get wrong, and that name nothing twice.
    in_range: bool = False
    distinct: bool = False

    @property
    def dtype(self) -> DType:
        """The type that the primitive works on."""
        return self.inputs[0].dtype if self.inputs else self.result.dtype

    def scalar(self, which: int) -> Any:
        return self.scalars[which] if self.scalars else None


#: The step of each primitive at its site.
LOWER: RuleTable[Callable[[Any, Site], Step]] = RuleTable()
