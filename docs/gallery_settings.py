"""How sphinx-gallery runs the scripts of examples/gallery: each once per build, and a failing one fails it.

`sphinx-build -D plot_gallery=0 …` builds the pages without running them.
"""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "examples" / "gallery"

# Scripts import each other as `examples.…`, and sphinx-gallery names functions of this module.
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

#: The order of reading. A script that is not listed fails the build, and tests/examples finds it first.
ORDER = {
    "pictures": ["image_filters", "ray_marching", "julia", "spectrogram", "deconvolution"],
    "simulations": ["heat", "wave", "reaction_diffusion", "galaxies", "bifurcation", "monte_carlo"],
    "data": ["kmeans", "mosaic", "faces", "particle_filter"],
    "models": ["sentences", "spirals", "small_memory"],
    "services": ["stream", "store", "kernel", "lost_device", "observe", "fleet"],
}


def place(filename: str) -> int:
    """Where a script stands among those of its section."""
    names = [f"plot_{name}.py" for section in ORDER.values() for name in section]
    return names.index(filename)


def reset(gallery: dict[str, Any], script: str) -> None:
    """Before every script: the gallery's look, and nothing that an earlier script has drawn."""
    import matplotlib.pyplot as plt

    import anygpu as ag

    # Otherwise the sizes of kernels are searched for seconds per program: these pages show what the defaults give.
    os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
    # The devices are looked for before anything is timed, and a busy machine may take its time for that, once.
    ag.devices(timeout=60)
    plt.close("all")
    plt.rcdefaults()
    plt.style.use(SCRIPTS / "gallery.mplstyle")


class Place:
    """A sort key, as sphinx-gallery makes one for every folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> int:
        return place(filename)

    def __repr__(self) -> str:
        # Sphinx compares settings between builds by this.
        return "<Place>"


sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(__init__|engines_chart)\.py",
    "subsection_order": [f"../examples/gallery/{section}" for section in ORDER],
    "within_subsection_order": "gallery_settings.Place",
    "nested_sections": False,
    "reset_modules": ("gallery_settings.reset",),
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "capture_repr": (),
    "image_srcset": ["2x"],
    "remove_config_comments": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "thumbnail_size": (400, 280),
}
