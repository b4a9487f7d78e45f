"""`python -m tests.semantics [part of a name …]`: the corpus, with what ran where.

With `--functions FILE` or `--script "FILE ARGUMENTS"` the functions of other files (see `from_files`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.semantics import from_files, natively
from tests.semantics.all_cases import CASES
from tests.semantics.hostile import HOSTILE
from tests.semantics.moving import ENGINES, complaint, moving, run
from tests.support.native_placement import lives_recorded, native_at_once


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.semantics")
    parser.add_argument("names", nargs="*", help="parts of names; all cases when there are none")
    parser.add_argument("--exactly", action="store_true", help="names are whole ones")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--native", action="store_true", help="as native code in turn with NumPy, and nowhere else")
    parser.add_argument("--history", action="store_true", help="with --native: begin where another process ended")
    parser.add_argument("--functions", type=Path, nargs="+", default=[], help="files with functions, in its place")
    parser.add_argument("--script", nargs="+", default=[], help="scripts that decorate functions, in its place")
    parser.add_argument("--within", type=float, help="tolerance of such functions, in units of their type's")
    parser.add_argument("--times", action="store_true", help="show the slowest cases")
    options = parser.parse_args()
    cases = CASES | HOSTILE if options.native else CASES
    if options.functions or options.script:
        cases = {}
        within = (64.0 if options.native else 0.0) if options.within is None else options.within
        for path in options.functions:
            cases |= from_files.cases_of_table(path, within)
        for command in options.script:
            cases |= from_files.cases_of_script(command, within)
    chosen = [
        case
        for name, case in cases.items()
        if not options.names
        or (name in options.names if options.exactly else any(each in name for each in options.names))
    ]
    calls: Counter[str] = Counter()
    wrong = 0
    seconds = []
    begin = time.perf_counter()
    with ExitStack() as stack:
        if options.native:
            stack.enter_context(native_at_once(history="on" if options.history else "off"))
            lives = stack.enter_context(lives_recorded())
        else:
            placement = stack.enter_context(moving(tuple(options.engines.split(","))))
        for case in chosen:
            if options.native:
                found = natively.run_natively(case)
                message = natively.complaint(case, found)
            else:
                found = run(case, placement)
                message = complaint(case, found)
            calls += found.calls
            seconds.append((found.seconds, case.name))
            if message:
                wrong += 1
                print(f"{case.name} {dict(found.calls)}\n  {message}", flush=True)
    took = time.perf_counter() - begin
    print(f"{len(chosen)} functions, {sum(calls.values())} calls in {took:.0f} s; {wrong} are wrong")
    print(", ".join(f"{engine} {count}" for engine, count in calls.most_common()))
    if options.native:
        print("states:", ", ".join(f"{state} {count}" for state, count in lives.most_common()))
    if options.times:
        for each, name in sorted(seconds, reverse=True)[:25]:
            print(f"{each:6.2f} s {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
