"""PyTorch, on whatever its build serves: CUDA, ROCm, Apple's Metal (mps), Intel's xpu, and the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch

from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines.host_arrays import ProgramCache, numpy_dtype, refused
from anygpu.engines.protocol import Lack, Memory, failed, verified
from anygpu.engines.torch import lowering
from anygpu.engines.torch.lowering import TorchExecutable
from anygpu.errors import AnyGPUError, CannotCompile, DevicePoisoned, OutOfMemory
from anygpu.hardware import host
from anygpu.hardware.device import (
    Device,
    Unavailable,
    VerifiedType,
    normal_pci,
    normal_uuid,
    reasons_for,
    unknown_facts,
)
from anygpu.hardware.resident_memory import HostMeter
from anygpu.program.dtypes import DTYPES, DType
from anygpu.program.graph import Program

if TYPE_CHECKING:
    from anygpu.engines.torch.row_independence import Independence


# -- how torch says that memory has run out: by a type where it has one, else by words in a RuntimeError


_WORDS = (
    # Its allocator on the CPU, before the number of bytes: on Linux and macOS, and on Windows.
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    # C++, from any library.
    "std::bad_alloc",
    # oneDNN, which allocates kernels and scratch by itself, and gives no other reason. It also says so of a primitive
    # that it does not have; then smaller steps fail likewise, and the error that ends them quotes it.
    "could not create a primitive",
    "could not create a memory",
    # Apple's Metal; CUDA's driver, and the handles and workspaces of cuBLAS and cuDNN (never seen on a card).
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch, or Python, has found no memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


# -- measuring memory: the most that was taken at once, and how much more could be
#
# Work is measured around it: `begin()`, the work, `peak()`. What a meter cannot know is `None`.


class TorchMeter(Protocol):
    """The memory of one device, as this process uses it."""

    def begin(self) -> None:
        """From now on, look for the peak anew."""
        ...

    def now(self) -> int | None:
        """Bytes that are taken now."""
        ...

    def peak(self) -> int | None:
        """The most bytes that were taken at once since `begin`, what was taken before included."""
        ...

    def free(self) -> int | None:
        """Bytes that could be taken now, beside what is."""
        ...


def meter_for(device: torch.device) -> TorchMeter:
    """The meter of a device; one that knows nothing where torch has no figures."""
    if device.type == "cuda":
        return CudaMeter(device)
    if device.type == "cpu" and sys.platform == "linux":
        return HostMeter()
    return NoMeter()


class NoMeter:
    """Where nothing can be measured."""

    def begin(self) -> None:
        pass

    def now(self) -> int | None:
        return None

    def peak(self) -> int | None:
        return None

    def free(self) -> int | None:
        return None


class CudaMeter:
    """A card's memory, from the statistics of torch's own allocator. Never run on a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def now(self) -> int | None:
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated(self._device))

    def free(self) -> int | None:
        """Free bytes of the driver and of torch's reserve, less what the user withheld from torch."""
        free, total = torch.cuda.mem_get_info(self._device)
        allocated = int(torch.cuda.memory_allocated(self._device))
        unused = int(torch.cuda.memory_reserved(self._device)) - allocated
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        allowed = total if fraction is None else int(total * fraction(self._device)) - allocated
        return max(0, min(int(free) + unused, allowed))


# -- PyTorch, on whatever its build serves: CUDA, ROCm, Apple's Metal (mps), Intel's xpu, and the CPU


# A ROCm build of torch answers under the name "cuda".
_IS_ROCM = torch.version.hip is not None

#: How torch says that it cannot do something. What NumPy would raise because of values, our own code raises likewise.
_REFUSALS = (RuntimeError, NotImplementedError, TypeError)

#: DLPack's name for memory of the host.
_DLPACK_CPU = 1

_NAMES: dict[torch.dtype, DType] = {getattr(torch, name): name for name in DTYPES}


