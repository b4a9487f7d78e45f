"""Checks that every engine and every worker must pass, written once.

A failure is an `AssertionError` that says what is wrong. The checks of engines come first: probing, transport of
arrays, programs, errors. Then `check_worker`, which tries a worker wherever it lives.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from anygpu.agreement.elementwise import tolerance_of
from anygpu.base.interrupts import float_errors_ignored
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.engines.protocol import Buffer, Engine, ProgramEngine
from anygpu.errors import AnyGPUError, DeviceLost, InvalidOption
from anygpu.hardware.device import FEATURES, Device, Unavailable
from anygpu.program.dtypes import is_inexact
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Cast, Gather, Input, Reshape, Scatter
from anygpu.testing.cases import (
    REFERENCE_DTYPES,
    ConformanceProgram,
    ConformanceResult,
    conformance_programs,
    one_primitive,
    tame,
    transported,
)
from anygpu.workers.executor import run_with_host
from anygpu.workers.worker import Argument, Handle, Worker

# -- checks that every engine must pass
#
# Written once. A failure is an AssertionError that says what is wrong.


def check_engine_probe(engine: Engine, *, deep: bool = False) -> list[Device]:
    """Discovers, verifies, asks and closes one engine in this process; returns the devices that are verified.

    The engine is closed twice, which it has to allow.
    """
    _expect(isinstance(engine, Engine), f"{type(engine).__name__} does not have all methods of Engine")
    found = engine.discover()
    _expect(len(found) > 0, "discover() must say what there is, or why there is nothing")
    identities = [item.id for item in found]
    _expect(len(set(identities)) == len(identities), f"ids must differ: {identities}")
    outcomes = [_check_item(engine, item, deep=deep) for item in found]
    devices = [item for item in outcomes if isinstance(item, Device)]
    for device in devices:
        _check_memory(engine, device)
        _check_classify(engine, device)
    engine.close()
    engine.close()
    return devices


def check_engine_programs(engine: Engine, device: Device, *, deep: bool = False) -> list[str]:
    """Run every primitive, function and type on a device that `discover` has listed, and compare with NumPy.

    What the engine says it lacks runs on the host, as it would for a user; the reasons are returned. With `deep`, also
    what moves data about is tried with every type and not with one of each kind.
    """
    if not isinstance(engine, ProgramEngine):
        raise AssertionError(f"{type(engine).__name__} does not have all methods of ProgramEngine")
    for dtype in REFERENCE_DTYPES:
        for array in transported(dtype):
            _check_transport(engine, device, array)
    reasons: set[str] = set()
    for suite in conformance_programs(deep=deep):
        reasons |= _check_suite(engine, device, suite)
    _check_errors(engine, device)
    _check_compilation(engine, device)
    _check_bfloat16(engine, device)
    engine.synchronize(device)
    return sorted(reasons)


def _check_transport(engine: ProgramEngine, device: Device, array: HostArray) -> None:
    """There and back, bit by bit, without sharing memory with what was given."""
    given = array.copy()
    buffer = engine.upload(given, device)
    given[...] = 1
    what = f"{array.dtype.name} of shape {array.shape}"
    _expect(same_bits(engine.download(buffer), array), f"{what} changed on its way to {device.id} and back")
    native = engine.native(buffer)
    _expect(hasattr(native, "__dlpack__"), f"native() must return an array that speaks DLPack, not {type(native)}")
    adopted = engine.adopt(native, device)
    _expect(same_bits(engine.download(adopted), array), f"{what} changed when it was adopted")


def same_bits(one: HostArray, other: HostArray) -> bool:
    """Whether two arrays have the same shape, dtype and bytes, so that NaN and -0.0 count."""
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _run(
    engine: ProgramEngine, device: Device, program: Program, buffers: Sequence[Buffer]
) -> tuple[list[Buffer], set[str]]:
    """Runs a program, the nodes that the engine lacks on the host; the results, and the reasons for the latter."""
    lacks = engine.supports(program, device)
    for lack in lacks:
        name = program.nodes[lack.node].op.name
        _expect(bool(lack.reason.strip()), f"supports() must say why {device.id} lacks {name}")
    if not lacks:
        return engine.execute(engine.compile(program, device), buffers), set()
    results, _ = run_with_host(engine, device, program, buffers, lacks)
    return results, {lack.reason for lack in lacks}


def _check_suite(engine: ProgramEngine, device: Device, suite: ConformanceProgram) -> set[str]:
    """Runs one program of the suite, compares each result with NumPy's, and checks that inputs were left alone.

    Returns the reasons why nodes ran on the host.
    """
    program = suite.program
    wanted = lowering.run(program, suite.inputs)
    buffers = [engine.upload(each, device) for each in suite.inputs]
    results, reasons = _run(engine, device, program, buffers)
    _expect(len(results) == len(wanted), f"{suite.name}: {len(wanted)} results were wanted, {len(results)} came")
    for result, reference, buffer in zip(suite.results, wanted, results, strict=True):
        wrong = conformance_difference(reference, engine.download(buffer), result)
        _expect(wrong is None, f"{suite.name} on {device.id}: {result.label} {wrong}")
    for before, buffer in zip(suite.inputs, buffers, strict=True):
        _expect(same_bits(engine.download(buffer), before), f"{suite.name}: {device.id} has written to an input")
    return reasons


@float_errors_ignored
def conformance_difference(wanted: HostArray, got: HostArray, result: ConformanceResult) -> str | None:
    """`None` when a result is as near as it must be, or the end of a sentence about its first wrong value.

    The tolerance is the published one for the kind of result, times the number of terms that were added up.
    """
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"is {got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    allowed = np.zeros(wanted.shape)
    agree = wanted == got
    if is_inexact(wanted.dtype.name):  # type: ignore[arg-type]
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        one, other = wanted.astype(wide), got.astype(wide)
        agree |= np.isnan(one) & np.isnan(other)
        if result.kind != "exact":
            allowed = tolerance_of(result.kind, wanted.dtype.name) * result.terms * _scale(one, result)  # type: ignore[arg-type]
            agree |= np.abs(one - other) <= allowed
    if agree.all():
        return None
    first = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(~agree)))[: wanted.ndim]
    many = f"{np.count_nonzero(~agree)} of {agree.size} values are wrong"
    return f"{first} is {got[first]} instead of {wanted[first]}, which is off by more than {allowed[first]:.2g}; {many}"


def _scale(wanted: HostArray, result: ConformanceResult) -> HostArray:
    """What a difference is relative to: a number itself, or the largest of those that were computed together."""
    sizes = np.abs(wanted)
    if result.kind in ("arithmetic", "function"):
        return np.maximum(sizes, 1)
    largest = np.max(sizes, where=np.isfinite(sizes), initial=1)
    return np.broadcast_to(largest, wanted.shape)


def _check_errors(engine: ProgramEngine, device: Device) -> None:
    """Errors that are in the values are NumPy's own, and are not taken for the device's."""
    x = tame("float32", 3, 4)
    mistakes: list[tuple[type[Exception], Program, tuple[HostArray, ...]]] = []
    for dtype, outside in (("int64", 4), ("int64", -1), ("int32", 1 << 30), ("uint64", (1 << 64) - 1), ("uint8", 4)):
        index = np.array([0, outside, 1], dtype)
        both = np.stack([index] * 3)
        mistakes += [
            (IndexError, one_primitive(Gather(1), x, index), (x, index)),
            (IndexError, one_primitive(Gather(1, 1), x, both), (x, both)),
            (IndexError, one_primitive(Scatter("set", 1), x, index, x[:, :3]), (x, index, x[:, :3])),
            (IndexError, one_primitive(Scatter("add", 1, 1), x, both, x[:, :3]), (x, both, x[:, :3])),
        ]
    bases, exponents = np.array([2, 3]), np.array([1, -1])
    mistakes.append((ValueError, one_primitive(Binary("power"), bases, exponents), (bases, exponents)))
    for wanted, program, arrays in mistakes:
        where = f"{program.nodes[-1].op} of {arrays[1].tolist()}"
        error = _error_of(engine, device, program, arrays)
        _expect(isinstance(error, wanted), f"{where} must raise {wanted.__name__} on {device.id}, not {error!r}")
        if error is not None:
            _expect(engine.classify(error, device) is None, f"classify() must return None for {error!r}: {where}")


def _error_of(engine: ProgramEngine, device: Device, program: Program, arrays: Sequence[HostArray]) -> Exception | None:
    """The error that running the program or reading its results raises; `None` if there is none."""
    try:
        results, _ = _run(engine, device, program, [engine.upload(each, device) for each in arrays])
        for buffer in results:
            engine.download(buffer)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller compares it
        return error
    return None


def _check_compilation(engine: ProgramEngine, device: Device) -> None:
    """The same program, made twice, is compiled once; and what it returns stays what it was."""
    x, y = tame("float32", 5), tame("float32", 5, seed=1)
    first, second = (engine.compile(one_primitive(Binary("add"), x, y), device) for _ in range(2))
    _expect(first is second or first == second, "compile() must keep what it has compiled, by the program's key")
    buffers = [engine.upload(each, device) for each in (x, y)]
    (one,) = engine.execute(first, buffers)
    engine.execute(first, [buffers[1], one])
    _expect(same_bits(engine.download(one), x + y), "a result changed when the program ran again")


def _check_bfloat16(engine: ProgramEngine, device: Device) -> None:
    """Where it is there, it rounds to the nearest with 8 bits, and to even between two."""
    x = np.array([0, -1.5, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, np.inf], np.float32)
    nodes = [Node(Input(x.shape, "float32")), Node(Cast("bfloat16"), (0,)), Node(Cast("float32"), (1,))]
    program = Program(nodes, [2])
    if not engine.supports(program, device):
        (result,) = engine.execute(engine.compile(program, device), [engine.upload(x, device)])
        wanted = np.array([0, -1.5, 1, 1 + 2**-6, 1 + 2**-7, np.inf], np.float32)
        got = engine.download(result)
        _expect(bool(np.allclose(got, wanted, rtol=1e-7)), f"bfloat16: {x} became {got}, not {wanted}")


def _check_item(engine: Engine, item: Device | Unavailable, *, deep: bool) -> Device | Unavailable:
    """Checks one entry of `discover`, verifies it if it is a device, and returns the outcome."""
    _expect(item.engine == engine.name, f"{item.id} says it belongs to {item.engine}, not to {engine.name}")
    own = item.id == engine.name or item.id.startswith(f"{engine.name}:")
    _expect(own, f'the id {item.id} must be "{engine.name}" or start with "{engine.name}:"')
    _check_round_trip(item)
    if isinstance(item, Unavailable):
        _check_unavailable(item)
        return item
    _expect(item.state == "usable", f"discover() returned {item.id} as {item.state}; only verify() may say more")
    _check_device(item)
    outcome = engine.verify(item, deep=deep)
    _expect(outcome.id == item.id, f"verify({item.id}) answered for {outcome.id}")
    _check_round_trip(outcome)
    if isinstance(outcome, Unavailable):
        _check_unavailable(outcome)
    else:
        _expect(outcome.verified, f"verify({item.id}) returned a device that is only {outcome.state}")
    return outcome


def _check_device(device: Device) -> None:
    """The facts of a device are plausible: known features, a share for its load, no more free memory than there is."""
    strangers = set(device.features) - set(FEATURES)
    _expect(not strangers, f"{device.id} has features under names of its own: {sorted(strangers)}")
    if device.software:
        _expect(device.kind == "cpu", f"{device.id} is software, so its kind is cpu, not {device.kind}")
    if device.memory_total is not None and device.memory_free is not None:
        _expect(device.memory_free <= device.memory_total, f"{device.id} has more memory free than in all")
    if device.load is not None:
        _expect(0 <= device.load <= 1, f"{device.id} has a load of {device.load}, which is not a share")
    _expect(bool(device.name.strip()) and bool(device.api.strip()), f"{device.id} must have a name and an api")


def _check_unavailable(item: Unavailable) -> None:
    """What is not available has a state that says so, and a sentence as its reason."""
    _expect(item.state in ("absent", "present", "hung"), f"{item.id} cannot be unavailable and {item.state}")
    _expect(item.reason.strip().endswith("."), f"the reason of {item.id} must be a sentence: {item.reason!r}")


def _check_memory(engine: Engine, device: Device) -> None:
    """Each figure of the memory is a positive number, or unknown with a reason."""
    memory = engine.memory(device)
    for name in ("total", "free"):
        value = getattr(memory, name)
        known = value is not None
        _expect(known or bool(memory.unknown.get(name)), f"memory({device.id}).{name} is None without a reason")
        _expect(not known or value > 0 or name == "free", f"memory({device.id}).{name} is {value}")


def _check_classify(engine: Engine, device: Device) -> None:
    """Errors of the user's are nobody's fault but theirs; an engine translates its own into errors of anygpu."""
    _expect(
        engine.classify(ValueError("the user's own mistake"), device) is None,
        "classify() must return None for an error that is the user's own",
    )
    translated = engine.classify(MemoryError(), device)
    _expect(translated is None or isinstance(translated, AnyGPUError), "classify() returns errors of anygpu or None")


def _check_round_trip(item: Device | Unavailable) -> None:
    """What an engine reports survives JSON unchanged, as it has to on its way from a child process."""
    again = msgspec.json.decode(msgspec.json.encode(item), type=type(item))
    _expect(again == item, f"{item.id} does not survive JSON: it must hold plain values only")


def _expect(condition: bool, sentence: str) -> None:
    """Raises `AssertionError` with the sentence unless the condition holds."""
    if not condition:
        raise AssertionError(sentence)


#: Elements; the last are too many for a message of ours.
_SIZES = (0, 1, 1021, 100_003)


def check_worker(worker: Worker) -> None:
    """Runs programs of all sizes, keeps arrays, asks for what is wrong, and closes the worker in the end.

    The worker has to be new and its device to add float32. Raises `AssertionError` on the first thing that is wrong.
    """
    _check_facts(worker)
    for size in _SIZES:
        _check_run(worker, size)
    _check_layouts(worker)
    _check_results_are_the_callers(worker)
    _check_handles(worker)
    _check_reclaiming(worker)
    _check_worker_errors(worker)
    _check_closing(worker)


def _sums(size: int) -> Program:
    """Two results: x + y, and that + y."""
    given = Node(Input((size,), "float32"))
    nodes = [given, given, Node(Binary("add"), (0, 1)), Node(Binary("add"), (2, 1))]
    return Program(nodes, [2, 3])


def _pair(size: int) -> tuple[HostArray, HostArray]:
    """Two arrays of float32 whose sums are exact."""
    return np.arange(size, dtype=np.float32), np.full(size, 0.5, np.float32)


def _check_facts(worker: Worker) -> None:
    """A new worker is alive, has a generation and an isolation, and tells its memory or why it does not."""
    _expect(worker.alive, "a worker that was just opened is alive")
    _expect(worker.ended is None, "a worker that is alive has not ended")
    _expect(worker.generation >= 1, "generations begin with 1")
    _expect(worker.isolation in ("thread", "process"), f"{worker.isolation!r} is not an isolation")
    memory = worker.memory()
    for name in ("total", "free"):
        known = getattr(memory, name) is not None or bool(memory.unknown.get(name))
        _expect(known, f"memory(): {name} is unknown without a reason")


def _check_run(worker: Worker, size: int) -> None:
    """The results of a run are NumPy's, and its record accounts for bytes, phases and kernels."""
    program, (x, y) = _sums(size), _pair(size)
    _expect(worker.supports(program) == [], f"{worker.device.id} adds float32")
    _expect(worker.prepare(program) >= 0, "prepare() returns seconds")
    ran = worker.run(program, [x, y])
    for result, wanted in zip(ran.results, (x + y, x + y + y), strict=True):
        _check_values(result, wanted)
    _expect(ran.bytes_to_device == x.nbytes + y.nbytes, f"{ran.bytes_to_device} bytes are said to go to the device")
    _expect(ran.bytes_to_host == 2 * x.nbytes, f"{ran.bytes_to_host} bytes are said to come back")
    _expect(ran.bytes_skipped == 0, "nothing was there already")
    _expect(ran.phases.trace == ran.phases.plan == 0, "a worker neither traces nor plans")
    _expect(ran.phases.run > 0, "running takes time")
    for name in ("device_seconds", "peak_bytes", "kernels"):
        known = getattr(ran, name) is not None
        _expect(known != (name in ran.unknown), f"{name} is known, or there is a reason why not")
    _expect((ran.kernels is None) == (ran.driver is None), "kernels are known where the driver's work is")


