"""Which of torch's settings cost speed here, and the line to write. Pure, but for `doctor` itself."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

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

# -- how torch is set up in this process, as plain values


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
    #: The compute capability of NVIDIA's cards; (0, 0) for others.
    capability: tuple[int, int]


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Times of short computations; `None` where one was not measured."""

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
    mkl: bool = True
    default_dtype: str = "float32"
    environment: dict[str, str] = {}
    measured: Measurements = Measurements()


def facts_here(measured: Measurements) -> TorchFacts:
    """The facts of this process that the doctor judges: versions, cards, settings and environment."""
    return TorchFacts(
        version=str(torch.__version__),
        cards=tuple(_card(index) for index in range(torch.cuda.device_count())) if torch.cuda.is_available() else (),
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
        mkl=torch.backends.mkl.is_available(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
        measured=measured,
    )


def _card(index: int) -> TorchCard:
    """The name and compute capability of a CUDA device; (0, 0) for cards of AMD."""
    properties = torch.cuda.get_device_properties(index)
    nvidia = torch.version.hip is None
    return TorchCard(name=properties.name, capability=(properties.major, properties.minor) if nvidia else (0, 0))


# -- short computations that show what a setting costs on this machine: three seconds at most, in all
#
# They run on a thread of their own, because a thread's number of threads is its own, and draw no random numbers: the
# process is afterwards as it was.


T = TypeVar("T")

#: For all of them, in seconds.
BUDGET = 2.0
#: Of the products. Small, so that most calls come through without being interrupted on a busy machine.
_SIZE = 384


def measure(thread_counts: Sequence[int], budget: float = BUDGET) -> Measurements:
    """Time computations, with each of these numbers of threads where that matters."""
    begin = time.perf_counter()
    now = torch.get_num_threads()
    each = budget / (len(thread_counts) * 2 + 8)
    by_threads = dict.fromkeys(thread_counts, float("inf"))
    for count in (*thread_counts, *thread_counts):  # twice, because what else goes on changes in between
        by_threads[count] = min(by_threads[count], _with_threads(count, lambda: _product_seconds(each)))
    denormals, bfloat16, medium, channels_last = _with_threads(now, lambda: _ratios(each * 2))
    return Measurements(
        product_by_threads=by_threads,
        denormals=denormals,
        bfloat16=bfloat16,
        medium=medium,
        channels_last=channels_last,
        seconds=time.perf_counter() - begin,
    )


def _with_threads(count: int, call: Callable[[], T]) -> T:
    """Return `call()` on a thread with so many; the number that new threads begin with stays."""
    found: list[T] = []
    errors: list[BaseException] = []
    ready = threading.Event()

    def run() -> None:
        try:
            usual = torch.get_num_threads()
            torch.set_num_threads(count)
            torch_settings.on_a_new_thread(lambda: torch.set_num_threads(usual))
            ready.set()
            with torch.no_grad():
                found.append(call())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="anygpu doctor")
    with torch_settings.changing:
        thread.start()
        ready.wait()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _product_seconds(seconds: float) -> float:
    left = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=torch.float32, device="cpu").reshape(_SIZE, _SIZE)
    return best_of([lambda: left @ left], seconds)[0]


def _ratios(seconds: float) -> tuple[float, float, float | None, float]:
    """How much slower tiny numbers are, and how much faster bfloat16 and lower precision are than float32."""
    left = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=torch.float32, device="cpu").reshape(_SIZE, _SIZE)
    half = left.to(torch.bfloat16)
    # Small enough for one thread: whether tiny numbers are flushed to zero is each thread's own setting.
    normal, tiny = torch.full((16384,), 1e-10), torch.full((16384,), 1e-39)
    usual, slow = best_of([lambda: normal * 0.5, lambda: tiny * 0.5], seconds)
    exact, fast = best_of([lambda: left @ left, lambda: half @ half], seconds)
    medium = None
    # Refused when another block of the process has a precision of its own.
    with contextlib.suppress(InvalidOption), settings(matmul_precision="medium"):
        medium = exact / best_of([lambda: left @ left], seconds / 2)[0]
    images = torch.linspace(-1.0, 1.0, 32 * 56 * 56, dtype=torch.float32, device="cpu").reshape(1, 32, 56, 56)
    weights = torch.linspace(-1.0, 1.0, 32 * 32 * 9, dtype=torch.float32, device="cpu").reshape(32, 32, 3, 3)
    images_last = images.to(memory_format=torch.channels_last)
    weights_last = weights.to(memory_format=torch.channels_last)
    convolve = torch.nn.functional.conv2d
    first, last = best_of([lambda: convolve(images, weights), lambda: convolve(images_last, weights_last)], seconds)
    return slow / usual, exact / fast, medium, first / last