class TorchEngine:
    """The engine of PyTorch: CUDA, ROCm, MPS, XPU and the processor."""

    name: ClassVar[str] = "torch"

    def __init__(self) -> None:
        self._executables: ProgramCache[TorchExecutable] = ProgramCache()
        self._lacks: LRUCache[list[Lack]] = LRUCache()

    def discover(self) -> list[Device | Unavailable]:
        """The devices that torch has, the processor among them, and why there is no CUDA where there is none."""
        found: list[Device | Unavailable] = []
        if torch.cuda.is_available():
            found += [_describe_cuda(index) for index in range(torch.cuda.device_count())]
        else:
            found.append(_why_no_cuda())
        if torch.backends.mps.is_available():
            found.append(_describe_mps())
        if torch.xpu.is_available():
            found += [_describe_xpu(index) for index in range(torch.xpu.device_count())]
        found.append(_describe_cpu())
        return found

    def verify(self, device: Device, *, deep: bool = False) -> Device | Unavailable:
        """The device after a computation in each type, or how it failed."""
        place = _place(device)

        def compute(dtype: VerifiedType, values: HostArray) -> HostArray:
            x = torch.from_numpy(values).to(place)
            return np.asarray((x * x + 3 * x).cpu().numpy())

        try:
            return verified(device, compute, deep=deep)
        except Exception as error:  # noqa: BLE001 - any failure of a driver is a fact about the device
            return failed(device, error)

    def supports(self, program: Program, device: Device) -> list[Lack]:
        place = torch.device(_place(device))
        return self._lacks.get((program.key, device.id), lambda: lowering.lacks(program, place))

    def compile(self, program: Program, device: Device) -> TorchExecutable:
        """The executable, kept by program and device.

        A program that torch refuses is kept as `CannotCompile` and raised.
        """
        place = torch.device(_place(device))

        def compiled() -> TorchExecutable | CannotCompile:
            try:
                return lowering.compile_program(program, place, device)
            except _REFUSALS as error:
                if self.classify(error, device) is not None:
                    raise
                return refused(device, error)

        return self._executables.get((program.key, device.id), compiled)

    def upload(self, values: HostArray, device: Device) -> torch.Tensor:
        """A tensor with a copy of the values, on the device or, for types that it lacks, on the host."""
        # A copy in memory of its own: on the CPU that is all there is to do.
        copy = np.array(values, values.dtype.newbyteorder("="), order="C")
        if copy.dtype.name == "bfloat16":
            tensor = torch.from_numpy(copy.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(copy)
        return tensor.to(lowering.home(_NAMES[tensor.dtype], torch.device(_place(device))))

    def download(self, buffer: torch.Tensor) -> HostArray:
        """The values as an array on the host."""
        if buffer.dtype == torch.bfloat16:
            return np.asarray(buffer.detach().cpu().view(torch.int16).numpy().view(numpy_dtype("bfloat16")))
        return np.asarray(buffer.detach().cpu().numpy())

    def execute(self, executable: TorchExecutable, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results on the device. What torch refuses is raised as `CannotCompile`, without keeping the tensors."""
        try:
            return executable.run(buffers)
        except _REFUSALS as error:
            if self.classify(error, executable.device) is not None:
                raise
            refusal = refused(executable.device, error)
        # Outside of the block, so that the library's error does not keep the run's arrays.
        raise refusal

    def native(self, buffer: torch.Tensor) -> torch.Tensor:
        # In a broadcast many elements share one place in memory, which most consumers of DLPack do not expect.
        return buffer.contiguous() if 0 in buffer.stride() else buffer

    def adopt(self, array: Any, device: Device) -> torch.Tensor:
        """The array of another library as a tensor, without a copy where DLPack allows that.

        Raises `TypeError` for types that anygpu does not have.
        """
        if _runs_backwards(array):
            return self.upload(np.from_dlpack(array), device)
        # A torch tensor that is only marked as conjugate, or as negative, refuses to be exported.
        tensor = torch.from_dlpack(array.resolve_conj().resolve_neg() if isinstance(array, torch.Tensor) else array)
        if tensor.dtype not in _NAMES:
            raise TypeError(f"anygpu has no arrays of {tensor.dtype}; it has {', '.join(DTYPES)}.")
        return tensor.to(lowering.home(_NAMES[tensor.dtype], torch.device(_place(device))))

    def synchronize(self, device: Device) -> None:
        """Wait until the device has done all that was submitted."""
        place = torch.device(_place(device))
        if place.type == "mps":
            torch.mps.synchronize()
        elif place.type != "cpu":
            getattr(torch, place.type).synchronize(place)

    def memory(self, device: Device) -> Memory:
        """Total and free memory, or why they are not known."""
        place = _place(device)
        if place.startswith("cuda"):
            free, total = torch.cuda.mem_get_info(place)
            return Memory(total=total, free=free)
        if place.startswith("xpu"):
            total = torch.xpu.get_device_properties(place).total_memory
            return Memory(total=total, unknown={"free": "torch does not tell the free memory of an xpu device"})
        return Memory(total=host.memory_total(), free=host.memory_free())

    # -- opaque tasks

    def meter(self, device: Device) -> TorchMeter:
        """Measures the memory of what runs there."""
        return meter_for(torch.device(_place(device)))

    def structure(self, function: Callable[..., Any]) -> Hashable:
        """A hash of what a function's memory depends on beside its arguments: the same in every process."""
        from anygpu.engines.torch.captures import structure_of

        return structure_of(function)

    def independence(self, function: Callable[..., Any], arguments: Any, keywords: Any) -> Independence:
        """Whether rows of such arguments, which are tensors of this engine, are computed independently."""
        from anygpu.engines.torch.row_independence import prove

        return prove(function, arguments, keywords)

    def still_holds(self, found: Independence, function: Callable[..., Any]) -> bool:
        """Whether nothing has changed that the proof rests on."""
        from anygpu.engines.torch.row_independence import fingerprint_of

        return found.fingerprint is not None and found.fingerprint == fingerprint_of(function)

    def classify(self, error: BaseException, device: Device) -> AnyGPUError | None:
        """Our error for one of torch's: memory that ran out, or a device that is broken. `None` for others."""
        if is_out_of_memory(error):
            on_host = not isinstance(error, torch.OutOfMemoryError | MemoryError)
            return OutOfMemory(device.id, free=host.memory_free() if on_host else None)
        if isinstance(error, lowering.BROKEN_DEVICE):
            # After a CUDA error of any other kind, every later call in the process fails with it.
            return DevicePoisoned(device.id, detail=str(error).splitlines()[0])
        return None

    def close(self) -> None:
        self._executables.clear()
        self._lacks.clear()


def _runs_backwards(array: Any) -> bool:
    """torch has no negative strides, and `torch.from_dlpack` does not refuse them: it aborts the process."""
    if isinstance(array, torch.Tensor) or array.__dlpack_device__()[0] != _DLPACK_CPU:
        return False
    try:
        return any(stride < 0 for stride in np.from_dlpack(array).strides)
    except (BufferError, RuntimeError):
        # A type that NumPy has not, or a refusal that torch will repeat.
        return False


def _place(device: Device) -> str:
    """The device as torch names it: `torch:cuda:1` is its `cuda:1`. ROCm devices are called rocm here."""
    return device.id.removeprefix("torch:").replace("rocm", "cuda")


def _describe_cuda(index: int) -> Device:
    """The record of a CUDA or ROCm card."""
    facts = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    flavour = "rocm" if _IS_ROCM else "cuda"
    uuid = normal_uuid(str(getattr(facts, "uuid", "")))
    pci = _pci_address(facts)
    unknown = {
        "driver": "torch does not tell the driver's version",
        "load": "torch does not tell how busy a device is",
        **unknown_facts("this version of torch does not tell it", "uuid", "pci"),
        "compute_capability": host.NOT_NVIDIA,
    }
    capability = None if _IS_ROCM else f"{facts.major}.{facts.minor}"
    known = {"uuid": uuid, "pci": pci, "compute_capability": capability}
    return Device(
        id=f"torch:{flavour}:{index}",
        engine=TorchEngine.name,
        kind="gpu",
        form="integrated" if getattr(facts, "is_integrated", 0) else "discrete",
        name=facts.name,
        state="usable",
        api=f"ROCm {torch.version.hip}" if _IS_ROCM else f"CUDA {torch.version.cuda}",
        vendor="AMD" if _IS_ROCM else "NVIDIA",
        memory_total=total,
        memory_free=free,
        compute_capability=capability,
        uuid=uuid,
        pci=pci,
        features=("bf16", "f16", "f64", "i64", "timestamps"),
        limits={"compute-units": facts.multi_processor_count},
        unknown=reasons_for(unknown, known),
    )


def _pci_address(facts: Any) -> str | None:
    """The PCI address of a card; `None` where torch does not tell."""
    try:
        return normal_pci(f"{facts.pci_domain_id:x}:{facts.pci_bus_id:x}:{facts.pci_device_id:x}.0")
    except AttributeError:
        return None


def _describe_mps() -> Device:
    """The record of Apple's GPU."""
    return Device(
        id="torch:mps",
        engine=TorchEngine.name,
        kind="gpu",
        form="integrated",
        name=f"{host.processor_name()} GPU",
        state="usable",
        api="Metal",
        vendor="Apple",
        memory_total=int(torch.mps.recommended_max_memory()),
        memory_free=max(0, int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())),
        # Metal has no 64-bit floating point.
        features=("bf16", "f16", "i64", "unified_memory"),
        unknown={
            "driver": "Metal is a part of macOS",
            "compute_capability": host.NOT_NVIDIA,
            "load": "torch does not tell how busy a device is",
            **unknown_facts("Metal gives no UUID or PCI address", "uuid", "pci"),
        },
    )


def _describe_xpu(index: int) -> Device:
    """The record of an Intel GPU."""
    facts = torch.xpu.get_device_properties(index)
    uuid = normal_uuid(str(getattr(facts, "uuid", "")))
    features = {"bf16", "i64", "timestamps"}
    features |= {"f16"} if getattr(facts, "has_fp16", True) else set()
    features |= {"f64"} if getattr(facts, "has_fp64", False) else set()
    unknown = {
        "memory_free": "torch does not tell the free memory of an xpu device",
        "compute_capability": host.NOT_NVIDIA,
        "load": "torch does not tell how busy a device is",
        "pci": "torch does not tell the PCI address of an xpu device",
    }
    if uuid is None:
        unknown["uuid"] = "this version of torch does not tell it"
    return Device(
        id=f"torch:xpu:{index}",
        engine=TorchEngine.name,
        kind="gpu",
        form="discrete" if "arc" in facts.name.lower() else "integrated",
        name=facts.name,
        state="usable",
        api="Level Zero",
        vendor="Intel",
        memory_total=int(facts.total_memory),
        driver=str(facts.driver_version),
        uuid=uuid,
        features=tuple(sorted(features)),
        unknown=unknown,
    )


def _describe_cpu() -> Device:
    """The record of the processor, as torch uses it."""
    return Device(
        id="torch:cpu",
        engine=TorchEngine.name,
        kind="cpu",
        form="host",
        name=host.processor_name(),
        state="usable",
        api=f"torch {torch.__version__}",
        memory_total=host.memory_total(),
        memory_free=host.memory_free(),
        features=("bf16", "f16", "f64", "i64", "unified_memory"),
        limits={"threads": torch.get_num_threads()},
        unknown={**host.processor_unknowns(), "driver": host.NO_DRIVER},
    )


def _why_no_cuda() -> Unavailable:
    """The report that torch has no CUDA: a build without it, or no usable card."""
    version = str(torch.__version__)
    if torch.version.cuda is None and torch.version.hip is None:
        return Unavailable(
            id="torch:cuda",
            engine="torch",
            state="absent",
            cause="cpu_only_build",
            reason=f"The installed torch {version} is built without CUDA or ROCm.",
            fix="Only with an NVIDIA or AMD card: choose the GPU build for it at pytorch.org/get-started",
            detail=f"torch {version}",
        )
    build = f"ROCm {torch.version.hip}" if _IS_ROCM else f"CUDA {torch.version.cuda}"
    detail = None
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - torch raises RuntimeError and others; its words go to the report
        detail = str(error)
    return Unavailable(
        id="torch:rocm" if _IS_ROCM else "torch:cuda",
        engine="torch",
        state="absent",
        cause="no_device",
        reason=f"torch {version} is built for {build}, but finds no usable card.",
        fix="Run `anygpu doctor` to check for a card and its driver.",
        detail=detail,
        facts={} if _IS_ROCM else {"built_for_cuda": str(torch.version.cuda)},
    )
