"""How torch is set up in this process, as plain values."""

from __future__ import annotations

import os

import msgspec
import torch

from anygpu.base.processors import usable_processors
from anygpu.hardware import host
from anygpu.pytorch import torch_slots

#: Variables that change how fast torch is.
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
    "KMP_BLOCKTIME", "ATEN_CPU_CAPABILITY", "CUDA_LAUNCH_BLOCKING", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "TORCH_SHOW_CPP_STACKTRACES",
    "TORCH_DISTRIBUTED_DEBUG", "TORCH_LOGS", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "PYTORCH_JIT",
    "ONEDNN_VERBOSE", "DNNL_VERBOSE", "MKL_VERBOSE",
)  # fmt: skip


class TorchCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card that this torch can use."""

    name: str
    #: Of NVIDIA's; (0, 0) for others.
    capability: tuple[int, int]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """What short computations took here; `None` where it was not measured."""

    #: Seconds of a float32 product, by number of threads.
    product_by_threads: dict[int, float] = {}
    #: How many times as long a product of numbers below the normal range takes.
    denormals: float | None = None
    #: How many times as fast as float32 a product of bfloat16 is, and one of float32 at precision "medium".
    bfloat16: float | None = None
    medium: float | None = None
    #: How many times as fast a convolution is with channels last.
    channels_last: float | None = None
    #: All of it, in seconds.
    seconds: float = 0.0


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `anygpu doctor --torch` looks at."""

    version: str
    cards: tuple[TorchCard, ...] = ()
    processor: str
    #: Processors that this process may use, as far as it or its container is limited; and real cores of the machine.
    processors: int
    cores: int | None = None
    #: Runnable processes on average, over the last minute; `None` where the system does not tell.
    load: float | None = None
    threads: int
    #: "AVX512" and the like: what torch's own kernels are built for here.
    capability: str
    #: `None` when torch refuses to read it, because its newer way has been used alone.
    matmul_precision: str | None
    cuda_matmul: str | None = None
    cudnn_benchmark: bool = False
    deterministic: bool = False
    anomaly: bool = False
    profiler: bool = False
    mkldnn: bool = True
    mkl: bool = True
    default_dtype: str = "float32"
    environment: dict[str, str] = {}
    measured: Measurements = Measurements()


def facts_here(measured: Measurements) -> TorchFacts:
    return TorchFacts(
        version=str(torch.__version__),
        cards=tuple(_card(index) for index in range(torch.cuda.device_count())) if torch.cuda.is_available() else (),
        processor=host.processor_name(),
        processors=usable_processors(),
        cores=host.cores(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        threads=torch.get_num_threads(),
        capability=str(torch.backends.cpu.get_cpu_capability()),
        matmul_precision=torch_slots.read("matmul_precision"),
        cuda_matmul=torch_slots.read("cuda_matmul"),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        anomaly=torch.is_anomaly_enabled(),
        profiler=torch.autograd._profiler_enabled(),
        mkldnn=torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
        mkl=torch.backends.mkl.is_available(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        measured=measured,
    )


def _card(index: int) -> TorchCard:
    properties = torch.cuda.get_device_properties(index)
    nvidia = torch.version.hip is None
    return TorchCard(name=properties.name, capability=(properties.major, properties.minor) if nvidia else (0, 0))
