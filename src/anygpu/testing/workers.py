"""What every worker must do, wherever it lives. A failure is an AssertionError that says what is wrong."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.errors import DeviceLost, InvalidOption
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import Binary, Gather, Input, Reshape
from anygpu.workers.worker import Argument, Handle, Worker

#: Elements; the last are too many for a message of ours.
_SIZES = (0, 1, 1021, 100_003)


def check_worker(worker: Worker) -> None:
    """Runs programs of all sizes, keeps arrays, asks for what is wrong, and closes the worker in the end."""
    _check_facts(worker)
    for size in _SIZES:
        _check_run(worker, size)
    _check_layouts(worker)
    _check_results_are_the_callers(worker)
    _check_handles(worker)
    _check_reclaiming(worker)
    _check_errors(worker)
    _check_closing(worker)


def _sums(size: int) -> Program:
    """Two results: x + y, and that + y."""
    given = Node(Input((size,), "float32"))
    nodes = [given, given, Node(Binary("add"), (0, 1)), Node(Binary("add"), (2, 1))]
    return Program(nodes, [2, 3])


def _pair(size: int) -> tuple[HostArray, HostArray]:
    return np.arange(size, dtype=np.float32), np.full(size, 0.5, np.float32)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _check_facts(worker: Worker) -> None:
    _expect(worker.alive, "a worker that was just opened is alive")
    _expect(worker.ended is None, "a worker that is alive has not ended")
    _expect(worker.generation >= 1, "generations begin with 1")
    _expect(worker.isolation in ("thread", "process"), f"{worker.isolation!r} is not an isolation")
    memory = worker.memory()
    for name in ("total", "free"):
        known = getattr(memory, name) is not None or bool(memory.unknown.get(name))
        _expect(known, f"memory(): {name} is unknown without a reason")


def _check_run(worker: Worker, size: int) -> None:
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
    program, (x, y) = _sums(_SIZES[-1]), _pair(_SIZES[-1])
    handle = worker.upload(x)
    worker.run(program, [x, y])
    _expect(worker.reclaim() >= 0, "reclaim() tells how many bytes it gave back")
    _expect(worker.reclaim() == 0, "what was given back is not there to be given back again")
    _expect(np.array_equal(worker.download(handle), x), "an array that somebody has is not given back")
    (first, _) = worker.run(program, [handle, y]).results
    _check_values(first, x + y)


def _check_errors(worker: Worker) -> None:
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
