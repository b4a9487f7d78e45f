"""Which of torch's settings cost speed here, and the line to write."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec
import torch

from anygpu.base.printable import encode_json
from anygpu.base.this_process import usable_processors
from anygpu.base.units import readable_seconds
from anygpu.errors import InvalidOption
from anygpu.hardware import host
from anygpu.hardware.inventory import Finding, Severity
from anygpu.pytorch import torch_settings
from anygpu.pytorch.torch_settings import settings

#: Whether it holds, and the finding: its severity, code, title, cause, and what to write.
Rule = tuple[bool, Severity, str, str, str, tuple[str, ...]]

SCHEMA = "anygpu.torch-doctor/1"
#: Smaller measured differences are ignored: short measurements vary by as much.
_WORTH_SAYING = 1.15
#: The size of the measured products, and the seconds spent on all of them.
_SIZE, _BUDGET = 384, 2.0
#: Variables that cost speed: the values that do (all, if none is named), whether only beside a card, and why.
_COSTLY: dict[str, tuple[tuple[str, ...], bool, str]] = {
    "CUDA_LAUNCH_BLOCKING": (("1",), True, "The host waits for every kernel, so nothing overlaps: for debugging only."),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ((), True, "Every tensor is allocated by the driver, which waits for the card."),
    "NVIDIA_TF32_OVERRIDE": (("0",), True, "NVIDIA's libraries do not use TF32, whatever torch is told."),
    "TORCH_DISTRIBUTED_DEBUG": (("INFO", "DETAIL"), False, "Collectives are checked before they run."),
    "TORCH_COMPILE_DISABLE": (("1",), False, "torch.compile does nothing."),
    "TORCHDYNAMO_DISABLE": (("1",), False, "torch.compile does nothing."),
    "PYTORCH_JIT": (("0",), False, "Scripted modules run as Python."),
    "ONEDNN_VERBOSE": (("1", "2", "all"), False, "oneDNN prints every operation."),
    "DNNL_VERBOSE": (("1", "2", "all"), False, "oneDNN prints every operation."),
    "MKL_VERBOSE": (("1", "2"), False, "MKL prints every product, and waits for it."),
    "OMP_WAIT_POLICY": (("ACTIVE", "active"), False, "torch's threads keep the processors busy while they wait."),
    "ATEN_CPU_CAPABILITY": ((), False, "Without it torch takes the widest instructions that this processor has."),
}
_ONLY_ADVICE = ("OMP_WAIT_POLICY", "ATEN_CPU_CAPABILITY")
_OTHERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class TorchCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card that this torch can use."""

    name: str
    #: The compute capability of NVIDIA's cards; (0, 0) for others.
    capability: tuple[int, int]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Times of short computations; `None` where one was not measured."""

    #: Seconds of a float32 product, by number of threads.
    product_by_threads: dict[int, float] = {}
    #: How many times as long a product of numbers below the normal range takes.
    denormals: float | None = None
    #: How many times as fast as float32 a product of bfloat16 is.
    bfloat16: float | None = None
    #: How many times as fast a convolution is with channels last.
    channels_last: float | None = None
    #: All of it, in seconds.
    seconds: float = 0.0


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The settings and hardware that `anygpu doctor --torch` judges."""

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
    default_dtype: str = "float32"
    environment: dict[str, str] = {}
    measured: Measurements = Measurements()


class TorchDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `anygpu.pytorch.doctor`, which `anygpu doctor --torch` prints."""

    schema: str = SCHEMA
    #: The answer in one sentence.
    verdict: str
    findings: tuple[Finding, ...]
    facts: TorchFacts

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings that cost speed for sure."""
        return tuple(finding for finding in self.findings if finding.severity == "problem")

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    def __str__(self) -> str:
        lines = [self.verdict]
        for finding in self.findings:
            lines += [f"{finding.severity}: {finding.title}", f"  {finding.cause}"]
            lines += [f"  → {step}" for step in finding.fix]
        return "\n".join(lines)