def best_of(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The best time of each, taking turns for so many seconds, and twice at least."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        for number, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[number] = min(best[number], time.perf_counter() - begin)
        rounds += 1
    return best


SCHEMA = "anygpu.torch-doctor/1"

#: A measured difference below this is none: short measurements differ by as much.
_WORTH_SAYING = 1.15
_MEASURED_ON = "a float32 product of 384 × 384"


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

    It computes for three seconds at most; `measured=False` leaves that out.
    """
    now = facts_here(Measurements())
    return diagnose(msgspec.structs.replace(now, measured=measure(_counts_to_try(now))) if measured else now)


def _counts_to_try(facts: TorchFacts) -> list[int]:
    """One thread, those there are, and those that could be."""
    return sorted({1, facts.threads, facts.processors, min(facts.cores or facts.processors, facts.processors)})


def diagnose(facts: TorchFacts) -> TorchDiagnosis:
    """The findings of all rules for these facts, problems first, with a verdict. Pure."""
    findings = [finding for rule in _RULES for finding in rule(facts)]
    findings.sort(key=lambda finding: ("problem", "advice", "note").index(finding.severity))
    return TorchDiagnosis(verdict=_verdict(facts, findings), findings=tuple(findings), facts=facts)


def _verdict(facts: TorchFacts, findings: list[Finding]) -> str:
    """One sentence: which torch on what, and how many settings cost speed."""
    where = facts.cards[0].name if facts.cards else facts.processor
    more = f" and {len(facts.cards) - 1} more" if len(facts.cards) > 1 else ""
    told = f"torch {facts.version} on {where}{more}, {_threads_of(facts.threads)} on {facts.processors} processors"
    costs = sum(finding.severity == "problem" for finding in findings)
    if costs == 0:
        return f"{told}: no setting was found that costs speed."
    return f"{told}: {'one setting costs' if costs == 1 else f'{costs} settings cost'} speed."


def _threads(facts: TorchFacts) -> Iterator[Finding]:
    """Another number of threads is faster than the current one."""
    times = facts.measured.product_by_threads
    now = times.get(facts.threads)
    best = min(times, key=lambda count: (times[count], count)) if times else None
    gain = now / times[best] if now is not None and best is not None else None
    variable = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in facts.environment), None)
    why = f" {variable}={facts.environment[variable]} is set." if variable is not None else ""
    if facts.threads > facts.processors:
        with_all = times.get(facts.processors)
        costs = now is None or with_all is None or now > _WORTH_SAYING * with_all
        yield Finding(
            code="torch_too_many_threads",
            severity="problem" if costs else "note",
            title=f"torch uses {facts.threads} threads on {facts.processors} processors",
            cause="Threads that have no processor make the others wait at the end of every operation. torch counts the "
            f"machine's cores, and not what a container or its affinity leaves.{why}{_took(facts, facts.processors)}",
            fix=(f"torch.set_num_threads({facts.processors})", f"export OMP_NUM_THREADS={facts.processors}"),
        )
    elif best is not None and gain is not None and best > facts.threads and gain > _WORTH_SAYING:
        yield Finding(
            code="torch_too_few_threads",
            severity="problem",
            title=f"torch uses {facts.threads} of {facts.processors} processors",
            cause=f"With {best} threads operations on the CPU are faster here.{why}{_took(facts, best)}",
            fix=(f"torch.set_num_threads({best})", *((f"unset {variable}",) if variable is not None else ())),
        )
    elif (
        best is not None and gain is not None and best < facts.threads and gain > _WORTH_SAYING and not _is_busy(facts)
    ):
        yield Finding(
            code="torch_fewer_threads_are_faster",
            severity="advice",
            title=f"torch is faster with {_threads_of(best)} than with {facts.threads}",
            cause="That is so where two processors are one core, or where the container may use less than it seems."
            f"{_took(facts, best)} Measure it with your own model before you keep it.",
            fix=(f"torch.set_num_threads({best})",),
        )


def _took(facts: TorchFacts, other: int) -> str:
    """What a product takes with the present and with another number of threads; empty if it was not measured."""
    times = facts.measured.product_by_threads
    if facts.threads not in times or other not in times:
        return ""
    now, then = readable_seconds(times[facts.threads]), readable_seconds(times[other])
    return f" Measured here: {_MEASURED_ON} takes {now} with {_threads_of(facts.threads)} and {then} with {other}."


def _threads_of(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _is_busy(facts: TorchFacts) -> bool:
    return facts.load is not None and facts.load > facts.processors * 0.75


def _precision(facts: TorchFacts) -> Iterator[Finding]:
    """Matrix products in full float32 on cards that have TF32."""
    tensor_cores = [card for card in facts.cards if card.capability >= (8, 0)]
    in_full = facts.matmul_precision == "highest" or (facts.matmul_precision is None and facts.cuda_matmul != "tf32")
    if tensor_cores and in_full:
        yield Finding(
            code="torch_no_tf32",
            severity="advice",
            title=f"{tensor_cores[0].name} has tensor cores that float32 products do not use",
            cause="torch computes float32 products in full unless it is told otherwise. With TF32 they keep 10 bits of "
            "the mantissa instead of 23 and are several times as fast (torch's documentation: about 7 times on an "
            "A100); most networks train equally well.",
            fix=('torch.set_float32_matmul_precision("high")', "with anygpu.pytorch.settings(tf32=True): ..."),
        )


def _host_bfloat16(facts: TorchFacts) -> Iterator[Finding]:
    """The processor computes bfloat16 faster than float32."""
    ratio, medium = facts.measured.bfloat16, facts.measured.medium
    if facts.cards or ratio is None or ratio < 1.5:
        return
    in_place = ""
    fix = ['with torch.autocast("cpu", dtype=torch.bfloat16): ...']
    if medium is not None and medium > _WORTH_SAYING and facts.matmul_precision != "medium":
        in_place = f" Products of float32 tensors become {medium:.1f} times as fast when torch may round them so."
        fix.append('torch.set_float32_matmul_precision("medium")')
    yield Finding(
        code="torch_host_has_bfloat16",
        severity="advice",
        title=f"this processor multiplies bfloat16 {ratio:.1f} times as fast as float32",
        cause=f"Measured here on products of 384 × 384. bfloat16 keeps 7 bits of the mantissa instead of 23: enough "
        f"for most networks, with the loss in float32.{in_place}",
        fix=tuple(fix),
    )


#: Variable, values that cost, who is concerned by it, and why.
_COSTLY: tuple[tuple[str, tuple[str, ...] | None, bool, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", ("1",), True, "the host waits for every kernel, so nothing overlaps: for debugging only"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", None, True, "every tensor is allocated by the driver, which waits for the card"),
    ("TORCH_DISTRIBUTED_DEBUG", ("INFO", "DETAIL"), False, "collectives are checked before they run"),
    ("TORCH_COMPILE_DISABLE", ("1",), False, "torch.compile does nothing"),
    ("TORCHDYNAMO_DISABLE", ("1",), False, "torch.compile does nothing"),
    ("PYTORCH_JIT", ("0",), False, "scripted modules run as Python"),
    ("ONEDNN_VERBOSE", ("1", "2", "all"), False, "oneDNN prints every operation"),
    ("DNNL_VERBOSE", ("1", "2", "all"), False, "oneDNN prints every operation"),
    ("MKL_VERBOSE", ("1", "2"), False, "MKL prints every product, and waits for it"),
)


def _variables(facts: TorchFacts) -> Iterator[Finding]:
    """Environment variables that make torch slower."""
    for name, values, cards_only, why in _COSTLY:
        value = facts.environment.get(name)
        if value is None or (values is not None and value not in values) or (cards_only and not facts.cards):
            continue
        yield Finding(
            code=f"torch_variable_{name.lower()}",
            severity="problem",
            title=f"{name}={value} is set",
            cause=f"With it {why}.",
            fix=(f"unset {name}",),
        )


def _lacks_growing_segments(facts: TorchFacts) -> bool:
    """Whether torch's allocator for a card has no segments that grow."""
    config = facts.environment.get("PYTORCH_ALLOC_CONF", facts.environment.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    return bool(facts.cards) and "expandable_segments" not in config and "backend:cudaMallocAsync" not in config


def _loading(facts: TorchFacts) -> Iterator[Finding]:
    """Settings of data loaders for a card."""
    if not facts.cards:
        return
    workers = max(1, facts.processors - 1)
    yield Finding(
        code="torch_loading",
        severity="note",
        title="let loading overlap with computing",
        cause=f"By default a DataLoader loads in the loop, and copies wait. With {facts.processors} processors, up to "
        f"{workers} workers help; from pinned memory copies go on while the card computes.",
        fix=(
            f"DataLoader(dataset, num_workers={workers}, pin_memory=True)",
            'for batch in anygpu.pytorch.prefetch(loader, "cuda"): ...',
        ),
    )


@dataclass(frozen=True)
class _Rule:
    """One finding, and when it holds. Its texts have the facts in their holes."""

    code: str
    severity: Severity
    holds: Callable[[TorchFacts], bool]
    title: str
    cause: str
    fix: tuple[str, ...] = ()

    def __call__(self, facts: TorchFacts) -> Iterator[Finding]:
        if self.holds(facts):
            title, cause, *fix = (text.format(facts=facts) for text in (self.title, self.cause, *self.fix))
            yield Finding(code=self.code, severity=self.severity, title=title, cause=cause, fix=tuple(fix))


#: In the order in which findings of one severity are told.
_RULES: tuple[Callable[[TorchFacts], Iterator[Finding]], ...] = (
    _Rule("torch_busy_machine", "note", lambda facts: _is_busy(facts) and facts.measured.seconds > 0,
          "other programs use the processors, so what was measured here is doubtful",
          "On average {facts.load:.1f} processes wanted to run in the last minute, on {facts.processors} processors. "
          "Ask again on a calm machine."),
    _threads,
    _Rule("torch_anomaly_mode", "problem", lambda facts: facts.anomaly,
          "anomaly detection is on",
          "Every operation records a traceback, and every gradient is searched for NaN.",
          ("torch.autograd.set_detect_anomaly(False)",)),
    _Rule("torch_profiler", "problem", lambda facts: facts.profiler,
          "torch's profiler is running",
          "It writes down every operation. Leave its block for the steps that are not looked at."),
    _Rule("torch_deterministic", "advice", lambda facts: facts.deterministic,
          "only deterministic algorithms are allowed",
          "Some operations have a faster version whose last bits differ from run to run, and new memory is filled "
          "before it is used. Keep it if you need the same bits.",
          ("torch.use_deterministic_algorithms(False)",)),
    _Rule("torch_float64", "advice", lambda facts: facts.default_dtype == "float64",
          "new tensors are float64",
          "They take twice the memory of float32 and at least twice the time; on most cards much more.",
          ("torch.set_default_dtype(torch.float32)",)),
    _variables,
    _Rule("torch_variable_omp_wait_policy", "advice",
          lambda facts: facts.environment.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE",
          "OMP_WAIT_POLICY=ACTIVE is set",
          "torch's threads turn in circles while they wait, and take the processors from loaders of data and from "
          "other programs.",
          ("unset OMP_WAIT_POLICY",)),
    _Rule("torch_no_onednn", "problem", lambda facts: not facts.mkldnn,
          "oneDNN is switched off, or not in this build",
          "torch's own convolutions on the CPU are several times slower.",
          ("torch.backends.mkldnn.set_flags(True)",)),
    _Rule("torch_capability", "advice", lambda facts: "ATEN_CPU_CAPABILITY" in facts.environment,
          "ATEN_CPU_CAPABILITY={facts.environment[ATEN_CPU_CAPABILITY]} chooses torch's kernels ({facts.capability})",
          "Without it torch takes the widest instructions that this processor has.",
          ("unset ATEN_CPU_CAPABILITY",)),
    _precision,
    _Rule("torch_tf32_forbidden", "problem",
          lambda facts: facts.environment.get("NVIDIA_TF32_OVERRIDE") == "0" and bool(facts.cards),
          "NVIDIA_TF32_OVERRIDE=0 forbids TF32, whatever torch is told",
          "NVIDIA's libraries obey it before torch's settings.",
          ("unset NVIDIA_TF32_OVERRIDE",)),
    _host_bfloat16,
    _Rule("torch_no_cudnn_benchmark", "note", lambda facts: bool(facts.cards) and not facts.cudnn_benchmark,
          "cuDNN chooses convolution algorithms by rule and does not measure them",
          "Where the shapes of images stay the same, measuring once at each shape finds faster ones.",
          ("torch.backends.cudnn.benchmark = True", "with anygpu.pytorch.settings(cudnn_benchmark=True): ...")),
    _Rule("torch_channels_last", "note", lambda facts: (facts.measured.channels_last or 0.0) > _WORTH_SAYING,
          "convolutions are {facts.measured.channels_last:.1f} times as fast here with channels last",
          "Measured here on one convolution, 32 channels of 56 × 56, 3 × 3, forward. The layout changes values in "
          "their last bits at most; every layer of the network has to keep it.",
          ("model = model.to(memory_format=torch.channels_last)",
           "images = images.to(memory_format=torch.channels_last)")),
    _Rule("torch_denormals", "note", lambda facts: (facts.measured.denormals or 0.0) > 2.0,
          "denormals (numbers below 1e-38) are {facts.measured.denormals:.0f} times slower here",
          "Measured here on products. Activations and gradients that fade out become such numbers; flushed to zero "
          "they cost nothing, and lose nothing that float32 networks can use.",
          ("torch.set_flush_denormal(True)",)),
    _Rule("torch_allocator", "note", _lacks_growing_segments,
          "torch's allocator cannot grow its segments",
          "When sizes of tensors change from step to step, memory is left in pieces that fit nothing, and allocations "
          "then wait for the card. Segments that grow avoid most of that.",
          ("export PYTORCH_ALLOC_CONF=expandable_segments:True",)),
    _loading,
)  # fmt: skip
