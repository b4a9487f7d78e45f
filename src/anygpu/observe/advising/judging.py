"""Judges which functions of a script would gain on which device, and why the others would not.

What the script's functions were given is known by `watching`; here they are traced and predicted, or measured, after
the script has ended. A function that can be traced does nothing but compute, so it may be called again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from anygpu.base.printable import encode_json
from anygpu.base.units import readable_seconds
from anygpu.errors import AnyGPUError
from anygpu.observe.snapshot import Advice
from anygpu.placement.plan.plan import Plan

SCHEMA = "anygpu.advice/1"

#: gains: offload it. nested: another that contains it, or is part of it, gains more. The others stay, with the reason.
AdviceVerdict = Literal["gains", "nested", "no gain", "transfers", "too small", "not traceable", "no device", "unknown"]


class DeviceEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a function on one device."""

    device: str
    #: Without compiling; `None` when it cannot run there, with the reason.
    seconds: float | None
    #: "measured", "remembered", "predicted" or "assumed", as in a plan.
    basis: str
    compile_seconds: float | None = None
    #: Seconds of it that data takes to the device and back.
    moving_seconds: float | None = None
    reason: str | None = None


class FunctionAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the script that takes arrays."""

    name: str
    #: Where it begins, as `file:line`; with decorators that is the first of them.
    line: str
    calls: int
    #: Seconds of all its calls, with the functions that it calls.
    seconds: float
    verdict: AdviceVerdict
    #: One sentence: what it would gain, or why not.
    sentence: str
    #: One typical call, as the script ran it.
    numpy_seconds: float
    #: The best device, the seconds of this run that it would have saved, and how many times as fast it is.
    device: str | None = None
    saving: float = 0.0
    speedup: float | None = None
    #: The best first.
    estimates: tuple[DeviceEstimate, ...] = ()
    refused: dict[str, str] = {}


class AdviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A script that ran, what its functions would gain, and what its calls of anygpu cost."""

    schema: str = SCHEMA
    script: str
    seconds: float
    #: Seconds of code that is in no function, imports left out.
    outside_functions: float
    uses_anygpu: bool
    functions: tuple[FunctionAdvice, ...] = ()
    findings: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_json(self), indent=2)

    @classmethod
    def from_json(cls, data: bytes | str) -> AdviceReport:
        return msgspec.json.decode(data, type=cls)


#: A function is worth a line from this share of the script's seconds on, and from so many seconds on.
_LEAST_SHARE, _LEAST_SECONDS = 0.01, 0.002
#: A device gains from this part of NumPy's time on: predictions are not exact.
_GAINS = 0.8
#: When devices are tried: runs of each at most, and seconds.
_RUNS, _SECONDS = 200, 0.5
#: Seconds to place a call, which predictions of a device do not include.
_PLACING = 2e-4
#: Functions that are judged; a script rarely has more that matter.
_MOST = 20


class _Sample(Protocol):
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    kept: str | None
    seconds: float
    count: int


def report(watch: Any, script: str, seconds: float, *, is_whole: bool, measure: bool) -> bytes:
    """The `Report` of a script that has run, as JSON."""
    findings: tuple[Advice, ...] = ()
    if watch.uses_anygpu:
        from anygpu import observe

        findings = tuple(observe.advice())
        observe.stop()
    functions = tuple(judged(watch, seconds, measure=measure))
    modules = [each for each in watch.known.values() if each is not None and each.code.co_name == "<module>"]
    outside = sum(max(0.0, each.seconds - each.within) for each in modules)
    notes = []
    if not is_whole:
        notes.append("The script uses a profiler of its own, so only what came before that was seen.")
    if watch.uses_anygpu and not functions:
        notes.append("The script uses anygpu: its calls were looked at, and not its other functions.")
    return encode_json(
        AdviceReport(
            script=script,
            seconds=seconds,
            outside_functions=outside,
            uses_anygpu=watch.uses_anygpu,
            functions=functions,
            findings=findings,
            notes=tuple(notes),
        )
    )