def doctor(*, measured: bool = True) -> TorchDiagnosis:
    """Look at torch as it is set up in this process: call it where your script has made its settings.

    It computes for about two seconds, with several numbers of threads; `measured=False` leaves that out.
    """
    now = facts_here()
    if not measured:
        return diagnose(now)
    counts = sorted({1, now.threads, now.processors, min(now.cores or now.processors, now.processors)})
    return diagnose(msgspec.structs.replace(now, measured=measure(counts)))


def facts_here() -> TorchFacts:
    """Return the facts of this process that the doctor judges, without measurements."""
    cards = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    is_nvidia = torch.version.hip is None
    return TorchFacts(
        version=str(torch.__version__),
        cards=tuple(
            TorchCard(name=card.name, capability=(card.major, card.minor) if is_nvidia else (0, 0)) for card in cards
        ),
        processor=host.processor_name(),
        processors=usable_processors(),
        cores=host.cores(),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        threads=torch.get_num_threads(),
        capability=str(torch.backends.cpu.get_cpu_capability()),
        matmul_precision=torch_settings.read("matmul_precision"),
        cuda_matmul=torch_settings.read("cuda_matmul"),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        anomaly=torch.is_anomaly_enabled(),
        profiler=torch.autograd._profiler_enabled(),
        mkldnn=torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        environment={name: os.environ[name] for name in (*_COSTLY, *_OTHERS) if name in os.environ},
    )


def measure(thread_counts: Sequence[int], budget: float = _BUDGET) -> Measurements:
    """Time short computations, which draw no random numbers, with each of these numbers of threads."""
    begin = time.perf_counter()
    each = budget / (len(thread_counts) * 2 + 8)
    left = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=torch.float32, device="cpu").reshape(_SIZE, _SIZE)
    half = left.to(torch.bfloat16)
    # Small enough for one thread: whether tiny numbers are flushed to zero is each thread's own setting.
    normal, tiny = (torch.full((16384,), value, dtype=torch.float32, device="cpu") for value in (1e-10, 1e-39))
    images = left.reshape(-1)[: 32 * 64 * 64].reshape(1, 32, 64, 64)
    weights = left.reshape(-1)[: 32 * 32 * 9].reshape(32, 32, 3, 3)
    channels_last = [tensor.to(memory_format=torch.channels_last) for tensor in (images, weights)]
    convolve = torch.nn.functional.conv2d
    by_threads: dict[int, float] = {}
    with torch.no_grad():
        for count in (*thread_counts, *thread_counts):  # twice, because what else goes on changes in between
            # Refused when another thread is in a block with a setting of its own.
            with contextlib.suppress(InvalidOption), settings(threads=count):
                by_threads[count] = min(by_threads.get(count, math.inf), *best_of([lambda: left @ left], each))
        usual, slow = best_of([lambda: normal * 0.5, lambda: tiny * 0.5], 2 * each)
        exact, fast = best_of([lambda: left @ left, lambda: half @ half], 2 * each)
        first, last = best_of([lambda: convolve(images, weights), lambda: convolve(*channels_last)], 2 * each)
    return Measurements(
        product_by_threads=by_threads,
        denormals=slow / usual,
        bfloat16=exact / fast,
        channels_last=first / last,
        seconds=time.perf_counter() - begin,
    )