def _check_values(result: Any, wanted: HostArray) -> None:
    """A result is an ordinary, contiguous and writable array with exactly these values."""
    _expect(type(result) is np.ndarray, f"a result is an ordinary array, not a {type(result).__name__}")
    _expect(result.dtype == wanted.dtype and result.shape == wanted.shape, f"{result.dtype} {result.shape} came")
    _expect(np.array_equal(result, wanted), "the values are NumPy's")
    _expect(bool(result.flags.c_contiguous), "a result lies as C lays it out")
    _expect(bool(result.flags.writeable), "a result can be written to")


def _check_layouts(worker: Worker) -> None:
    """However an argument lies in memory, its values count."""
    program = _sums(1000)
    x, y = _pair(2000)
    swapped = x[:1000].astype(x.dtype.newbyteorder())
    for argument in (x[::2], x[1000:][::-1], swapped, np.broadcast_to(np.float32(3), (1000,))):
        (first, _) = worker.run(program, [argument, y[:1000]]).results
        _check_values(first, np.asarray(argument, np.float32) + y[:1000])


def _check_results_are_the_callers(worker: Worker) -> None:
    """Writing to a result changes nothing else, and what was given is left alone."""
    for size in _SIZES[2:]:
        program, (x, y) = _sums(size), _pair(size)
        given = x.copy()
        first, second = worker.run(program, [x, y]).results
        first[:] = -1
        _check_values(second, x + y + y)
        again, _ = worker.run(program, [x, y]).results
        _check_values(again, x + y)
        _expect(np.array_equal(x, given), "an argument was written to")
        view = again[5:9]
        del first, second, again
        gc.collect()
        for _ in range(3):
            worker.run(program, [y, y])
        _expect(np.array_equal(view, (x + y)[5:9]), "a part of a result keeps its values when the rest is gone")
    same = Program([Node(Input((3,), "float32")), Node(Reshape((3, 1)), (0,))], [0, 1])
    x = np.arange(3, dtype=np.float32)
    whole, column = worker.run(same, [x]).results
    whole[0] = 7
    _expect(column[0, 0] == 0 and x[0] == 0, "two results, or a result and an argument, share memory")