def judged(watch: Any, seconds: float, *, measure: bool) -> list[FunctionAdvice]:
    """The script's functions that take arrays, what they would gain, the most first."""
    least = max(_LEAST_SECONDS, _LEAST_SHARE * seconds)
    watched = [each for each in watch.known.values() if each is not None and each.takes_arrays]
    watched = sorted((each for each in watched if each.seconds >= least), key=lambda each: -each.seconds)
    found = [(each, _judge(each, measure=measure)) for each in watched[:_MOST]]
    found.sort(key=lambda each: -each[1].saving)
    return _one_of_each_nest(watch, found)


def _one_of_each_nest(watch: Any, found: list[tuple[Any, FunctionAdvice]]) -> list[FunctionAdvice]:
    """Keeps, of functions that call each other, the one that gains most."""
    chosen: list[Any] = []
    told: list[FunctionAdvice] = []
    for watched, advice in found:
        if advice.verdict == "gains":
            for other in chosen:
                if _calls(watch, other, watched) or _calls(watch, watched, other):
                    name = other.code.co_qualname if hasattr(other.code, "co_qualname") else other.code.co_name
                    advice = msgspec.structs.replace(
                        advice,
                        verdict="nested",
                        sentence=f"{name} gains more, and contains it or is part of it.",
                    )
                    break
            else:
                chosen.append(watched)
        told.append(advice)
    return told


def _calls(watch: Any, one: Any, other: Any) -> bool:
    """Whether the first calls the second, directly or through others."""
    seen, todo = set(), [other.code]
    while todo:
        code = todo.pop()
        known = watch.known.get(code)
        if known is None or code in seen:
            continue
        seen.add(code)
        if one.code in known.callers:
            return True
        todo += known.callers
    return False


def _judge(watched: Any, *, measure: bool) -> FunctionAdvice:
    """What a watched function would gain on the best device, by its slowest sample; measured if `measure`."""
    sample = max(watched.samples.values(), key=lambda each: (each.kept is None, each.seconds * each.count))
    advice = FunctionAdvice(
        name=getattr(watched.code, "co_qualname", watched.code.co_name),
        line=f"{watched.code.co_filename}:{watched.code.co_firstlineno}",
        calls=watched.calls,
        seconds=watched.seconds,
        verdict="unknown",
        numpy_seconds=sample.seconds,
        sentence="",
    )

    def told(verdict: AdviceVerdict, sentence: str, **more: Any) -> FunctionAdvice:
        return msgspec.structs.replace(advice, verdict=verdict, sentence=sentence, **more)

    if sample.kept is not None:
        return told("too small" if "short" in sample.kept else "unknown", f"It was not looked at: {sample.kept}.")
    if watched.function is None:
        return told("unknown", "Its function was gone when the script had ended.")
    try:
        plan = _plan(watched.function, sample)
    except Exception as error:  # noqa: BLE001 - the user's own error, or ours: either is a reason
        return told("not traceable", f"It cannot be traced: {type(error).__name__}: {_first_line(error)}")
    if plan.not_recorded is not None:
        return told("not traceable", f"It cannot be traced: {plan.not_recorded.rstrip('.')}.")
    estimates = _estimates(plan)
    if measure:
        estimates, numpy_seconds = _measured(watched.function, sample, estimates)
    else:
        estimates, numpy_seconds = _confirmed(watched.function, sample, estimates)
    advice = msgspec.structs.replace(advice, numpy_seconds=numpy_seconds)
    refused = {each.device: each.sentence for each in plan.refused}
    estimates.sort(key=lambda each: each.seconds if each.seconds is not None else float("inf"))
    usable = [each for each in estimates if each.seconds is not None]
    more = {"estimates": tuple(estimates), "refused": refused}
    if not usable:
        why = next(iter(refused.values()), None) or next((each.reason for each in estimates if each.reason), None)
        return told("no device", f"No other device can run it: {why or 'there is none'}", **more)
    best = usable[0]
    assert best.seconds is not None
    share = best.seconds / numpy_seconds
    calls = watched.seconds / numpy_seconds if numpy_seconds else watched.calls
    if share <= _GAINS:
        saving = calls * (numpy_seconds - best.seconds)
        once = best.compile_seconds or 0.0
        sentence = (
            f"{best.device} would take {readable_seconds(best.seconds)} a call instead of "
            f"{readable_seconds(numpy_seconds)} ({best.basis}): {1 / share:.1f} times as fast."
        )
        if once > saving:
            pays = int(once / (numpy_seconds - best.seconds)) + 1
            sentence += f" Building it takes {readable_seconds(once)} once, so it pays from {pays:,} calls on."
        return told("gains", sentence, device=best.device, saving=saving, speedup=1 / share, **more)
    verdict, why = _why_not(best, numpy_seconds)
    return told(verdict, why, **more)


