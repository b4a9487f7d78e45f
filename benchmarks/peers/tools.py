"""What users might pick: how each is installed, found and run."""

from __future__ import annotations

from importlib.util import find_spec

import msgspec


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    #: The module of `benchmarks.peers` with its versions of the workloads, and what makes a function there.
    module: str
    factory: str = "function"
    #: What is imported, and what pip is asked for: "." is the checkout.
    imports: str
    pip: tuple[str, ...]
    #: The engines that anygpu may use; empty for all others.
    engines: str = ""
    #: Workloads that it cannot express, each with the reason.
    cannot: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def ours(self) -> bool:
        return bool(self.engines)

    @property
    def chooses(self) -> bool:
        """Whether it finds a device by itself: what it promises is for that."""
        return self.ours and self.factory == "function"

    @property
    def installed(self) -> bool:
        return find_spec(self.imports) is not None


TOOLS = (
    Tool(name="NumPy", module="in_numpy", imports="numpy", pip=("numpy",)),
    Tool(name="numexpr", module="in_numexpr", imports="numexpr", pip=("numexpr",)),
    Tool(
        name="Numba",
        module="in_numba",
        imports="numba",
        # Its matrix products call SciPy's BLAS.
        pip=("numba", "scipy"),
        cannot={"low_pass": "Numba compiles no Fourier transforms: a loop by hand would be another algorithm."},
    ),
    Tool(name="JAX", module="in_jax", imports="jax", pip=("jax",)),
    Tool(name="torch", module="in_torch", imports="torch", pip=("torch==2.13.0", "numpy")),
    Tool(
        name="torch.compile",
        module="in_torch",
        factory="compiled",
        imports="torch",
        pip=("torch==2.13.0", "numpy"),
    ),
    Tool(name="anygpu", module="in_anygpu", imports="anygpu", pip=(".",), engines="numpy,cpu,webgpu"),
    Tool(
        name='anygpu on="cpu"',
        module="in_anygpu",
        factory="compiled",
        imports="llvmlite",
        pip=(".",),
        engines="numpy,cpu",
    ),
    Tool(
        name="anygpu exact=True",
        module="in_anygpu",
        factory="exact",
        imports="llvmlite",
        pip=(".",),
        engines="numpy,cpu",
    ),
)
