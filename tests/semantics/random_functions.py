"""`python -m tests.semantics.random_functions --count 2500`: random NumPy functions as native code, beside NumPy.

Each has 20 sets of arguments, of all types, layouts and special values, under `np.errstate` and warning filters. All of
`outcomes` is compared: values, types, shapes, what shares memory with what, exceptions, warnings. Integers and booleans
are equal; so are floats with `--exact`, and otherwise they are as near as `rounding` says. A function that differs is
printed with its arguments, without the statements that do not matter.
"""

from __future__ import annotations

import argparse
import itertools
import linecache
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import anygpu as ag
from anygpu.receipts.receipt import Receipt
from tests.semantics.moving import begin_with_randomness, engine_of
from tests.semantics.outcomes import Outcome, difference, numbers_at, outcome_of
from tests.semantics.random_sources import Source, write
from tests.semantics.rounding import (
    RUNS,
    TIMES,
    arguments_with_errors,
    numpy_with_errors,
    rounded,
    without_axes_as_numbers,
)
from tests.support.native_placement import native_at_once, settle, wrong_functions

#: From a function to what is called in its place.
Made = Callable[[Callable[..., Any]], Callable[..., Any]]
#: With automatic placement the first calls are repeated until there is native code.
FIRST_CALLS = (0, 1, 0, 1)
#: Seconds for making a function shorter.
_SHORTENING = 3.0
#: Bytes of this process: a function that takes more has become one that does not end.
_MOST_MEMORY = 6 << 30


@dataclass
class Found:
    """What came of one function."""

    #: The number of a set of arguments, and what differs.
    differences: list[tuple[int, str]] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    #: Arrays that were not equal to the last bit, and elements of which no bound is known.
    rounded: int = 0
    undecided: int = 0


def forced(*, exact: bool) -> Made:
    """Native code is asked for by name."""
    options: Any = {"exact": True} if exact else {}
    return lambda function: ag.offload(on="cpu", fallback="allow", **options)(function)


def automatic(*, exact: bool) -> Made:
    options: Any = {"exact": True} if exact else {}
    return lambda function: ag.offload(**options)(function)


def trial(source: Source, made: Made, *, exact: bool = False, order: Sequence[int] | None = None) -> Found:
    """Every call of a function in its own module, compared with the same calls of NumPy in another."""
    order = range(len(source.calls)) if order is None else order
    found = Found()
    expected = [outcome for outcome, _ in _outcomes(source, lambda function: function, order)]
    got = _outcomes(source, made, order)
    for at, one, (other, receipts) in zip(order, expected, got, strict=True):
        found.calls[engine_of(receipts[-1].device) if receipts else "raised"] += 1
        if receipts:
            found.reasons[receipts[-1].reason] += 1
        compare = _Comparison(source, at, exact=exact)
        differs = difference(one, other, values=compare)
        found.rounded += compare.rounded
        found.undecided += compare.undecided
        if differs:
            where = receipts[-1].device if receipts else "raised"
            found.differences.append((at, f"on {where}: {differs}"))
    found.differences += [(-1, why) for why in wrong_functions()]
    return found


def _outcomes(source: Source, made: Made, order: Sequence[int]) -> list[tuple[Outcome, list[Receipt]]]:
    module = _module(source)
    function = made(module["function"])
    outcomes = []
    begin_with_randomness()
    for at in order:
        call = source.calls[at]
        arguments = _arguments(source, at, module)
        receipts: list[Receipt] = []

        def one() -> Any:
            warnings.simplefilter(call.filter)  # type: ignore[arg-type] # noqa: B023 - called at once
            with np.errstate(**_modes(call.modes)), ag.collect_receipts() as collected:  # noqa: B023
                try:
                    return function(*arguments)  # noqa: B023
                finally:
                    receipts.extend(collected)  # noqa: B023

        outcomes.append((outcome_of(one, arguments, lambda: module["TABLE"]), receipts))
        settle()
    return outcomes


def _module(source: Source) -> dict[str, Any]:
    name = f"<random function {source.seed}{f', shortened {source.attempt}' if source.attempt else ''}>"
    text = source.module
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": "a_random_function"}
    exec(compile(text, name, "exec"), module)
    return module


def _arguments(source: Source, at: int, module: dict[str, Any]) -> list[Any]:
    space: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        exec("\n".join(source.calls[at].statements), module, space)
    return [space[name] for name in source.names]