def _why_not(best: DeviceEstimate, numpy_seconds: float) -> tuple[AdviceVerdict, str]:
    """The verdict and sentence for a function that no device makes faster: overhead, transfers, or a small gain."""
    assert best.seconds is not None
    takes = readable_seconds(numpy_seconds)
    fastest = f"the fastest other device, {best.device}, takes {readable_seconds(best.seconds)} ({best.basis})"
    if best.seconds <= numpy_seconds:
        return "no gain", f"It would gain too little: a call takes {takes} on NumPy, and {fastest}."
    moving = best.moving_seconds
    if moving is not None and best.seconds - moving < numpy_seconds * _GAINS and moving > best.seconds / 3:
        return "transfers", (
            f"Moving its data takes {readable_seconds(moving)} a call, which is more than {best.device} would save: "
            f"NumPy takes {takes}."
        )
    if numpy_seconds < 2e-4:
        return "too small", f"It is too small: a call takes {takes} on NumPy, and {fastest}."
    return "no gain", f"NumPy is faster: a call takes {takes}, and {fastest}."


def _plan(function: Callable[..., Any], sample: _Sample) -> Plan:
    from anygpu.calls.undecorated import remembered

    return remembered(function, {}).explain(*sample.arguments, **sample.keywords)


def _estimates(plan: Plan) -> list[DeviceEstimate]:
    """The estimates of a plan for each device, with the time that placing a call takes."""
    found = []
    for each in plan.candidates:
        if each.device == "numpy":
            continue
        moving = None if each.phases is None else each.phases.write + each.phases.read
        found.append(
            DeviceEstimate(
                device=each.device,
                seconds=each.seconds + (_PLACING if each.basis in ("predicted", "assumed") else 0.0),
                basis=each.basis,
                compile_seconds=each.compile_seconds,
                moving_seconds=moving,
            )
        )
    return found


def _measured(
    function: Callable[..., Any], sample: _Sample, predicted: list[DeviceEstimate]
) -> tuple[list[DeviceEstimate], float]:
    """Every device's time, measured in our workers; and NumPy's, without whoever watched."""
    from anygpu.calls.undecorated import remembered

    def on(device: str) -> Callable[[], Any]:
        calls = remembered(function, {"on": device, "fallback": "raise"})
        return lambda: calls.run(*sample.arguments, **sample.keywords)

    found = []
    for each in predicted:
        try:
            first, best = _timed(on(each.device))
        except AnyGPUError as error:
            found.append(DeviceEstimate(device=each.device, seconds=None, basis="measured", reason=_first_line(error)))
            continue
        found.append(
            DeviceEstimate(
                device=each.device,
                seconds=best,
                basis="measured",
                compile_seconds=max(0.0, first - best),
                moving_seconds=each.moving_seconds,
            )
        )
    _, numpy_seconds = _timed(lambda: function(*sample.arguments, **sample.keywords))
    return found, numpy_seconds


def _confirmed(
    function: Callable[..., Any], sample: _Sample, found: list[DeviceEstimate]
) -> tuple[list[DeviceEstimate], float]:
    """The estimates, where every device that would be recommended on assumed figures alone was measured instead.

    Such figures are of a kind of device, and off by several times for a software adapter.
    """
    numpy_seconds = sample.seconds
    while True:
        usable = [each for each in found if each.seconds is not None]
        best = min(usable, key=lambda each: each.seconds or 0.0, default=None)
        if best is None or best.basis != "assumed" or (best.seconds or 0.0) > _GAINS * numpy_seconds:
            return found, numpy_seconds
        (measured,), numpy_seconds = _measured(function, sample, [best])
        found = [measured if each is best else each for each in found]


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    """The seconds of the first call, and of the best of the others."""
    begin = before = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    best, begin = float("inf"), time.perf_counter()
    for _ in range(_RUNS):
        before = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - before)
        if time.perf_counter() - begin > _SECONDS:
            break
    return first, best


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
