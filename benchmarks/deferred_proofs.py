"""How many functions of a file are deferred without the option, and what stands against the others.

    python -m benchmarks.deferred_proofs FILE

The file has `FUNCTIONS[name] = (function, make)`; `make(n)` gives the positional and named arguments of the n-th call.
"""

from __future__ import annotations

import runpy
import sys

from anygpu.placement.escaping.proof import Proof, kinds_of


def main() -> int:
    """Print each function with what was found, and how many there are."""
    functions = runpy.run_path(sys.argv[1])["FUNCTIONS"]
    count = 0
    for name, (function, make) in functions.items():
        arguments, keywords = make(1)
        function(*arguments, **keywords)
        proof = Proof(function, kinds_of(tuple(arguments), keywords))
        count += proof.why_not is None
        sys.stdout.write(f"{name:24} {proof.why_not or 'proved'}\n")
    sys.stdout.write(f"{count} of {len(functions)} are deferred without the option\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