def _modes(text: str) -> dict[str, Any]:
    return eval(f"dict({text})")  # type: ignore[no-any-return]


class _Comparison:
    """Compares the elements of what one call gave."""

    def __init__(self, source: Source, at: int, *, exact: bool) -> None:
        self._source, self._at, self._exact = source, at, exact
        self._others: list[dict[str, np.ndarray]] | None = None
        self.rounded = 0
        self.undecided = 0

    def __call__(self, one: np.ndarray, other: np.ndarray, at: str) -> str | None:
        same = _same(one, other, exact=self._exact)
        if same.all():
            return None
        if one.dtype.kind in "fc" and not self._exact:
            self.rounded += 1
            same |= self._near_enough(one, other, at)
            if same.all():
                return None
        index = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(~same)))[: one.ndim]
        count = int((~same).sum())
        return f"{at}: {one[index]!r} expected at {index}, {other[index]!r} came ({count} of {same.size} differ)"

    def _near_enough(self, one: np.ndarray, other: np.ndarray, at: str) -> np.ndarray:
        """Where two arrays of floats are no further apart than operations may round."""
        if self._others is None:
            self._others = [_numbers_with_errors(self._source, self._at, seed) for seed in range(RUNS)]
        wide = np.complex128 if one.dtype.kind == "c" else np.float64
        near, signs = np.zeros(one.shape, bool), np.zeros(one.shape, bool)
        allowed = np.zeros(one.shape)
        with np.errstate(all="ignore"):
            for each in self._others:
                another = each.get(at)
                if another is None or another.shape != one.shape or another.dtype.kind != one.dtype.kind:
                    continue
                another = another.view(np.ndarray)
                apart = np.abs(another.astype(wide) - one.astype(wide))
                same = _same(one, another, exact=False)
                apart = np.where(same, 0, apart)
                signs |= ~same & (apart == 0)
                unknown = ~(apart < np.inf)  # in one of them it is no number, or infinite
                self.undecided += int(unknown.sum())
                near |= unknown
                allowed = np.maximum(allowed, np.where(unknown, 0, apart))
            if allowed.any():  # what follows may round to the other side
                allowed = np.maximum(allowed, np.finfo(one.dtype).eps / TIMES * np.abs(one))
            near |= np.abs(other.astype(wide) - one.astype(wide)) <= TIMES * allowed
            zero = (one == 0) & (other == 0)  # of another sign
            near &= ~zero | (allowed > 0) | signs
        return near


def _same(one: np.ndarray, other: np.ndarray, *, exact: bool) -> np.ndarray:
    """Which elements are equal in every bit; NaN in what it is, unless `exact`."""
    if one.dtype.kind == "O":
        return np.asarray(one == other)
    if one.dtype.kind in "fc" and not exact:
        part = np.finfo(one.dtype).dtype.newbyteorder("=")
        native = [np.array(each, each.dtype.newbyteorder("="), order="C") for each in (one, other)]
        mine, theirs = (each.reshape(*each.shape, 1).view(part) for each in native)
        equal = (mine == theirs) & (np.signbit(mine) == np.signbit(theirs))
        return np.asarray((equal | (np.isnan(mine) & np.isnan(theirs))).all(axis=-1))
    size = one.dtype.itemsize
    if one.dtype.char in "gG" or not size:  # its bytes beyond the number are anything
        return np.asarray((one == other) | ((one != one) & (other != other)))
    rows = [np.frombuffer(each.tobytes(), np.uint8).reshape(*one.shape, size) for each in (one, other)]
    return np.asarray((rows[0] == rows[1]).all(axis=-1))


def _numbers_with_errors(source: Source, at: int, seed: int) -> dict[str, np.ndarray]:
    """What the call gives where operations are as wrong as they may be."""
    module = _module(source)
    function = module["function"]
    arguments = arguments_with_errors(_arguments(source, at, module), seed)
    module["np"] = numpy_with_errors()
    module["TABLE"] = rounded(module["TABLE"])

    def one() -> Any:
        with np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return without_axes_as_numbers(function(*arguments))

    return numbers_at(outcome_of(one, (), lambda: None))


# -- smaller ones


#: Functions whose code is in files of other names are new ones, of which nothing has been learnt.
_attempts = itertools.count(1)


def _kind(message: str) -> str:
    """Where a call ran, and the kind of what differs."""
    return ":".join(message.split(":")[:2]).split(".")[0]


