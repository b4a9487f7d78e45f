"""Proofs in the background that deferred calls are alone with their arguments, for those that copy them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anygpu.placement.escaping.proof import Proof, kinds_of
from anygpu.placement.switching import yielding


def prove(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    seconds: float,
    use: Callable[[Proof | None], None],
) -> Callable[[], None]:
    """A job that calls `use` with a proof for such arguments, or with `None`. It keeps none of them."""
    kinds = kinds_of(arguments, keywords)

    def job() -> None:
        proof: Proof | None = None
        with yielding():
            try:
                proof = Proof(function, kinds, seconds)
            except Exception:  # noqa: BLE001 - nothing may be raised here: what is not understood is not proved
                proof = None
            use(proof if proof is not None and proof.why_not is None else None)

    return job
