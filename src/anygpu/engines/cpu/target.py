"""The processor that code is made for: this machine's, or a lesser one that a test or a user asks for."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache

import msgspec

from anygpu.base.cache_location import cache_location
from anygpu.engines.cpu.compiler import described_host
from anygpu.engines.disk_cache import DiskCache
from anygpu.engines.distributions import mark_of_llvmlite
from anygpu.errors import InvalidOption

_SSE2 = ("cx8", "fxsr", "mmx", "sse", "sse2")
_SSE42 = (*_SSE2, "cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_AVX2 = (*_SSE42, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
#: What `ANYGPU_CPU_FEATURES` may say beside "native": the levels of x86-64, and plain ARM.
LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": _SSE2,
    "x86-64-v2": _SSE42,
    "x86-64-v3": _AVX2,
    "x86-64-v4": _AVX512,
    "armv8-a": ("fp-armv8", "neon"),
}


class HostProcessor(msgspec.Struct, frozen=True):
    """A processor as LLVM has it."""

    cpu: str
    #: Each with a plus or a minus, separated by commas.
    features: str
    triple: str
    data_layout: str
    #: The version of LLVM.
    llvm: str

    @property
    def present(self) -> frozenset[str]:
        """The features that it has."""
        return frozenset(each[1:] for each in self.features.split(",") if each.startswith("+"))

    @property
    def vector_bytes(self) -> int:
        return 64 if "avx512f" in self.present else 32 if "avx" in self.present else 16

    def as_request(self) -> dict[str, str]:
        """As the compiler is told."""
        return {**msgspec.structs.asdict(self), "vector_bytes": str(self.vector_bytes)}


def host_processor() -> HostProcessor:
    """The processor to compile for."""
    return _restricted(os.environ.get("ANYGPU_CPU_FEATURES", "native"))


@cache
def _restricted(wanted: str) -> HostProcessor:
    host = _host()
    if wanted in ("native", ""):
        return host
    if wanted not in LEVELS:
        raise InvalidOption(f"ANYGPU_CPU_FEATURES is {wanted!r}. Use native or one of {', '.join(LEVELS)}.")
    # Never more than there is: the code runs on this machine.
    features = ",".join(f"+{name}" for name in LEVELS[wanted] if name in host.present)
    cpu = "x86-64" if wanted.startswith("x86") else "generic"
    return msgspec.structs.replace(host, cpu=cpu, features=features)


@cache
def _host() -> HostProcessor:
    """Kept on disk: asking LLVM takes as long as loading it."""
    known = DiskCache(os.path.join(cache_location(), "native"), "")
    key = msgspec.json.encode((processor_facts(), mark_of_llvmlite(), sys.platform, platform.machine()))
    found = known.record("processor", key, HostProcessor)
    if found is None:
        found = HostProcessor(**described_host())
        known.put_record("processor", key, found)
    return found


def processor_facts() -> str:
    """All that this machine says of its first processor, by which another one is recognised."""
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return platform.processor()
    changing = ("cpu mhz", "bogomips", "processor", "apicid", "core id", "initial apicid")
    return "\n".join(line for line in first.splitlines() if not line.lower().startswith(changing))
