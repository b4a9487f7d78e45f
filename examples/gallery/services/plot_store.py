"""
One copy for three models
=========================

Three models use the same table of vectors. A store keeps it once on the device, and what does not fit there moves to
the host and comes back when it is used.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def best_matches(questions: np.ndarray, table: np.ndarray) -> np.ndarray:
    return (questions @ table.T).argmax(axis=1)


# %%
# Each model brings its own layers and asks for the table; the device has room for 12 MiB.

random = np.random.default_rng(0)
table = random.standard_normal((8000, 128), dtype=np.float32)
questions = table[:500] + 0.5 * random.standard_normal((500, 128), dtype=np.float32)
device = "webgpu" if any(each.engine == "webgpu" for each in ag.devices()) else "numpy"
moments, on_device, on_host, alone = ["empty"], [0.0], [0.0], [0.0]
with ag.Store("gallery", device=device, budget="12MiB") as store:

    def note(moment: str, without_store: float) -> None:
        found = store.statistics()
        moments.append(moment)
        on_device.append(found.device_bytes / 2**20)
        on_host.append(found.host_bytes / 2**20)
        alone.append(without_store)

    size = 0.0
    for model in ("text", "images", "search"):
        layers = random.standard_normal((6, 512, 256), dtype=np.float32)
        for number, layer in enumerate(layers):
            store.put(f"{model}/layer {number}", layer, owner=model)
        store.put(f"{model}/table", table, owner=model)  # the same numbers: stored once
        size += (layers.nbytes + table.nbytes) / 2**20
        note(model, size)
    found = np.asarray(best_matches(questions, store.get("search/table")))  # type: ignore[arg-type]
    receipt = ag.last_receipt()
    saved = store.statistics().bytes_saved / 2**20
print(f"{np.mean(found == np.arange(500)):.0%} found; {saved:.1f} MiB are not there twice")

# %%
# Without a store, three models would take the upper line.

figure, panel = plt.subplots(figsize=(5.4, 3.5))
places = np.arange(len(moments))
panel.bar(places, on_device, 0.6, label="on the device", color="#0072B2")
panel.bar(places, on_host, 0.6, bottom=on_device, label="moved to the host", color="#9ec9e6")
panel.plot(places, alone, "o--", color="#D55E00", label="without a store")
panel.axhline(12, color="#1f1f1f", linewidth=1)
panel.text(-0.4, 12.3, "budget", fontsize=10)
panel.set_xticks(places, [moments[0], *(f"+ {name}" for name in moments[1:])])
panel.set(ylabel="MiB")
panel.legend(loc="upper left")

# %%
# Where the search ran, and why. The table was there already:

print(receipt)

# %%
# The same search with arrays of NumPy, which have to be copied each time, on every engine:

figure = engines_chart(best_matches, questions, table)

# sphinx_gallery_thumbnail_number = 1
