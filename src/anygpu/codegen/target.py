"""The facts about a device that code generation depends on, never its name."""

from __future__ import annotations

from typing import Literal

import msgspec

Dialect = Literal["wgsl", "opencl"]

#: The types that arithmetic happens in. Narrower ones are loaded into these and wrapped or rounded after each step;
#: a complex number is a pair of them.
ComputeType = Literal["bool", "i32", "u32", "i64", "u64", "f32", "f64"]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One device as kernels see it. Equal targets get equal kernels."""

    dialect: Dialect
    #: Any of "f16", "f64", "i64" and "subgroups".
    features: tuple[str, ...] = ()
    #: The most invocations in a group, and the bytes that they can share.
    group_limit: int = 256
    group_memory: int = 16384
    #: The most buffers that a kernel may take, and the bytes of each that it can see.
    bindings: int = 8
    binding_bytes: int = 128 << 20
    #: Groups along one dimension; more are folded into the second one. `None` when there is no limit.
    groups_per_dimension: int | None = 65535
    #: The most rounds of all loops of one invocation together. Some software adapters stop there, silently.
    loop_limit: int = 32768
    #: Whether one invocation is a thread of a processor, best given long vectors, or a lane of a wide machine,
    #: best given neighbours to work with. Only the starting point of tuning.
    scalar_invocations: bool = False
    #: Whether invocations are lanes of a processor's registers, as on a software adapter: starting one takes about as
    #: long as the arithmetic of a vector, and built-in functions are made of the same instructions as ours.
    emulated: bool = False
    #: Numbers that one invocation handles at once where it works alone.
    vector_width: int = 4
    #: Neighbouring invocations that are one subgroup in every kernel; 0 when that is not known.
    subgroup_size: int = 0
    #: Functions, as "exp_f32", for which the dialect's own is called instead of ours: on this very device it was
    #: measured to be accurate enough (WGSL) or fast enough (OpenCL C, which promises the accuracy).
    trusted: tuple[str, ...] = ()

    def has(self, feature: str) -> bool:
        return feature in self.features
