"""The options of a call, from arguments or from environment variables; arguments win."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, get_args

from anygpu.base.units import bytes_from
from anygpu.engines import ISOLATIONS_HERE, Isolation
from anygpu.errors import InvalidOption
from anygpu.hardware.preference import CPU, Power, Preference, prefer

#: raise: before any work is done elsewhere; warn: say so, once for each cause and line; allow: the receipt says it.
Fallback = Literal["raise", "warn", "allow"]
Precision = Literal["float32"]
#: off: devices are not compared with NumPy. sample: before the first result, and every so often. always: every result.
Check = Literal["off", "sample", "always"]
#: The treatment of a result with a NaN in it.
NaNs = Literal["allow", "raise"]

DEVICE = "ANYGPU_DEVICE"
FALLBACK = "ANYGPU_FALLBACK"
CHECK = "ANYGPU_CHECK"
PRECISION = "ANYGPU_PRECISION"
MIN_MEMORY = "ANYGPU_MIN_MEMORY"
MAX_LOAD = "ANYGPU_MAX_LOAD"
NATIVE = "ANYGPU_NATIVE"
ENGINES = "ANYGPU_ENGINES"


class Options(NamedTuple):
    """The options of a call, checked and completed. The default lets every verified device take part."""

    preference: Preference = Preference()
    fallback: Fallback = "warn"
    precision: Precision | None = None
    isolation: Isolation | None = None
    timeout: float | None = None
    check: Check = "sample"
    #: For opaque tasks: the engine whose own arrays the function takes.
    engine: str | None = None
    #: Whether the first call of a kind compiles before it returns.
    warm: bool = False
    #: Whether every bit of the results is NumPy's.
    exact: bool = False
    #: The sentence for receipts where NumPy takes the place of "cpu".
    cpu_is_numpy: str | None = None

    @property
    def names_only_numpy(self) -> bool:
        """Return whether NumPy was asked for and nothing else, so that no other device has to be looked for."""
        return self.names_only("numpy")

    def names_only(self, *devices: str) -> bool:
        """Return whether some of these were asked for and no others."""
        names = self.preference.on
        return self.engine is None and bool(names) and all(name.lower() in devices for name in names)

    @property
    def needs_no_planning(self) -> bool:
        """Return whether only NumPy was asked for, without any option it lacks, so that calls run unchanged."""
        asked = self.preference
        return self.names_only_numpy and not asked.min_memory and asked.max_load >= 1 and self.precision is None

    @property
    def allows_native(self) -> bool:
        """Return whether calls may run as native code without being planned: no special option is set."""
        asked = self.preference
        return (
            not asked.on
            and not asked.min_memory
            and asked.max_load >= 1
            and (self.engine, self.precision, self.isolation, self.timeout) == (None, None, None, None)
            and self.check != "always"
            and _compiles_unasked()
        )


def _compiles_unasked() -> bool:
    """Return whether `ANYGPU_NATIVE` and `ANYGPU_ENGINES` allow native code."""
    if os.environ.get(NATIVE, "on") == "off":
        return False
    if not os.environ.get(ENGINES):
        return True  # as nearly always, and then nothing has to be imported
    from anygpu.engines.catalogue import is_left_out

    return not is_left_out(CPU)


class CallOptions(TypedDict, total=False):
    """The options that `offload`, `run` and `explain` take. One that is left out, or `None`, comes from the
    environment.
    """

    #: Names of devices, engines or kinds ("gpu", "webgpu", "cuda:1"); of several the first that there is.
    on: str | Sequence[str] | None
    fallback: Fallback | None
    #: "float32": 64-bit numbers are narrowed, results included, wherever the call runs.
    precision: Precision | None
    #: Bytes that a device must have free.
    min_memory: int | None
    #: The share of time, 0 to 1, that a device may have been busy lately.
    max_load: float | None
    power: Power | None
    #: Where workers live: "thread" for this process, "process" for a child each.
    isolation: Isolation | None
    #: Seconds after which a worker in a child is killed and `DeviceHung` is raised.
    timeout: float | None
    #: How results of devices are compared with NumPy's: "off", "sample" or "always".
    check: Check | None
    #: For opaque tasks: the engine whose own arrays the function takes, such as "torch".
    engine: str | None
    #: Whether the first call of a kind compiles native code before it returns, instead of beside the calls after it.
    warm: bool | None
    #: Whether every bit has to be NumPy's, also of floats; functions for which only NumPy can do that run there.
    exact: bool | None


class TaskOptions(CallOptions, total=False):
    """The options that `submit` takes beside those of a call."""

    #: 0 to 10; ten levels are overtaken after five seconds of waiting.
    priority: int
    tenant: str
    #: Seconds from now after which the task is given up.
    deadline: float | None
    nan: NaNs
    #: For opaque tasks: whether they may be run again when their device was lost.
    idempotent: bool


def options(**given: Unpack[CallOptions]) -> Options:
    """Check options and complete them from the environment; raises `InvalidOption` with what is allowed."""
    check_names(given, CallOptions)
    on, engine, timeout = given.get("on"), given.get("engine"), given.get("timeout")
    if on is None and engine is None:
        on = [name for name in os.environ.get(DEVICE, "").split(",") if name.strip()] or None
    min_memory, max_load = given.get("min_memory"), given.get("max_load")
    if timeout is not None and not timeout > 0:
        raise InvalidOption(f"timeout is a number of seconds, more than 0; got {timeout!r}.")
    precision = given.get("precision") or os.environ.get(PRECISION) or None
    isolation = given.get("isolation")
    preference = prefer(
        on if on is not None else engine,
        min_memory=_bytes(MIN_MEMORY) if min_memory is None else min_memory,
        max_load=_number(MAX_LOAD, 1.0) if max_load is None else max_load,
        power=given.get("power"),
    )
    exact = bool(given.get("exact"))
    if exact:
        _require_processor(preference.on, engine, precision)
    preference, cpu_is_numpy = _with_cpu(preference, engine)
    return Options(
        preference=preference,
        cpu_is_numpy=cpu_is_numpy,
        fallback=_one_of("fallback", given.get("fallback") or os.environ.get(FALLBACK) or "warn", get_args(Fallback)),
        precision=None if precision is None else _one_of("precision", precision, get_args(Precision)),
        isolation=None if isolation is None else _one_of("isolation", isolation, ISOLATIONS_HERE),
        timeout=timeout,
        check=_one_of("check", given.get("check") or os.environ.get(CHECK) or "sample", get_args(Check)),
        engine=engine,
        warm=bool(given.get("warm")),
        exact=exact,
    )


def _require_processor(on: Sequence[str], engine: str | None, precision: str | None) -> None:
    """Raise `InvalidOption` for what contradicts `exact=True`: another device, engine or precision than NumPy's."""
    others = [name for name in (*on, *((engine,) if engine else ())) if name.lower() not in ("numpy", CPU)]
    if others:
        raise InvalidOption(
            f"exact=True gives NumPy's bits, which {others[0]} does not: leave out that device, or exact=True."
        )
    if precision is not None:
        raise InvalidOption(f"exact=True gives NumPy's bits, and precision={precision!r} other numbers; leave one out.")


