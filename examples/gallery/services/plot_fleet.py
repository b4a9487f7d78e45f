"""
A cluster that nobody has yet
=============================

How many devices does a service need? One call is measured here, and ``anygpu fleet simulate`` answers with the queue,
the batches and the choices of a real fleet on a simulated clock. With ``ag.fleet.connect`` the same calls run on a
Ray cluster.
"""

import json
import subprocess
import sys
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def answer(question: np.ndarray, table: np.ndarray) -> np.ndarray:
    likeness = np.tanh(question @ table.T / 50)
    return likeness.argmax(axis=1)


random = np.random.default_rng(0)
table = random.standard_normal((20_000, 128), dtype=np.float32)
question = random.standard_normal((16, 128), dtype=np.float32)
for _ in range(3):
    found = answer(question, table)
receipt = ag.last_receipt()
assert receipt is not None
print(receipt)
seconds = receipt.seconds

# %%
# A fleet of sixteen such devices, with more and more tasks: one by one, and with those that wait together in one
# launch.


def simulation(load: float, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "anygpu", "fleet", "simulate", "--json", "--devices=16", "--tasks=600"]
    command += [f"--task-seconds={seconds:.4f}", f"--load={load}", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


loads = (0.5, 0.9, 1.3)
WAYS: dict[str, list[str]] = {"one by one": ["--no-batching"], "in batches": []}
running = {name: [simulation(load, *options) for load in loads] for name, options in WAYS.items()}

figure, panel = plt.subplots(figsize=(5.4, 3.5))
for (name, processes), colour in zip(running.items(), ("#D55E00", "#0072B2"), strict=True):
    reports: list[Any] = [json.loads(process.communicate()[0]) for process in processes]
    for quantile, line in (("p50", "o-"), ("p99", "s--")):
        took = [1e3 * report["latency"][quantile] for report in reports]
        panel.plot(loads, took, line, color=colour, label=f"{name}, {quantile}")
panel.set(yscale="log", xlabel="tasks, as a share of what 16 devices can do", ylabel="milliseconds for a task")
panel.set_xticks(loads, [f"{load:.0%}" for load in loads])
panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
panel.yaxis.set_major_formatter("{x:.0f}")
panel.yaxis.set_minor_formatter("")
panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=2)
print(reports[-1]["breaks_first"])

# %%
# The same call on every engine of this machine:

figure = engines_chart(answer, question, table)

# sphinx_gallery_thumbnail_number = 1