def _check_handles(worker: Worker) -> None:
    """Arrays that stay on the device keep their values, also when handles to others are given up before a run ends."""
    for size in _SIZES[1:]:
        program, (x, y) = _sums(size), _pair(size)
        handle: Handle = worker.upload(x)
        _expect(handle.spec == program.inputs[0], f"{handle.spec} is not what was uploaded")
        _expect(handle.generation == worker.generation, "a handle has its worker's generation")
        kept = worker.run(program, [handle, y], keep=True)
        _expect(kept.bytes_to_host == 0, "what is kept does not move")
        _expect(kept.bytes_skipped == 3 * x.nbytes, f"{kept.bytes_skipped} bytes are said to have been there")
        first, second = kept.results
        _expect(second.spec == program.results[1], f"{second.spec} is not what was computed")
        del handle, kept
        # What was given up must not be used again before this has run.
        later = worker.run(program, [first, second], keep=True, wait=False)
        _expect(np.array_equal(worker.download(later.results[0]), x + y + (x + y + y)), "handles hold their values")
        _expect(np.array_equal(worker.download(first), x + y), "a download leaves the array where it is")
        exported: Any = np.from_dlpack(worker.native(second))
        _expect(np.array_equal(exported, x + y + y), "native() has the values")
    adopted = worker.adopt(np.arange(5, dtype=np.float32))
    _expect(np.array_equal(worker.download(adopted), np.arange(5)), "adopt() has the values")


