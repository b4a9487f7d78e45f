"""`python -m tests.codegen.function_errors`: how far each function of the kernel dialects is from NumPy, as a table."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.functions.library import CANDIDATES, call, vector_call
from anygpu.engines.codegen.target import Dialect, Target
from tests.codegen.function_cases import Case, cases, numpy_type, points
from tests.codegen.functions_on_devices import DIALECTS, evaluate

TARGETS: dict[Dialect, Target] = {
    "wgsl": Target(dialect="wgsl", features=("f64", "i64")),
    "opencl": Target(dialect="opencl", features=("f64", "i64")),
}
#: How many functions share a kernel: compiling is what takes the time.
TOGETHER = 16


class Outcome(NamedTuple):
    case: Case
    inputs: list[HostArray]
    got: HostArray
    wanted: HostArray
    #: Where infinity or NaN is on one side only, or where an exact function differs at all.
    wrong: HostArray
    #: Distance in eps, relative to the result or to 1 if that is larger, which is what the project publishes.
    error: HostArray
    #: Distance in eps, relative to the result however small.
    relative: HostArray

    @property
    def worst(self) -> float:
        return float(self.error.max(initial=0.0))

    def at(self, where: int) -> str:
        inputs = ", ".join(repr(each[where]) for each in self.inputs)
        return f"{self.case.fn}_{self.case.type}({inputs}) = {self.got[where]!r}, NumPy {self.wanted[where]!r}"


def outcomes(
    dialect: Dialect,
    chosen: Iterable[Case],
    count: int = 3001,
    *,
    target: Target | None = None,
    width: int = 1,
) -> Iterator[Outcome]:
    """Of the functions for vectors of a width, where that is more than one; those that take none are left out."""
    groups: dict[Any, list[Case]] = defaultdict(list)
    for case in chosen:
        groups[case.arguments, case.fn if case.fn == "ldexp" else case.points].append(case)
    for (arguments, _), together in groups.items():
        inputs = points(together[0], count)
        for start in range(0, len(together), TOGETHER):
            part = together[start : start + TOGETHER]
            on = target or TARGETS[dialect]
            if width > 1:
                wide = [(vector_call(dialect, case.fn, case.type, on, width), case.result) for case in part]
                part = [case for case, (name, _) in zip(part, wide, strict=True) if name is not None]
                names = [(name, result) for name, result in wide if name is not None]
            else:
                names = [(call(dialect, case.fn, case.type, on), case.result) for case in part]
            for case, got in zip(part, evaluate(dialect, names, arguments, inputs, width), strict=True):
                yield judged(case, inputs, got)


def judged(case: Case, inputs: list[HostArray], got: HostArray) -> Outcome:
    given = [each.astype(bool) if type == "bool" else each for each, type in zip(inputs, case.arguments, strict=True)]
    with np.errstate(all="ignore"):
        wanted = np.asarray(case.reference(*given)).astype(numpy_type(case.result))
        if wanted.dtype.kind != "f":
            got = got.astype(wanted.dtype)
            return Outcome(case, inputs, got, wanted, got != wanted, np.zeros(0), np.zeros(0))
        precise = wanted.astype(np.float64)
        if case.type == "f32" and case.wide:
            precise = np.asarray(case.reference(*(each.astype(np.float64) for each in given)))
        ordinary = np.isfinite(wanted) & np.isfinite(got)
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        signs_differ = np.signbit(got) != np.signbit(wanted)
        wrong = ~same | (signs_differ & ~np.isnan(wanted)) if case.exact else ~(ordinary | same)
        distance = np.where(ordinary, np.abs(got.astype(np.float64) - precise), 0.0)
        smallest = float(np.finfo(wanted.dtype).smallest_normal)
        size = np.where(ordinary, np.abs(precise), 1.0)
        eps = float(np.finfo(wanted.dtype).eps)
    return Outcome(
        case,
        inputs,
        got,
        wanted,
        wrong,
        distance / np.maximum(size, 1.0) / eps,
        distance / np.maximum(size, smallest) / eps,
    )


def main() -> None:
    for dialect in DIALECTS:
        _print(f"{dialect}, our functions", outcomes(dialect, cases(), count=9001))
    chosen = [case for case in cases() if f"{case.fn}_{case.type}" in CANDIDATES["opencl"]]
    _print("opencl, our functions for vectors of 8", outcomes("opencl", chosen, count=9001, width=8))
    trusting = Target(dialect="opencl", trusted=tuple(CANDIDATES["opencl"]))
    _print("opencl, its own functions", outcomes("opencl", chosen, count=9001, target=trusting))


def _print(title: str, found: Iterable[Outcome]) -> None:
    sys.stdout.write(f"\n{title}: worst error in eps, relative to max(|result|, 1), and to |result| alone\n")
    for each in found:
        case = each.case
        wrong = int(each.wrong.sum())
        line = f"  {case.fn:14s} {case.type:5s} -> {case.result:5s}"
        if not case.exact:
            line += f" {each.worst:8.2f} {each.relative.max(initial=0.0):12.2f}"
            line += f"   {each.at(int(each.error.argmax()))}" if "-v" in sys.argv else ""
        line += "   exact" if case.exact and not wrong else ""
        line += f"   WRONG at {wrong}: {each.at(int(each.wrong.argmax()))}" if wrong else ""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
