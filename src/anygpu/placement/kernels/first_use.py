"""The first use of a kernel: compiled and run in a child, compared with its reference, and remembered on disk."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.structure import flatten
from anygpu.base.cache_folder import cache_folder
from anygpu.base.typing import HostArray
from anygpu.engines.catalogue import catalogue, entry_of, every_engine
from anygpu.engines.disk_cache import DiskCache, stamp_of
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeviceUnavailable,
    InvalidOption,
    KernelError,
    KernelOutOfBounds,
    MissingExtra,
    WrongKernel,
)
from anygpu.hardware.device import Device
from anygpu.placement.kernels.arguments import Given, call_like
from anygpu.placement.kernels.launching import (
    LaunchCall,
    Launcher,
    Tolerance,
    encoded,
    first_difference,
    of_another_number,
    of_another_type,
)
from anygpu.placement.kernels.sandbox import Sandboxes
from anygpu.program.ops.custom import SPOKEN, Custom, Language, Parameter
from anygpu.program.primitives import Spec

# -- arguments for a trial where the user's own are not at hand: the same whenever they are made


#: The least and the greatest value of an array.
Range = tuple[float, float]

_SEED = 20_250_607


def samples(specs: Sequence[Spec], ranges: Sequence[Range | None] = ()) -> list[HostArray]:
    """An array for each spec, of numbers in its range.

    Where that is not known, floats lie between -1 and 1, and whole numbers between 0 and the shortest axis of all: a
    kernel may use them as indices.
    """
    random = np.random.default_rng(_SEED)
    axes = [n for spec in specs for n in spec.shape if n]
    top = max(min(axes, default=2) - 1, 1)
    known = [*ranges, *[None] * (len(specs) - len(ranges))]
    return [_sample(random, spec, reach, top) for spec, reach in zip(specs, known, strict=True)]


def _sample(random: np.random.Generator, spec: Spec, reach: Range | None, top: int) -> HostArray:
    dtype = to_numpy_dtype(spec.dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, spec.shape).astype(dtype)
    if reach is not None and not all(map(math.isfinite, reach)):
        reach = None
    if dtype.kind in "iu":
        first, last = (int(each) for each in (reach or (0, min(top, np.iinfo(dtype).max))))
        return random.integers(first, last, spec.shape, dtype=dtype, endpoint=True)
    low, high = reach or (-1.0, 1.0)
    real = low + (high - low) * random.random(spec.shape, np.float32)
    if dtype.kind == "c":
        return (real + 1j * random.permutation(real, axis=-1) if spec.shape else real + 0j).astype(dtype)
    return np.asarray(real).astype(dtype)


#: Arguments on a device that have more bytes than this are not downloaded for a trial.
MOST_DOWNLOADED = 64 << 20

#: Kinds of calls that need no thought any more.
_MOST_PASSED = 4096


def engines_for(language: Language) -> list[str]:
    """The engines that compile kernels in the language."""
    return [entry.name for entry in every_engine() if language in entry.traits.languages]


def device_for(language: Language) -> tuple[Device | None, str]:
    """The best device of this machine that speaks the language; or none, and why."""
    from anygpu.workers.device_arrays.registry import registry

    try:
        known = {entry.name for entry in catalogue()}
        if names := [name for name in engines_for(language) if name in known]:
            return registry.find(",".join(names)).facts, ""
        why = f"The variable ANYGPU_ENGINES leaves out {', '.join(engines_for(language))}."
    except DeviceUnavailable as error:
        why = error.refusals[0] if error.refusals else str(error)
    except MissingExtra as error:
        why = str(error)
    return None, f"no device of this machine takes {SPOKEN[language]}. {why}"


class FirstUse:
    """The outcome of one kernel's first runs in child processes."""

    def __init__(self, launcher: Launcher, trials: Sandboxes, timeout: float) -> None:
        self._launcher = launcher
        self._trials = trials
        self._timeout = timeout
        self._lock = threading.RLock()
        #: By device and kind of call.
        self._tried: dict[tuple[str, str], AnyGPUError | None] = {}
        self._passed: set[Any] = set()

    def compile(self, device: Device) -> str | None:
        """Once for a device and its driver. Why the device cannot run it, where something is missing there."""
        name, program = self._launcher.name, self._launcher.sample()
        ops = [node.op for node in program.nodes if isinstance(node.op, Custom)]
        key = hashlib.sha256(encoded(ops[0])).hexdigest()
        kept = _kept(device)
        if kept.record("kernel-compiled", key, bool):
            return None
        lacks = self._trials.lacks(device, program, name, self._timeout)
        if lacks:
            return f"{device.id} does not run it: {lacks[0].reason.rstrip('.')}."
        self._trials.compile(device, program, name, self._timeout)
        kept.put_record("kernel-compiled", key, True)
        return None

    def require(self, device: Device, given: Given, launch: LaunchCall | None = None) -> None:
        """Try it, unless that was done before, here or in an earlier process. What failed fails again."""
        # Whole numbers may decide about shapes; others do not, so that new values of them need no new thought.
        whole = tuple(each for each in given.numbers.values() if isinstance(each, int))
        quick = device.id, whole, tuple((each.shape, each.dtype.name) for each in given.arrays)
        if quick in self._passed:
            return
        if launch is None:
            launch = self._launcher.launch_of(given)
        where = device.id, launch.key
        if where not in self._tried:
            with self._lock:
                if where not in self._tried:
                    self._tried[where] = self._outcome(device, given, launch)
        error = self._tried[where]
        if error is not None:
            raise error.with_traceback(None)
        if len(self._passed) >= _MOST_PASSED:
            self._passed.clear()
        self._passed.add(quick)

    def _outcome(self, device: Device, given: Given, launch: LaunchCall) -> AnyGPUError | None:
        kept = _kept(device)
        if launch.lasting_key is not None and kept.record("kernel-checked", launch.lasting_key, bool):
            return None
        try:
            self._try(device, given, launch)
        except KernelOutOfBounds:
            # Random numbers may be no indices of anything; and those of this call say nothing about the next.
            if has_values(given):
                raise
            return None
        except (KernelError, InvalidOption) as error:
            return error
        except AllocationError as error:
            # A trial takes as much memory as the call itself. A kernel that was right for others may go without.
            if None in self._tried.values():
                return None
            name = self._launcher.name
            error.add_note(f"The kernel {name} can be checked with smaller arrays first: {name}.check(...).")
            raise
        if launch.lasting_key is not None:
            kept.put_record("kernel-checked", launch.lasting_key, True)
        return None

    def check(self, device: Device, given: Given) -> None:
        """Try it now, whatever is known."""
        launch = self._launcher.launch_of(given)
        with self._lock:
            self._try(device, given, launch)
            self._tried[device.id, launch.key] = None

    def _try(self, device: Device, given: Given, launch: LaunchCall) -> None:
        launcher = self._launcher
        arguments = arguments_for(given, launch.inputs, MOST_DOWNLOADED)
        found = self._trials.run(device, launch.alone, arguments, launcher.name, self._timeout)
        if launcher.reference is not None:
            expected = _expected(launcher.reference, arguments, given)
            compare(launcher.name, launcher.written, found, expected, launcher.tolerance)


