"""JAX: XLA on the CPU, on CUDA and ROCm cards, and on TPUs.

`JaxExecutable` is a program compiled as one function; errors that depend on values come back as flags. `lacks` names
what jax does not compute as NumPy does. `JaxEngine` finds devices and moves arrays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout

from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.value_analysis import IndexFacts, uniform_numbers, whole_exponent
from anygpu.engines.host_arrays import ProgramCache, refused
from anygpu.engines.jax import elementwise
from anygpu.engines.jax import structure as structure
from anygpu.engines.jax.elementwise import LOWER, JaxComplaint, JaxSite
from anygpu.engines.protocol import Lack, Memory, failed, verified, why_not_here
from anygpu.errors import AnyGPUError, CannotCompile, OutOfMemory
from anygpu.hardware import host
from anygpu.hardware.device import Device, DeviceKind, Unavailable, VerifiedType, reasons_for, unknown_facts
from anygpu.program.dtypes import DTYPES, KIND, DType
from anygpu.program.graph import Node, Program
from anygpu.program.ops.custom import Custom, with_references
from anygpu.program.primitives import (
    LINEAR_PARTS,
    Binary,
    Gather,
    Input,
    Iota,
    Linear,
    Primitive,
    Scan,
    Scatter,
    Unary,
)

# -- A program as one function that XLA compiles whole, and which of its nodes jax has nothing for


# `elementwise` and `structure` have filled LOWER when they were imported.

#: Between two operations XLA would leave out the rounding to float16.
_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}
#: XLA's simplifier takes x * x for positive, x * 2 / 2 for x, and sqrt(x * x) for abs(x), whether or not they overflow.
#: On the CPU it cannot see through a barrier after each operation, and these are gone before loops are fused. On
#: cards a barrier would keep loops apart, so there the simplifier is left out.
_WITHOUT_SIMPLIFIER = {**_OPTIONS, "xla_disable_hlo_passes": "algsimp"}


class JaxExecutable:
    """A compiled program. Its types are fixed when it is compiled, whatever jax is set to when it runs."""

    def __init__(self, program: Program, place: Any, device: Device) -> None:
        """Trace and compile a program for a device, with 64-bit types switched on meanwhile.

        Excess precision is forbidden, so that float16 is rounded where NumPy rounds it.
        """
        self.device = device
        self._complaints: list[JaxComplaint] = []
        sharding = jax.sharding.SingleDeviceSharding(place)
        inputs = [jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype), sharding=sharding) for spec in program.inputs]
        # Without x64 jax narrows 64-bit values to 32 bits silently.
        with jax.enable_x64(True):
            on_cpu = place.platform == "cpu"
            function = _function(program, self._complaints, barriers=on_cpu)
            traced = jax.jit(function, out_shardings=sharding, keep_unused=True)
            options = _OPTIONS if on_cpu else _WITHOUT_SIMPLIFIER
            self._compiled = traced.lower(*inputs).compile(compiler_options=options)

    def run(self, buffers: Sequence[jax.Array]) -> list[jax.Array]:
        """The results. Raises the first complaint whose flag the program has set."""
        results, flags = self._compiled(*buffers)
        if flags:
            raised = np.flatnonzero(np.asarray(flags[0]))
            if raised.size:
                raise self._complaints[raised[0]]()
        return results  # type: ignore[no-any-return]


def _function(program: Program, complaints: list[JaxComplaint], *, barriers: bool) -> Callable[..., Any]:
    """The program as a function of jax's arrays that returns results and flags of complaints.

    `complaints` has the error of each flag after tracing. With `barriers` XLA does not combine operations, which would
    skip roundings between them.
    """
    program = with_references(program, None)
    facts = IndexFacts(program)
    numbers = uniform_numbers(program)

    def run(*inputs: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        flags: list[jax.Array] = []
        complaints.clear()

        def complain(flag: jax.Array, error: JaxComplaint) -> None:
            flags.append(flag)
            complaints.append(error)

        values: list[Any] = list(inputs)
        decompositions: dict[tuple[Any, ...], Any] = {}
        for position, (op, sources) in enumerate(program.nodes):
            if isinstance(op, Input):
                continue
            specs = tuple(program.specs[source] for source in sources)
            scalars = tuple(numbers.get(source) for source in sources)
            site = JaxSite(specs, program.specs[position], complain, scalars=scalars)
            if isinstance(op, Gather | Scatter):
                site = site._replace(
                    in_range=facts.surely_in_range(sources[1], specs[0].shape[op.axis]),
                    distinct=facts.surely_distinct(sources[1]),
                )
            arguments = [values[source] for source in sources]
            if isinstance(op, Linear) and op.fn in LINEAR_PARTS:
                key = (op.fn, op.full, sources)
                if key not in decompositions:
                    decompositions[key] = LOWER[Linear](op, site, *arguments)
                values.append(decompositions[key][op.part])
            else:
                result = LOWER[type(op)](op, site, *arguments)
                # In values that are only moved there is nothing to simplify wrongly.
                guarded = barriers and not (op.is_view or isinstance(op, Iota))
                values.append(jax.lax.optimization_barrier(result) if guarded else result)
        return [values[output] for output in program.outputs], [jnp.stack(flags)] if flags else []

    return run


#: What a platform's hardware has no room for.
_NOT_ON: dict[str, tuple[DType, ...]] = {
    "tpu": ("float64", "complex128"),
    "metal": ("float64", "complex64", "complex128"),
}


def holding_device(dtype: DType, place: Any) -> Any:
    """Where buffers of this type live. What the device cannot hold stays on the host, where its nodes run too."""
    return jax.devices("cpu")[0] if dtype in _NOT_ON.get(place.platform.lower(), ()) else place


def lacks(program: Program, platform: str) -> list[Lack]:
    """The nodes that jax cannot compute as NumPy does, with the reasons."""
    found = []
    numbers = uniform_numbers(program)
    for position, node in enumerate(program.nodes):
        if isinstance(node.op, Input):
            continue
        if isinstance(node.op, Custom):
            missing = why_not_here(node.op, "jax", lambda reference: lacks(reference, platform))
            found += [Lack(position, missing)] if missing is not None else []
            continue
        dtypes = [program.specs[each].dtype for each in (*node.inputs, position)]
        reason = _reason(node.op, dtypes, platform.lower())
        if reason is None and KIND[dtypes[0]] == "complex" and not _is_numpys(node, numbers):
            reason = f"jax's complex {node.op.name} is not NumPy's at zeros, infinities and NaN"
        if reason is not None:
            found.append(Lack(position, reason))
    return found


def _is_numpys(node: Node, numbers: dict[int, Any]) -> bool:
    """Whether a function of complex numbers is NumPy's for all of them."""
    match node.op:
        case Unary():
            return node.op.fn not in elementwise.COMPLEX_OTHERWISE
        case Binary("power"):
            return whole_exponent(numbers.get(node.inputs[1])) is not None
        case Scan():
            return node.op.fn != "prod"
    return True