def shrunk(source: Source, at: int, message: str, made: Made, *, exact: bool) -> tuple[Source, Sequence[int]]:
    """A shorter function that still differs for a set of arguments in that way, and the calls that it takes."""

    def differs(less: Source, order: Sequence[int]) -> bool:
        try:
            found = trial(replace(less, attempt=next(_attempts)), made, exact=exact, order=order)
        except (SyntaxError, NameError):  # what is left needs something that is gone
            return False
        return any(number == at and _kind(text) == _kind(message) for number, text in found.differences)

    orders: list[list[int]] = [[at], [0, at], [at, at], [0, 0, 0, at], [*FIRST_CALLS, *range(at + 1)]]
    order = next((each for each in orders if differs(source, each)), None)
    if order is None:
        return source, range(len(source.calls))
    begin = time.process_time()
    progress = True
    while progress and time.process_time() - begin < _SHORTENING:
        progress = False
        for less in source.shorter():
            if differs(less, order):
                source, progress = less, True
                break
    plain = replace(source.calls[at], modes="", filter="always")
    simpler = replace(source, calls=(*source.calls[:at], plain, *source.calls[at + 1 :]))
    return (simpler if differs(simpler, order) else source), order


# -- the command


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.semantics.random_functions")
    parser.add_argument("--count", type=int, default=2500)
    parser.add_argument("--sets", type=int, default=20, help="of arguments of each")
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow")
    parser.add_argument(
        "--automatic", type=int, default=0, metavar="N", help="N of them, placed by itself, in two processes"
    )
    parser.add_argument("--exact", action="store_true", help="with `exact=True`: no bit may differ")
    parser.add_argument("--most", type=int, default=50, help="stop after so many that differ")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.automatic and not options.in_this_process:
        return _in_two_processes()
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    begin = time.perf_counter()
    if options.automatic:
        with native_at_once(history="on"):
            failed = _tell(options, options.automatic, automatic(exact=options.exact), FIRST_CALLS)
    else:
        failed = _tell(options, options.count, forced(exact=options.exact), ())
    print(f"{time.perf_counter() - begin:.0f} s")
    return 1 if failed else 0


def _in_two_processes() -> int:
    """The same command in two processes, of which the second begins with what the first has learnt."""
    with tempfile.TemporaryDirectory(prefix="anygpu-tests-") as folder:
        command = [sys.executable, "-m", "tests.semantics.random_functions", *sys.argv[1:], "--in-this-process"]
        codes = []
        for number in (1, 2):
            print(f"process {number}", flush=True)
            codes.append(subprocess.run(command, env=os.environ | {"ANYGPU_CACHE_DIR": folder}, check=False).returncode)
    return max(codes)


def _tell(options: argparse.Namespace, count: int, made: Made, first: Sequence[int]) -> int:
    """Try the functions, and print what differs; how many do."""
    calls: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failed = done = natively = rounded = undecided = 0
    for seed in range(options.seed, options.seed + count):
        source = write(seed, options.sets)
        order = (*first, *range(len(source.calls)))
        found = trial(source, made, exact=options.exact, order=order)
        done += 1
        calls += found.calls
        natively += found.calls["cpu"] > 0
        rounded += found.rounded
        undecided += found.undecided
        if not found.calls["cpu"]:
            reasons.update(list(found.reasons)[:1])
        linecache.clearcache()
        if found.differences:
            failed += 1
            # Of several the one that is most wrong: values before warnings.
            at, message = min(found.differences, key=lambda each: "warned" in each[1] or "raised" in each[1])
            kinds[_kind(message).split(": ")[-1]] += 1
            small, taken = shrunk(source, at, message, made, exact=options.exact)
            small = replace(small, attempt=next(_attempts))
            again = trial(small, made, exact=options.exact, order=taken).differences
            print(f"-- seed {seed}: {len(found.differences)} of {len(order)} calls differ; set {at} {message}")
            print(f"   calls {list(taken)}: {again[-1][1] if again else 'right on its own'}")
            print("   " + small.reproduced(at).replace("\n", "\n   "), flush=True)
            if failed >= options.most:
                break
    print(f"{done} functions, {natively} of them native in some call; {failed} differ {dict(kinds) if kinds else ''}")
    print(f"{sum(calls.values())} calls: " + ", ".join(f"{where} {number}" for where, number in calls.most_common()))
    print(f"{rounded} arrays that round in another way, {undecided} of their elements without a bound")
    for reason, number in reasons.most_common(12):
        print(f"{number:6} {reason[:200]}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
