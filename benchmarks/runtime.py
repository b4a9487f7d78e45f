"""What the queue and the batches of a runtime do: `python -m benchmarks.runtime [--what NAMES] [--json] [--check]`.

throughput: the empty task, a second. queue: far too many submissions. priorities: who overtakes whom, and that nobody
starves. tenants: shares of device time. asyncio: a thousand awaits in one loop. batching: many small calls at once
against one by one. Middle values of several rounds count; the first rounds are dropped. `--quick` only tries it out.
With `--busy` so many processes compute meanwhile: then seconds say nothing, and only ratios and counts have bounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from benchmarks.load import busy_processes
from benchmarks.report import Figure, options_parser, publish
from benchmarks.runtime_queue import priorities, queue, tenants, throughput
from benchmarks.runtime_together import batching, loops

#: What `--quick` takes of all counts.
QUICK = 0.05

#: Units that a load changes.
_OF_TIME = ("s", "ms", "µs", "/s")

MEASURES: dict[str, Callable[[float], list[Figure]]] = {
    "throughput": throughput,
    "queue": queue,
    "priorities": priorities,
    "tenants": tenants,
    "asyncio": loops,
    "batching": batching,
}


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--what", default=",".join(MEASURES), help="which of them, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small counts: only to see that it works")
    parser.add_argument("--busy", type=int, default=0, metavar="COUNT", help="so many processes compute beside it")
    options = parser.parse_args(given)
    names = options.what.split(",")
    for name in names:
        if name not in MEASURES:
            parser.error(f"there is no {name}; there are {', '.join(MEASURES)}")
    figures: list[Figure] = []
    for name in names:
        with busy_processes(options.busy):
            found = MEASURES[name](QUICK if options.quick else 1.0)
        if options.busy:
            found = [msgspec.structs.replace(each, bound=None) if each.unit in _OF_TIME else each for each in found]
        figures += found
        if not options.json:
            # As they come: all of it takes some minutes.
            sys.stderr.write("".join(f"{figure}\n" for figure in found))
            sys.stderr.flush()
    publish(figures, options)


if __name__ == "__main__":
    main()