def _check_reclaiming(worker: Worker) -> None:
    """Memory is given back once, and none of an array that is still held."""
    program, (x, y) = _sums(_SIZES[-1]), _pair(_SIZES[-1])
    handle = worker.upload(x)
    worker.run(program, [x, y])
    _expect(worker.reclaim() >= 0, "reclaim() tells how many bytes it gave back")
    _expect(worker.reclaim() == 0, "what was given back is not there to be given back again")
    _expect(np.array_equal(worker.download(handle), x), "an array that somebody has is not given back")
    (first, _) = worker.run(program, [handle, y]).results
    _check_values(first, x + y)


def _check_worker_errors(worker: Worker) -> None:
    """Wrong arguments are refused, an error in values is NumPy's, and the worker goes on after both."""
    program = _sums(4)
    x = np.ones(4, np.float32)
    wrongs: list[list[Argument]] = [[x], [x, np.ones(5, np.float32)], [x, np.ones(4)], [worker.upload(np.ones(4)), x]]
    for wrong in wrongs:
        try:
            worker.run(program, wrong)
        except InvalidOption:
            continue
        raise AssertionError("arguments that do not fit the program are refused")
    nodes = [Node(Input((3,), "float32")), Node(Input((2,), "int32")), Node(Gather(0), (0, 1))]
    try:
        worker.run(Program(nodes, [2]), [x[:3], np.array([0, 5], np.int32)])
    except IndexError as error:
        _expect("3" in str(error), f"the error names the length: {error}")
    else:
        raise AssertionError("an index that is out of bounds is an IndexError")
    _expect(worker.alive, "an error of the program's own is not the end of the worker")
    (first, _) = worker.run(program, [x, x]).results
    _check_values(first, x + x)


def _check_closing(worker: Worker) -> None:
    """A closed worker raises `DeviceLost` for every use, and results that it returned before stay valid."""
    x = np.ones(100_003, np.float32)
    (first, _) = worker.run(_sums(x.size), [x, x]).results
    handle = worker.upload(x)
    worker.close()
    worker.close()
    _expect(not worker.alive, "a worker that was closed is not alive")
    _expect(bool(worker.ended), "a worker that is not alive says why")
    _check_values(first, x + x)
    for use in (lambda: worker.download(handle), lambda: worker.run(_sums(x.size), [x, x]), lambda: worker.upload(x)):
        try:
            use()
        except DeviceLost as error:
            _expect(error.generation == worker.generation, "the error tells whose generation is gone")
        else:
            raise AssertionError("a worker that was closed raises DeviceLost")
