"""The grid's workloads: functions as a user of NumPy writes them, at sizes from a hundred to ten million elements."""

from __future__ import annotations

from benchmarks.workloads.chains import CHAINS
from benchmarks.workloads.from_examples import EXAMPLES
from benchmarks.workloads.learning import LEARNING
from benchmarks.workloads.pipelines import PIPELINES
from benchmarks.workloads.products import PRODUCTS
from benchmarks.workloads.rearranging import REARRANGING
from benchmarks.workloads.reductions import REDUCTIONS
from benchmarks.workloads.workload import SIZES, Workload

#: In the order in which they are measured, listed and drawn.
WORKLOADS: tuple[Workload, ...] = (
    *CHAINS,
    *REDUCTIONS,
    *LEARNING,
    *PRODUCTS,
    *REARRANGING,
    *PIPELINES,
    *EXAMPLES,
)

__all__ = ["SIZES", "WORKLOADS", "Workload"]
