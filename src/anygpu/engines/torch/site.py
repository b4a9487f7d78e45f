"""The place of a primitive in a program, by which its torch function can be chosen before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.primitive import RuleTable
from anygpu.program.primitives import (
    Spec,
)

#: The torch call of a primitive: tensors in, one tensor out.
Step: TypeAlias = Callable[..., Any]


class Site(NamedTuple):
    """A primitive's inputs, result and device, and what is known of its operands before it runs."""

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


# -- how values of each type are held while a program runs
#
# torch has few operations on unsigned integers wider than 8 bits. Inside a program they are held as the signed type of
# the same width: the same bits, so that moving, adding and multiplying need nothing; only what depends on the sign must
# know, and asks for `ordered` or `widened`.


TORCH: dict[DType, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}


#: Unsigned types that torch can hold and hardly compute with, and their stand-ins.
STAND_IN: dict[DType, torch.dtype] = {"uint16": torch.int16, "uint32": torch.int32, "uint64": torch.int64}


HELD: dict[DType, torch.dtype] = {**TORCH, **STAND_IN}


_WIDER: dict[DType, tuple[torch.dtype, int]] = {"uint16": (torch.int32, 0xFFFF), "uint32": (torch.int64, 0xFFFFFFFF)}


_TOP_BIT: dict[DType, int] = {"uint16": -(1 << 15), "uint32": -(1 << 31), "uint64": -(1 << 63)}


def has_stand_in(dtype: DType) -> bool:
    return dtype in STAND_IN


def ordered(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Signed numbers in the same order. Its own inverse."""
    return x ^ _TOP_BIT[dtype] if dtype in STAND_IN else x


def widened(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """The same numbers in a signed type that holds them all; not for uint64, for which there is none."""
    if dtype not in _WIDER:
        return x
    wider, mask = _WIDER[dtype]
    return x.to(wider).bitwise_and_(mask)


def narrowed(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """Back from `widened`, modulo the type's range."""
    return x.to(HELD[dtype])
