"""Random programs as native code: `python -m benchmarks.cpu_programs [--first SEED] [--count N] [--check]`.

Each program runs on NumPy and as native code; then with every buffer between protected pages, where a read or a write
beside a buffer ends the process; then on one and on four threads. Each figure is a number of programs that were wrong.
A result that only exact operations lead to has to have NumPy's bits.
"""

from __future__ import annotations

from collections import Counter

from benchmarks.report import Figure, options_parser, publish, say
from tests.engines.cpu.random_checks import judged

PROGRAMS = 10_000
ASKED = {
    "agreement": "disagree with NumPy",
    "pages": "differ between protected pages",
    "threads": "differ with threads",
    "bits": "have other bits",
}


def run(first: int, count: int) -> list[Figure]:
    wrong: Counter[str] = Counter()
    exact = 0
    for seed in range(first, first + count):
        found = judged(seed)
        exact += found.has_exact
        wrong.update(found.wrong.keys())
        for what in found.wrong.values():
            say(f"seed {seed}: {what}")
    return [
        Figure(
            name=f"of {exact if asked == 'bits' else count:,} programs, {name}",
            value=wrong[asked],
            unit="programs",
            bound=0,
        )
        for asked, name in ASKED.items()
    ]


if __name__ == "__main__":
    parser = options_parser(__doc__)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--count", type=int, default=PROGRAMS)
    options = parser.parse_args()
    publish(run(options.first, options.count), options)