def _reason(op: Primitive, dtypes: Sequence[DType], platform: str) -> str | None:
    """Why jax lacks an operation for types on a platform, or `None`."""
    for dtype in dtypes:
        if dtype in _NOT_ON.get(platform, ()):
            return f"jax has no {dtype} on {platform}"
    if isinstance(op, Linear) and op.fn == "eig" and platform != "cpu":
        return f"jax has no eig on {platform}"
    if isinstance(op, Scatter) and op.fn in ("maximum", "minimum") and KIND[dtypes[0]] == "complex":
        return f"jax has no scatter {op.fn} for {dtypes[0]}"
    return None


# At first use jax takes 75 % of a GPU's memory for itself unless this is set before it is imported.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


#: jax's platforms, with our kind and the interface behind them.
_PLATFORMS: dict[str, tuple[DeviceKind, str]] = {
    "cuda": ("gpu", "CUDA"),
    "rocm": ("gpu", "ROCm"),
    "tpu": ("npu", "TPU"),
    "METAL": ("gpu", "Metal"),
    "cpu": ("cpu", "XLA"),
}

_WIDE = ("int64", "uint64", "float64", "complex128")

#: XLA leaves only words; the code in front of them is absl's status, which is stable.
_STATUS_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


class JaxEngine:
    """The engine of JAX: every platform that the installed jax has."""

    name: ClassVar[str] = "jax"

    def __init__(self) -> None:
        """Devices are known after `discover`."""
        self._found: dict[str, Any] = {}
        self._executables: ProgramCache[JaxExecutable] = ProgramCache()
        self._lacks: LRUCache[list[Lack]] = LRUCache()

    def discover(self) -> list[Device | Unavailable]:
        """The devices of all platforms, and one report of why there is no accelerator if there is none."""
        found: list[Device | Unavailable] = []
        for platform in _PLATFORMS:
            for index, device in enumerate(_devices_on(platform)):
                device_id = f"{self.name}:{platform.lower()}:{index}"
                self._found[device_id] = device
                found.append(_describe(device_id, device, platform))
        if not any(isinstance(each, Device) and each.kind != "cpu" for each in found):
            found.append(_why_no_accelerator())
        return found

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """The device after a computation in each type, or how it failed."""
        place = self._found[device.id]

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            # Without x64 jax narrows 64-bit values to 32 silently, and the check would catch that as a wrong result.
            with jax.enable_x64(True):
                x = jax.device_put(values, place)
                return np.asarray(jax.jit(lambda x: x * x + 3 * x)(x))

        try:
            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
            return failed(device, error)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        platform = self._found[device.id].platform
        return self._lacks.get((program.key, device.id), lambda: lacks(program, platform))

    def compile(self, program: Program, device: Device) -> JaxExecutable:
        """The executable, kept by program and device.

        A program that XLA refuses is kept as `CannotCompile` and raised.
        """
        place = self._found[device.id]

        def compiled() -> JaxExecutable | CannotCompile:
            try:
                return JaxExecutable(program, place, device)
            except Exception as error:
                # Tracing is jax's own code, and what it cannot do it says by errors of many kinds; none is the user's.
                if isinstance(error, AnyGPUError) or self.classify(error, device) is not None:
                    raise
                return refused(device, error)

        return self._executables.get((program.key, device.id), compiled)

    def upload(self, values: HostArray, device: Device) -> jax.Array:
        """A copy of the values on the device or, for types that it lacks, on the host."""
        # jax may keep the memory that it is given, so it gets a copy of its own.
        copy = np.array(values, values.dtype.newbyteorder("="), order="C")
        with jax.enable_x64(True):
            return jax.device_put(copy, holding_device(copy.dtype.name, self._found[device.id]))  # type: ignore[arg-type]

    def download(self, buffer: jax.Array) -> HostArray:
        return np.asarray(buffer)

    def execute(self, executable: JaxExecutable, buffers: Sequence[jax.Array]) -> list[jax.Array]:
        """The results on the device. What XLA refuses is raised as `CannotCompile`, without keeping the arrays."""
        try:
            return executable.run(buffers)
        except (RuntimeError, TypeError) as error:
            if self.classify(error, executable.device) is not None:
                raise
            refusal = refused(executable.device, error)
        # Outside of the block, so that the library's error does not keep the run's arrays.
        raise refusal

    def native(self, buffer: jax.Array) -> jax.Array:
        return buffer

    def calling(self, arguments: Sequence[Any]) -> contextlib.AbstractContextManager[object]:
        """Around a user's own function over jax's arrays: with 64-bit arguments, 64 bits stay 64 bits."""
        wide = any(isinstance(each, jax.Array) and each.dtype.name in _WIDE for each in arguments)
        return jax.enable_x64(True) if wide else contextlib.nullcontext()

    def adopt(self, array: Any, device: Device) -> jax.Array:
        """The array of another library as jax's, without a copy where DLPack allows that, and in C order.

        Raises `TypeError` for types that anygpu does not have.
        """
        with jax.enable_x64(True):
            try:
                adopted = jax.dlpack.from_dlpack(array)
            except (BufferError, jax.errors.JaxRuntimeError):
                # Read-only memory, or elements that do not lie side by side: these only NumPy takes.
                return self.upload(np.from_dlpack(array), device)
            if adopted.dtype.name not in DTYPES:
                raise TypeError(f"anygpu has no arrays of {adopted.dtype.name}; it has {', '.join(DTYPES)}.")
            home = jax.sharding.SingleDeviceSharding(holding_device(adopted.dtype.name, self._found[device.id]))
            in_order = Layout(tuple(range(adopted.ndim)))
            # Programs are compiled for C order; another order of the axes is what jax keeps, and then refuses.
            same = adopted.format.layout.major_to_minor == in_order.major_to_minor
            return jax.device_put(adopted, home if same else Format(in_order, home))

    def synchronize(self, device: Device) -> None:
        """Wait until all arrays on the device are computed."""
        place = self._found[device.id]
        for array in jax.live_arrays(place.platform):
            if not array.is_deleted() and place in array.devices():
                array.block_until_ready()

    def memory(self, device: Device) -> Memory:
        """Total and free memory, or why they are not known."""
        if device.kind == "cpu":
            return Memory(total=host.memory_total(), free=host.memory_free())
        statistics = self._found[device.id].memory_stats()
        if not statistics or "bytes_limit" not in statistics:
            return Memory(unknown=unknown_facts("this jax backend does not tell its memory", "total", "free"))
        total = int(statistics["bytes_limit"])
        return Memory(total=total, free=total - int(statistics.get("bytes_in_use", 0)))

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        """Our error for memory that ran out; `None` for others."""
        if isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith(_STATUS_OUT_OF_MEMORY):
            return OutOfMemory(device.id)
        if isinstance(error, MemoryError):
            return OutOfMemory(device.id)
        return None

    def close(self) -> None:
        """Forget executables and devices; jax itself cannot be closed."""
        self._executables.clear()
        self._lacks.clear()
        self._found.clear()


