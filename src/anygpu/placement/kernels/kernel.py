"""`Kernel`: a user's own kernel, in WGSL or OpenCL C, that is called like a function of arrays.

Its text is read and compiled when it is made: WGSL from its declarations, OpenCL C by the compiler of a device. A call
records one node of a program (`program.ops.custom`), so it is planned and replayed like everything else, and on devices
without its language its reference is computed instead.
Before it meets the user's own arrays on a device it has run once in a child, and was compared there.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from anygpu.array.core.abstract_device import AbstractDevice
from anygpu.array.core.array import Array, as_value
from anygpu.array.core.recording import apply
from anygpu.base.lazy import cached_property
from anygpu.calls.executing import ask, is_executing
from anygpu.engines.catalogue import traits_of
from anygpu.engines.codegen.custom.reflected import (
    ConstantNumber,
    Reflected,
    Unreadable,
    language_of,
    with_defines,
    with_updates,
)
from anygpu.engines.codegen.custom.wgsl import reflected_wgsl
from anygpu.errors import DeviceUnavailable, InvalidOption, Unsupported
from anygpu.placement.kernels.arguments import (
    Given,
    Grid,
    Number,
    Results,
    call_like,
    call_text,
    given_to,
    numbers_for,
)
from anygpu.placement.kernels.first_use import FirstUse, device_for, engines_for, reflected_by_compiler, trials
from anygpu.placement.kernels.launching import Launcher, Tolerance, result_of
from anygpu.program.ops.custom import SPOKEN, Language, Parameter, Three
from anygpu.receipts.receipt import warn_fallback

if TYPE_CHECKING:
    from anygpu.calls.offload import Offloaded
    from anygpu.hardware.device import Device


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that has run in a child."""

    device: str
    seconds: float
    #: `False` when there is no reference: then it is only known to end.
    compared: bool


class _CallSignature:
    """The parameters of a kernel's calls. The class has those of its constructor."""

    def __get__(self, kernel: Kernel | None, owner: type[Kernel]) -> inspect.Signature:
        """The signature of a kernel's call: the arrays that it reads, then its numbers. The class itself has none."""
        if kernel is None:
            raise AttributeError("__signature__")
        if not kernel._is_read and kernel.reference is not None:
            return inspect.signature(kernel.reference)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [each.name for each in kernel._launcher.read] + [each.name for each in kernel.numbers]
        return inspect.Signature([inspect.Parameter(name, kind) for name in names])


