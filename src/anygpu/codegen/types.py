"""Maps the types of programs to the types that kernels compute and store: seven compute types, or pairs of them."""

from __future__ import annotations

from anygpu.codegen.target import ComputeType, Target
from anygpu.program.dtypes import ITEMSIZE, REAL_PART, DType

#: The type that a value of each real type is computed in.
COMPUTE: dict[DType, ComputeType] = {
    "bool": "bool",
    "int8": "i32",
    "int16": "i32",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u32",
    "uint16": "u32",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f32",
    "bfloat16": "f32",
    "float32": "f32",
    "float64": "f64",
}

#: Functions that bring a value back into a type that is narrower than the one it is computed in.
NARROWED: dict[DType, str] = {
    "int8": "wrap_i8",
    "int16": "wrap_i16",
    "uint8": "wrap_u8",
    "uint16": "wrap_u16",
    "float16": "round_f16",
    "bfloat16": "round_bf16",
}

#: The type in which temporaries of each narrow type are stored: as they are computed.
WIDE: dict[DType, DType] = {
    "bool": "uint32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "uint32",
    "uint16": "uint32",
    "float16": "float32",
    "bfloat16": "float32",
}

#: The type that has the compute type's name among programs' types.
STORED: dict[ComputeType, DType] = {
    "bool": "uint32",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
}


def part_of(dtype: DType) -> DType:
    """The real type that a value consists of."""
    return REAL_PART.get(dtype, dtype)


def components(dtype: DType) -> int:
    return 2 if dtype in REAL_PART else 1


def compute_type(dtype: DType) -> ComputeType:
    return COMPUTE[part_of(dtype)]


def is_narrow(dtype: DType, target: Target) -> bool:
    """Whether elements share a machine word on the target, so that only the owner of a whole word may write them."""
    if target.dialect == "opencl":
        return False
    return ITEMSIZE[dtype] < 4 and not (dtype == "float16" and target.has("f16"))


def missing_feature(dtype: DType, target: Target) -> str | None:
    """The feature that the target lacks for the type; `None` when it lacks none."""
    needed = {"f64": "f64", "i64": "i64", "u64": "i64"}.get(compute_type(dtype))
    return needed if needed is not None and not target.has(needed) else None
