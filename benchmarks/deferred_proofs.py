"""How many functions of a file can be deferred without the option, and what stands against the others.

    python -m benchmarks.deferred_proofs FILE

The file has `FUNCTIONS[name] = (function, make)`; `make(n)` gives the positional and named arguments of the n-th call.
It prints what is found in the code of each.
"""

from __future__ import annotations

import runpy
import sys

from anygpu.placement.closed_code import ClosedCode


def main() -> int:
    """Print each function with what was found, and how many there are."""
    functions = runpy.run_path(sys.argv[1])["FUNCTIONS"]
    closed = 0
    for name, (function, make) in functions.items():
        arguments, keywords = make(1)
        function(*arguments, **keywords)
        code = ClosedCode(function)
        closed += code.why_not is None
        sys.stdout.write(f"{name:24} {code.why_not or 'closed'}\n")
    sys.stdout.write(f"of {len(functions)}: {closed} are closed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
