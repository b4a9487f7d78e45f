"""The facts about a processor that the text of its code depends on."""

from __future__ import annotations

import msgspec


class NativeTarget(msgspec.Struct, frozen=True):
    """A processor: LLVM's triple and data layout, the features that may be used, and the bytes of a register."""

    triple: str
    data_layout: str
    #: As LLVM names them, without a sign: "avx2", "sse4.1".
    features: frozenset[str]
    vector_bytes: int

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64"))

    @property
    def rounds(self) -> bool:
        """Whether there are instructions for floor and its like; else LLVM would call a C library."""
        return self.is_arm or "sse4.1" in self.features

    @property
    def fuses(self) -> bool:
        """Whether there are instructions that round a product and a sum once; else LLVM would call a C library."""
        return self.is_arm or "fma" in self.features

    @property
    def halves(self) -> bool:
        """Whether there are instructions that convert float16."""
        return self.is_arm or "f16c" in self.features