def best_of(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the best time of each, taking turns for these seconds, and twice at least."""
    best = [math.inf] * len(calls)
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < end:
        for number, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[number] = min(best[number], time.perf_counter() - begin)
        rounds += 1
    return best


def diagnose(facts: TorchFacts) -> TorchDiagnosis:
    """Return the findings for these facts, problems first, with a verdict. Pure."""
    rules = (*_threads(facts), *_variables(facts), *_others(facts))
    findings = [
        Finding(code=f"torch_{code}", severity=severity, title=title, cause=cause, fix=fix)
        for holds, severity, code, title, cause, fix in rules
        if holds
    ]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    where = facts.cards[0].name if facts.cards else facts.processor
    more = f" and {len(facts.cards) - 1} more" if len(facts.cards) > 1 else ""
    told = f"torch {facts.version} on {where}{more}, {_threads_of(facts.threads)} on {facts.processors} processors"
    costs = sum(finding.severity == "problem" for finding in findings)
    words = {0: "no setting was found that costs speed", 1: "one setting costs speed"}
    return TorchDiagnosis(
        verdict=f"{told}: {words.get(costs, f'{costs} settings cost speed')}.", findings=tuple(findings), facts=facts
    )


def _threads(facts: TorchFacts) -> Iterator[Rule]:
    """Return whether another number of threads is faster than the current one."""
    count, processors, times = facts.threads, facts.processors, facts.measured.product_by_threads
    best = min(times, key=lambda number: (times[number], number), default=count)
    aim = processors if count > processors else best
    variable = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in facts.environment), None)
    why = f" {variable}={facts.environment[variable]} is set." if variable is not None else ""
    is_measured = {count, aim} <= times.keys()
    gains = is_measured and times[count] > _WORTH_SAYING * times[aim]
    if is_measured:
        why += f" Measured here: a float32 product of {_SIZE} × {_SIZE} takes {readable_seconds(times[count])} with "
        why += f"{_threads_of(count)} and {readable_seconds(times[aim])} with {aim}."
    set_it, is_fewer = f"torch.set_num_threads({aim})", gains and best < count and not _is_busy(facts)
    yield (count > processors, "problem" if gains or not is_measured else "note", "too_many_threads",
           f"torch uses {count} threads on {processors} processors",
           "Threads that have no processor make the others wait at the end of every operation. torch counts the "
           f"machine's cores, and not what a container or its affinity leaves.{why}",
           (set_it, f"export OMP_NUM_THREADS={aim}"))  # fmt: skip
    yield (count <= processors and gains and best > count, "problem", "too_few_threads",
           f"torch uses {count} of {processors} processors",
           f"With {best} threads operations on the CPU are faster here.{why}",
           (set_it, *([f"unset {variable}"] if variable is not None else [])))  # fmt: skip
    yield (count <= processors and is_fewer, "advice", "fewer_threads_are_faster",
           f"torch is faster with {_threads_of(best)} than with {count}",
           "That is so where two processors are one core, or where the container may use less than it seems."
           f"{why} Measure it with your own model before you keep it.", (set_it,))  # fmt: skip


def _threads_of(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _is_busy(facts: TorchFacts) -> bool:
    return facts.load is not None and facts.load > facts.processors * 0.75


def _variables(facts: TorchFacts) -> Iterator[Rule]:
    """Find variables that cost speed."""
    for name, value in facts.environment.items():
        values, only_cards, why = _COSTLY.get(name, ((), False, ""))
        costs = bool(why) and (value in values or not values) and (bool(facts.cards) or not only_cards)
        severity: Severity = "advice" if name in _ONLY_ADVICE else "problem"
        yield costs, severity, f"variable_{name.lower()}", f"{name}={value} is set", why, (f"unset {name}",)


def _others(facts: TorchFacts) -> list[Rule]:
    """Find modes that cost speed, possible gains on cards, and what short computations have shown."""
    has_cards, workers, measured = bool(facts.cards), max(1, facts.processors - 1), facts.measured
    with_tensor_cores = next((card.name for card in facts.cards if card.capability >= (8, 0)), None)
    is_exact = facts.matmul_precision == "highest" or (facts.matmul_precision is None and facts.cuda_matmul != "tf32")
    allocator = facts.environment.get("PYTORCH_ALLOC_CONF", facts.environment.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    bfloat16, denormals = measured.bfloat16 or 0.0, measured.denormals or 0.0
    channels_last = measured.channels_last or 0.0
    return [
        (facts.anomaly, "problem", "anomaly_mode", "anomaly detection is on",
         "Every operation records a traceback, and every gradient is searched for NaN.",
         ("torch.autograd.set_detect_anomaly(False)",)),
        (facts.profiler, "problem", "profiler", "torch's profiler is running",
         "It writes down every operation. Leave its block for the steps that are not looked at.", ()),
        (not facts.mkldnn, "problem", "no_onednn", "oneDNN is switched off, or not in this build",
         "torch's own convolutions on the CPU are several times slower.", ("torch.backends.mkldnn.set_flags(True)",)),
        (facts.deterministic, "advice", "deterministic", "only deterministic algorithms are allowed",
         "Some operations have a faster version, whose last bits differ from run to run. Keep it if you need the same.",
         ("torch.use_deterministic_algorithms(False)",)),
        (facts.default_dtype == "float64", "advice", "float64", "new tensors are float64",
         "They take twice the memory of float32 and at least twice the time; on most cards much more.",
         ("torch.set_default_dtype(torch.float32)",)),
        (with_tensor_cores is not None and is_exact, "advice", "no_tf32",
         f"{with_tensor_cores} has tensor cores that float32 products do not use",
         "With TF32 they keep 10 bits of the mantissa instead of 23 and are several times as fast (torch's "
         "documentation: about 7 times on an A100); most networks train equally well.",
         ('torch.set_float32_matmul_precision("high")', "with anygpu.pytorch.settings(tf32=True): ...")),
        (not has_cards and bfloat16 >= 1.5, "advice", "host_has_bfloat16",
         f"this processor multiplies bfloat16 {bfloat16:.1f} times as fast as float32",
         f"Measured here on products of {_SIZE} × {_SIZE}. bfloat16 keeps 7 bits of the mantissa instead of 23.",
         ('with torch.autocast("cpu", dtype=torch.bfloat16): ...', 'torch.set_float32_matmul_precision("medium")')),
        (measured.seconds > 0 and _is_busy(facts), "note", "busy_machine",
         "other programs use the processors, so what was measured here is doubtful",
         f"On average {facts.load} processes wanted to run in the last minute, on {facts.processors} processors. "
         "Ask again on a calm machine.", ()),
        (channels_last > _WORTH_SAYING, "note", "channels_last",
         f"convolutions are {channels_last:.1f} times as fast here with channels last",
         "Measured here on one convolution. Values change in their last bits; every layer has to keep the layout.",
         ("model = model.to(memory_format=torch.channels_last)",
          "images = images.to(memory_format=torch.channels_last)")),
        (denormals > 2.0, "note", "denormals",
         f"denormals (numbers below 1e-38) are {denormals:.0f} times slower here",
         "Measured here on products. Activations and gradients that fade out become such numbers.",
         ("torch.set_flush_denormal(True)",)),
        (has_cards and not facts.cudnn_benchmark, "note", "no_cudnn_benchmark",
         "cuDNN chooses convolution algorithms by rule and does not measure them",
         "Where the shapes of images stay the same, measuring once at each shape finds faster ones.",
         ("torch.backends.cudnn.benchmark = True", "with anygpu.pytorch.settings(cudnn_benchmark=True): ...")),
        (has_cards and "expandable_segments" not in allocator and "cudaMallocAsync" not in allocator, "note",
         "allocator", "torch's allocator cannot grow its segments",
         "When sizes of tensors change from step to step, memory is left in pieces, and allocations wait for the card.",
         ("export PYTORCH_ALLOC_CONF=expandable_segments:True",)),
        (has_cards, "note", "loading", "let loading overlap with computing",
         f"By default a DataLoader loads in the loop, and copies wait. With {facts.processors} processors, up to "
         f"{workers} workers help; from pinned memory copies go on while the card computes.",
         (f"DataLoader(dataset, num_workers={workers}, pin_memory=True)",
          'for batch in anygpu.pytorch.prefetch(loader, "cuda"): ...')),
    ]  # fmt: skip
