"""What an engine makes of special values beside NumPy: `python -m benchmarks.special_values --engine torch [--check]`.

Zeros of both signs, infinities, NaN, subnormals, limits of types, ties, large arguments, overflow, shifts by too much
and division by zero, as arrays, scalars and constants, in every pair, through every elementwise primitive, cast,
comparison, reduction and scan (`tests.support.special_values`). `--adapter swiftshader` takes that Vulkan driver for
WebGPU in place of the machine's own; `--what divide` and `--type float32` look at one function and type.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from anygpu.workers.device_arrays.registry import DeviceRegistry
from benchmarks.report import options_parser, say, this_machine
from tests.support.faults import SWIFTSHADER
from tests.support.special_values import Tally, cases, tally
from tests.support.special_values.programs import TableCase

#: Functions whose differences are printed, the worst first.
SHOWN = 40
#: After so many programs it says how far it is; `some` are about 600.
TOLD = 50


def report(engine: str, device: str, found: Tally, seconds: float) -> str:
    lines = [
        f"{engine} ({device}): {found.comparisons:,} comparisons in {found.programs:,} programs, {seconds:.0f} s; "
        f"{found.differing:,} differ beyond the tolerances"
    ]
    lines += [f"  {form:<24} {count:>9,}" for form, count in found.by_form.items()]
    lines.append(f"  {'on the host':<24} {found.hosted:>9,}  (not compared; the device lacks the function)")
    names = Counter(name for name, _ in Counter(found.hosted_functions).most_common())
    if names:
        lines.append("  " + ", ".join(names))
    worst = sorted(found.differences, key=lambda each: -each.differ)
    seen: set[tuple[str, str, str]] = set()
    for each in worst:
        if (each.what, each.dtype, each.form) not in seen and len(seen) < SHOWN:
            seen.add((each.what, each.dtype, each.form))
            lines.append(f"  {each}")
    machine = this_machine()
    lines.append(f"on {machine.processor}, {machine.cores} cores, {machine.system}, Python {machine.python}")
    return "\n".join(lines)


def told(cases: Iterable[TableCase], begin: float) -> Iterator[TableCase]:
    """The same cases; says now and then how far it is."""
    for number, case in enumerate(cases):
        if number and number % TOLD == 0:
            say(f"{number} programs, {time.perf_counter() - begin:.0f} s")
        yield case


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--engine", required=True, help="numpy, webgpu, opencl, torch, jax")
    parser.add_argument("--adapter", choices=("own", "swiftshader"), default="own")
    parser.add_argument("--amount", choices=("all", "some"), default="all")
    parser.add_argument("--what", help="only cases with this function")
    parser.add_argument("--type", help="only this type")
    parser.add_argument("--form", help="only this form: arrays, scalars, constants, …")
    options = parser.parse_args()
    if options.adapter == "swiftshader":
        os.environ["VK_ICD_FILENAMES"] = str(SWIFTSHADER)
    places = DeviceRegistry()
    place = places.find(options.engine)
    begin = time.perf_counter()
    wanted = (
        case
        for case in cases(options.amount)
        if (options.what is None or any(options.what == check.what for check in case.checks))
        and (options.type is None or any(options.type == check.dtype for check in case.checks))
        and (options.form is None or options.form == case.form)
    )
    found = tally(told(wanted, begin), lambda: place.worker)
    seconds = time.perf_counter() - begin
    if options.json:
        text = msgspec.json.format(msgspec.json.encode(found)).decode()
    else:
        text = report(options.engine, place.facts.name, found, seconds)
    sys.stdout.write(text + "\n")
    places.close()
    sys.exit(1 if options.check and found.differences else 0)


if __name__ == "__main__":
    main()