def _devices_on(platform: str) -> list[Any]:
    """The devices of a platform, none where jax does not have it."""
    try:
        return list(jax.devices(platform))
    except RuntimeError:
        # jax's way of saying that this platform is not installed or finds nothing.
        return []


def _describe(device_id: str, device: Any, platform: str) -> Device:
    """The record of a device, with a reason for each fact that jax does not tell."""
    kind, api = _PLATFORMS[platform]
    statistics = (device.memory_stats() or {}) if kind != "cpu" else {}
    total, free = None, None
    unknown = {"driver": "jax does not tell the driver's version", "compute_capability": host.NOT_NVIDIA}
    if kind == "cpu":
        total, free = host.memory_total(), host.memory_free()
        unknown |= {**host.processor_unknowns(), "driver": host.NO_DRIVER}
    else:
        unknown |= {
            "load": "jax does not tell how busy a device is",
            **unknown_facts("jax gives no UUID or PCI address", "uuid", "pci"),
            **unknown_facts("this jax backend does not tell its memory", "memory_total", "memory_free"),
        }
        if "bytes_limit" in statistics:
            total = int(statistics["bytes_limit"])
            free = total - int(statistics.get("bytes_in_use", 0))
    capability = getattr(device, "compute_capability", None) if platform == "cuda" else None
    known = {"memory_total": total, "memory_free": free, "compute_capability": capability}
    features = {"bf16", "f16", "i64"} | ({"f64"} if platform not in ("tpu", "METAL") else set())
    if kind == "cpu":
        features.add("unified_memory")
    return Device(
        id=device_id,
        engine=JaxEngine.name,
        kind=kind,
        form="host" if kind == "cpu" else "discrete",
        name=host.processor_name() if kind == "cpu" else device.device_kind,
        state="usable",
        api=f"{api} (jax {jax.__version__})",
        vendor={"cuda": "NVIDIA", "rocm": "AMD", "tpu": "Google", "METAL": "Apple"}.get(platform),
        memory_total=total,
        memory_free=free,
        compute_capability=capability,
        features=tuple(sorted(features)),
        unknown=reasons_for(unknown, known),
    )


