# ruff: noqa: N999 - PyInstaller finds a hook by its name
"""What an application that imports anygpu needs of it: the modules that are imported by name, and the kernels.

wgpu and pyopencl have hooks of their own for their libraries.
"""

from __future__ import annotations

from PyInstaller.utils.hooks import (  # type: ignore[import-untyped]
    collect_data_files,
    collect_entry_point,
    collect_submodules,
    copy_metadata,
)

#: The command line, what only its commands use, the public test helpers and these hooks: no application runs them.
_NOT_COLLECTED = (
    "anygpu.cli",
    "anygpu.__main__",
    "anygpu.observe.dashboard",
    "anygpu.observe.profile",
    "anygpu.testing",
    "anygpu.verify",
    "anygpu._pyinstaller",
)


def _is_collected(module: str) -> bool:
    return not any(module == name or module.startswith(f"{name}.") for name in _NOT_COLLECTED)


# Engines, and modules that are loaded when they are first needed, are imported by name: no analysis finds them.
hiddenimports = collect_submodules("anygpu", filter=_is_collected)

# The kernels are files.
datas = collect_data_files("anygpu", includes=["**/*.cl", "**/*.ll", "**/*.toml"])

# Whether an engine is there is asked of its distribution, before its library is imported. Those of torch, jax and
# llvmlite are copied by the hooks beside this one, that of pyopencl by its own: each only if the library goes in.
for _distribution in ("anygpu", "numpy", "wgpu"):
    datas += copy_metadata(_distribution)

# torch, jax, llvmlite and ray are large. They go in if the application imports them, not because they are installed
# beside it. So do libraries for metrics.
excludedimports = ["torch", "jax", "jaxlib", "llvmlite", "ray", "grpc", "bokeh", "scalene", "prometheus_client"]
excludedimports += ["opentelemetry", "IPython"]

# Engines of other packages, with their metadata.
_engines, _of_engines = collect_entry_point("anygpu.engines")
datas += _engines
hiddenimports += _of_engines