def _with_cpu(preference: Preference, engine: str | None) -> tuple[Preference, str | None]:
    """Return the preference with the meaning of "cpu", and the reason where that is NumPy.

    It is the engine of that name; NumPy where nothing compiles for the processor; or the own CPU device of an opaque
    task's library.
    """
    if not any(name.lower() == CPU for name in preference.on):
        return preference, None
    from anygpu.engines.catalogue import why_cpu_is_numpy

    why = why_cpu_is_numpy() if engine is None else None
    if engine is None and why is None:
        return preference, None
    instead = "numpy" if engine is None else f"{engine}:{CPU}"
    on = tuple(instead if name.lower() == CPU else name for name in preference.on)
    return preference._replace(on=on), f'on="cpu" is NumPy here: {why}' if why is not None else None


def check_names(given: Mapping[str, Any], known: type[CallOptions]) -> None:
    """Raise `InvalidOption` with the known names, if one is unknown."""
    names = known.__annotations__
    if unknown := sorted(set(given).difference(names)):
        raise InvalidOption(
            f"there is no option {unknown[0]!r}; available: {', '.join(names)}. Arguments of the function itself go "
            "into the call, or into functools.partial."
        )


def _one_of(name: str, value: Any, known: Sequence[str]) -> Any:
    """Return the value, if it is one of those that are known; raises `InvalidOption` otherwise."""
    if value not in known:
        listed = ", ".join(f'"{each}"' for each in known)
        raise InvalidOption(f"{name} is one of {listed}; got {value!r}.")
    return value


def _bytes(variable: str) -> int:
    """Return the bytes that an environment variable names, such as "2GB"; 0 if it is not set."""
    given = os.environ.get(variable)
    found = bytes_from(given) if given else 0
    if found is None:
        raise InvalidOption(f'{variable} is a number of bytes such as "2GB", "512MiB" or "4096"; got {given!r}.')
    return found


def _number(variable: str, default: float) -> float:
    """Return the number in an environment variable, or the default if it is not set."""
    given = os.environ.get(variable)
    try:
        return float(given) if given else default
    except ValueError:
        raise InvalidOption(f"{variable} is a number; got {given!r}.") from None