def _expected(reference: Callable[..., Any], arguments: Sequence[HostArray], given: Given) -> list[Any]:
    for each in arguments:
        each.flags.writeable = False  # a reference that writes to its arguments shows it here
    return flatten(call_like(reference, arguments, given.numbers))[0]


def arguments_for(given: Given, specs: Sequence[Spec], most: int) -> list[HostArray]:
    """The caller's own arguments, copied, where they are at hand; otherwise random ones in their place.

    Arrays of the host are always at hand. Those on a device are downloaded, unless they have more than `most` bytes.
    """
    known = has_values(given)
    if known and sum(each.nbytes for each in given.arrays if isinstance(each, Array)) <= most:
        return [np.array(each) for each in given.arrays]
    return samples(specs, [_range(each) if known else None for each in given.arrays])


def has_values(given: Given) -> bool:
    """Not while a function is recorded."""
    return not any(isinstance(each, Array) and isinstance(each._device, AbstractDevice) for each in given.arrays)


def _range(array: Any) -> Range | None:
    """The least and the greatest value, found where the array is."""
    if not array.size or array.dtype.kind not in "iuf":
        return None
    return array.min().item(), array.max().item()


def compare(
    title: str,
    written: Sequence[Parameter],
    found: Sequence[HostArray],
    expected: Sequence[Any],
    tolerance: Tolerance | None,
) -> None:
    """Raises `WrongKernel` with the first place of the first result that is wrong."""
    if len(expected) != len(written):
        raise of_another_number(title, written, len(expected))
    for parameter, mine, theirs in zip(written, found, map(np.asarray, expected), strict=True):
        if theirs.dtype != mine.dtype:
            raise of_another_type(title, parameter, theirs.dtype.name)
        if theirs.shape != mine.shape:
            raise InvalidOption(
                f"the reference of the kernel {title} gives {parameter.name} in the shape {theirs.shape}, and the "
                f"kernel in {mine.shape}. Say the right one with results=."
            )
        difference = first_difference(mine, theirs, tolerance)
        if difference is not None:
            position, here, there, places = difference
            raise WrongKernel(title, parameter.name, position, here, there, differing=places)


def _kept(device: Device) -> DiskCache:
    return DiskCache(cache_folder() / "kernels", stamp_of(device, entry_of(device.id).versions))
