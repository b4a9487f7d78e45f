"""How many functions of a file can be deferred without the option, and what stands against the others.

    python -m benchmarks.deferred_proofs FILE

The file has `FUNCTIONS[name] = (function, make)`; `make(n)` gives the positional and named arguments of the n-th call.
It prints what is found by looking at the code (`ANYGPU_DEFER=on`) and by evaluating a call (`ANYGPU_DEFER=proved`).
"""

from __future__ import annotations

import runpy
import sys

from anygpu.placement.closed_code import ClosedCode
from anygpu.placement.escaping.proof import Proof, kinds_of


def main() -> int:
    """Print each function with what was found, and how many there are."""
    functions = runpy.run_path(sys.argv[1])["FUNCTIONS"]
    closed = proved = 0
    for name, (function, make) in functions.items():
        arguments, keywords = make(1)
        function(*arguments, **keywords)
        code = ClosedCode(function)
        proof = Proof(function, kinds_of(tuple(arguments), keywords))
        closed += code.why_not is None
        proved += proof.why_not is None
        sys.stdout.write(f"{name:24} {code.why_not or 'closed'}; {proof.why_not or 'proved'}\n")
    sys.stdout.write(f"of {len(functions)}: {closed} are closed, {proved} are proved\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