def _why_no_accelerator() -> Unavailable:
    """The report that jax has no accelerator: no plug-in, or a plug-in that finds no card."""
    plugins = sorted(
        name
        for name in (distribution.name for distribution in metadata.distributions())
        if name.startswith(("jax-cuda", "jax-rocm")) or name in ("libtpu", "jax-metal")
    )
    if not plugins:
        return Unavailable(
            id="jax:cuda",
            engine="jax",
            state="absent",
            cause="cpu_only_build",
            reason=f"The installed jax {jax.__version__} has no plug-in for a GPU.",
            fix="Only with an NVIDIA card: pip install 'jax[cuda13]'",
            detail=f"jax {jax.__version__}",
        )
    return Unavailable(
        id="jax:cuda",
        engine="jax",
        state="absent",
        cause="no_device",
        reason=f"jax has a plug-in ({', '.join(plugins)}), but it finds no usable card.",
        fix="Run `anygpu doctor` to check for a card and its driver.",
        facts=_built_for(plugins),
    )


def _built_for(plugins: list[str]) -> dict[str, str]:
    """`jax-cuda12-plugin` needs a driver that serves CUDA 12."""
    versions = [digits for name in plugins if (digits := name.removeprefix("jax-cuda")[:2]).isdigit()]
    return {"built_for_cuda": versions[0]} if versions else {}