class Kernel:
    """A kernel that you wrote, as a function.

    `source` is WGSL or OpenCL C; what it takes, in which types, and the size of its groups are read from it. OpenCL C
    is read by the compiler of a device: where there is none, nothing is known of the kernel but its reference.
    `reference` is a NumPy function that means the same: it is called with the arrays that the kernel reads, in their
    order, and by name with those of its numbers that it takes. It returns the result, or a tuple of several, and leaves
    its arguments alone. With it the kernel is checked at its first use, and runs on every other device. What it reads
    beside its arguments stays as it is while the kernel is used; for other values make another kernel.

    :param name: what messages and receipts call it; the name of the function in the source otherwise.
    :param language: "wgsl" or "opencl", where the source leaves doubt.
    :param entry: the function in the source, where there are several.
    :param constants: values of `override` constants in WGSL, or of macros in OpenCL C.
    :param updates: names of buffers that the kernel changes: a copy of the argument is changed and returned.
    :param results: the shapes of results, where no reference tells: the name of a parameter that they are like, or a
        function that is called as the kernel is, with shapes in place of arrays. Otherwise they are like the
        first array.
    :param grid: invocations in x, y and z, or a function as above. Otherwise one for each element of the first result.
    :param tolerance: how far results may be from the reference, as a share of the value; or two numbers, a share and
        what is added to it.
    :param timeout: seconds that compiling, and the first run, may take.

    The first call with arrays of some shapes runs it in a child process, with the arguments of that call. Where these
    have no values, because a function is being recorded, or where more than 64 MiB of them would have to be downloaded,
    it runs with random numbers from a fixed seed, of the same shapes, and of the same range where that is known.

    WGSL keeps each index inside its buffer. OpenCL C does not: an access out of bounds there is undefined behaviour,
    which the first run shows only if it crashes or changes the result.
    """

    def __init__(
        self,
        source: str,
        reference: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        language: Language | None = None,
        entry: str | None = None,
        constants: Mapping[str, bool | int | float] | None = None,
        updates: Sequence[str] = (),
        results: Results | None = None,
        grid: Grid | None = None,
        tolerance: Tolerance | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Read the source and prepare its launches; see the class for the options.

        Compiles the kernel aside where a device for its language is known. Raises `InvalidOption` for options that do
        not fit, and `InvalidKernel` for a source that cannot be read. A device that refuses the kernel is not an error
        here: calls then run the reference.
        """
        _check(source, reference, updates, timeout)
        ask()
        self._given = source, reference
        self._options = {
            "name": name,
            "language": language,
            "entry": entry,
            "constants": None if constants is None else dict(constants),
            "updates": tuple(updates),
            "results": results,
            "grid": grid,
            "tolerance": tolerance,
            "timeout": timeout,
        }
        title = name or entry or ""
        language = language_of(source, title, language)
        #: The device that would run it, or why there is none.
        self._device, self._refusal = device_for(language)
        self._told = False
        #: Without a device for OpenCL C, only the kernel's reference is known.
        self._is_read = language == "wgsl" or self._device is not None
        self._reflected = self._read(language, title, entry, constants or {}, float(timeout))
        if self._is_read:
            self._reflected = with_updates(self._reflected, title or self._reflected.entry, tuple(updates))
        self._launcher = Launcher(
            name or self._reflected.entry,
            self._reflected,
            reference,
            results=results,
            grid=grid,
            tolerance=_checked_tolerance(tolerance),
        )
        self._first_use = FirstUse(self._launcher, trials, float(timeout))
        self.__name__ = self.__qualname__ = self.name
        self.__doc__ = getattr(reference, "__doc__", None) or Kernel.__doc__
        if self._device is not None:
            refusal = self._first_use.compile(self._device)
            if refusal is not None:
                self._device, self._refusal = None, refusal

    def _read(
        self,
        language: Language,
        title: str,
        entry: str | None,
        constants: Mapping[str, ConstantNumber],
        timeout: float,
    ) -> Reflected:
        """Return what the text declares."""
        try:
            if language == "wgsl":
                return reflected_wgsl(self.source, entry, constants)
            source = with_defines(self.source, constants)
        except Unreadable as problem:
            raise problem.for_kernel(title, self.source) from None
        if self._device is not None:
            return reflected_by_compiler(self._device, source, entry, title, timeout)
        found = re.search(r"kernel\b[^;{]*?\bvoid\s+(\w+)\s*\(", source)
        entry = entry or (found[1] if found is not None else "kernel")
        return Reflected(
            language=language, entry=entry, source=source, parameters=(), scalars=(), group=None, lengths={}
        )

    # -- facts

    @property
    def name(self) -> str:
        return self._launcher.name

    @property
    def language(self) -> Language:
        return self._reflected.language

    @property
    def source(self) -> str:
        """The text of the kernel, unchanged."""
        return self._given[0]

    @property
    def entry(self) -> str:
        """The function in the source."""
        return self._reflected.entry

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The buffers that it takes, with the type and the role of each."""
        return self._reflected.parameters

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers that it takes, with the type of each."""
        return self._launcher.numbers

    @property
    def group(self) -> Three | None:
        """Invocations of one group, where the source says how many."""
        return self._reflected.group

    @property
    def reference(self) -> Callable[..., Any] | None:
        return self._given[1]

    __signature__ = _CallSignature()

    def __repr__(self) -> str:
        """The call, the arrays that it makes, and the language."""
        if not self._is_read:
            return f"<Kernel {self.name}, in {SPOKEN[self.language]}, which no device of this machine can read>"
        made = ", ".join(f"{each.name}: array of {each.dtype}" for each in self._launcher.written)
        return (
            f"<Kernel {call_text(self.name, self._launcher.read, self.numbers)} -> {made}, in {SPOKEN[self.language]}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (*self._given, self._options)

    # -- calls

    def __call__(self, *arguments: Any, **numbers: Any) -> Any:
        """The result, or a tuple of several.

        With anygpu's own arrays, or while a function is recorded, a lazy array. With NumPy's, a NumPy array: the call
        is placed as that of an offloaded function is.
        """
        if not self._is_read:
            return self._of_reference(arguments, numbers)
        given = self._bound(arguments, numbers)
        if given.has_ours:
            return self._recorded(given)
        if self._device is not None:
            # With the user's own arrays, and so that an error is theirs to see, wherever the call runs.
            self._first_use.require(self._device, given)
        if self.reference is not None:
            if is_executing():  # on NumPy: that was decided, with its cost
                return call_like(self.reference, given.arrays, given.numbers)
            if self._device is None:
                self._tell_why_not()
        return self._placed(*given.arrays, **given.numbers)

    def check(self, *arguments: Any, **numbers: Any) -> Checked:
        """Run it now in a child with these arguments, and compare it with its reference, whatever is known of it.

        Raises `WrongKernel` with the first place where they differ, `DeviceHung` when it does not end in time,
        `InvalidKernel` when it does not compile or ends its process, and `DeviceUnavailable` when no device of this
        machine speaks its language.
        """
        if not self._is_read:
            raise self._unavailable()
        given = self._bound(arguments, numbers)
        device = self._device_of(given) or self._device
        if device is None:
            raise self._unavailable()
        begin = time.perf_counter()
        self._first_use.check(device, given)
        seconds = time.perf_counter() - begin
        return Checked(device=device.id, seconds=seconds, compared=self.reference is not None)

    def _of_reference(self, arguments: Sequence[Any], numbers: Mapping[str, Any]) -> Any:
        """Return the value of a call by the reference alone, where no device can read the text."""
        if self.reference is None:
            raise self._unavailable()
        numbers = numbers_for(self.reference, numbers)
        try:
            inspect.signature(self.reference).bind(*arguments, **numbers)
        except ValueError:  # a function in C that does not tell
            pass
        except TypeError as error:
            raise InvalidOption(
                f"{error} of the reference of the kernel {self.name}, which stands for it, because {self._refusal} "
                "Give numbers by name."
            ) from None
        if is_executing() or any(isinstance(each, Array) for each in arguments):
            return self.reference(*arguments, **numbers)
        self._tell_why_not()
        return self._placed(*arguments, **numbers)

    def _bound(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Given:
        return given_to(self.name, self._launcher.read, self.numbers, arguments, keywords)

    def _recorded(self, given: Given) -> Any:
        """A node for each result, on the place where the arrays are."""
        place = next(each._device for each in given.arrays if isinstance(each, Array))
        values = [each._value if isinstance(each, Array) else as_value(each, place) for each in given.arrays]
        launch = self._launcher.launch(tuple(each.spec for each in values), given.numbers)
        device = self._device_of(given)
        if device is not None:
            self._first_use.require(device, given, launch)
        made = [apply(result_of(launch.op, number), *values, spec=spec) for number, spec in enumerate(launch.results)]
        arrays = tuple(map(Array, made))
        return arrays if len(arrays) > 1 else arrays[0]

    def _device_of(self, given: Given) -> Device | None:
        """The device that would run the kernel's own text for these arguments."""
        place = next((each._device for each in given.arrays if isinstance(each, Array)), None)
        if place is None or isinstance(place, AbstractDevice):
            return self._device
        facts: Device | None = getattr(place, "facts", None)
        return facts if facts is not None and self.language in traits_of(facts.engine).languages else None

    @cached_property
    def _placed(self) -> Offloaded[..., Any]:
        """The kernel as an offloaded function. Without a reference only devices of its language can run it."""
        from anygpu.calls.offload import offloaded

        def body(*arrays: Any, **numbers: Any) -> Any:
            if not self._is_read and self.reference is not None:
                return self.reference(*arrays, **numbers)
            given = self._bound(arrays, numbers)
            if given.has_ours:
                return self._recorded(given)
            if self.reference is not None:
                return call_like(self.reference, given.arrays, given.numbers)
            raise Unsupported(
                f"kernel {self.name}, which is written in {SPOKEN[self.language]}",
                "numpy",
                instead="Give the kernel a reference, or use a device of its language.",
            )

        body.__name__ = body.__qualname__ = self.name
        body.__doc__ = self.__doc__
        if self.reference is not None:
            return offloaded(body, {})
        return offloaded(body, {"on": engines_for(self.language), "fallback": "raise"})

    # -- no device

    def _tell_why_not(self) -> None:
        """Say once why calls run the reference.

        The option `fallback` decides how: by a warning, by an error, or not at all.
        """
        from anygpu.calls.options import options

        fallback = options().fallback
        if fallback == "raise":
            raise self._unavailable()
        if fallback == "warn" and not self._told:
            self._told = True
            sentence = f"the kernel {self.name} runs its reference instead: {self._refusal}"
            warn_fallback(sentence, cause=("kernel", self.name, self.language))

    def _unavailable(self) -> DeviceUnavailable:
        return DeviceUnavailable(f"the kernel {self.name} in {SPOKEN[self.language]}", [self._refusal])


def _again(source: str, reference: Callable[..., Any] | None, options: dict[str, Any]) -> Kernel:
    return Kernel(source, reference, **options)


def _check(source: Any, reference: Any, updates: Any, timeout: float) -> None:
    """Raise `InvalidOption` for arguments of a kernel that are of the wrong kind."""
    if not isinstance(source, str):
        raise InvalidOption(f"the source of a kernel is a string; got a {type(source).__name__}.")
    if reference is not None and not callable(reference):
        raise InvalidOption(f"reference= is a function; got {reference!r}.")
    if not 0 < timeout < math.inf:
        raise InvalidOption(f"timeout is a number of seconds, more than 0; got {timeout!r}.")
    if isinstance(updates, str):
        raise InvalidOption(f"updates= is a list of names; write [{updates!r}].")


def _checked_tolerance(tolerance: Any) -> Tolerance | None:
    """The tolerance as one number or a pair of them. Raises `InvalidOption` for anything negative or not finite."""
    if tolerance is None:
        return None
    parts = tolerance if isinstance(tolerance, tuple | list) else (tolerance,)
    try:
        numbers = [float(each) for each in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 <= each < math.inf for each in numbers):
        raise InvalidOption(
            f"tolerance is a share such as 1e-4, or a share and what is added to it, such as (1e-4, 1e-6); got "
            f"{tolerance!r}."
        )
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
