"""Which ways to run a step fit into a budget of memory: pure, from predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from anygpu.base.units import readable_bytes
from anygpu.pytorch.records import Footprint, LayerCost, Precision

#: Of the budget, what predictions may fill: they miss by some, and allocators round.
SHARE = 0.95
#: Predictions that are asked for to find one size; each takes as long as some hundred operations take to be looked at.
_MOST_GUESSES = 6


class Way(NamedTuple):
    """One way to run a step."""

    precision: Precision
    micro_batch: int
    checkpoint: tuple[str, ...] = ()


class Predict(Protocol):
    """What a micro-batch takes, without running it."""

    def __call__(self, rows: int, checkpoint: tuple[str, ...], precision: Precision) -> Footprint: ...


Select = Callable[[Iterable[LayerCost], int], tuple[str, ...] | None]


class Fit(NamedTuple):
    """A way, and the peak that is predicted for it."""

    way: Way
    peak_bytes: int
    #: Of the forward pass, the share that is computed twice.
    repeated: float = 0.0


def balanced(rows: int, most: int) -> int:
    """The size of micro-batches that are as few as `most` rows at once allow, and as equal as can be."""
    return math.ceil(rows / math.ceil(rows / most))


class Fitting:
    """Asks for predictions and compares them with a budget. Predictions are multiplied by `correction` before."""

    def __init__(
        self,
        predict: Predict,
        select: Select,
        budget: int,
        correction: float = 1.0,
        *,
        predict_outputs: Callable[[int], int] | None = None,
    ) -> None:
        self._predict = predict
        self._predict_outputs = predict_outputs
        self._select = select
        self._known: dict[Way, Footprint] = {}
        self.budget = budget
        self.correction = correction

    @property
    def allowed(self) -> int:
        return int(self.budget * SHARE)

    def footprint(self, way: Way) -> Footprint:
        if way not in self._known:
            self._known[way] = self._predict(way.micro_batch, way.checkpoint, way.precision)
        return self._known[way]

    def peak(self, way: Way) -> int:
        """Parameters and the like are known exactly; what goes through them is corrected."""
        found = self.footprint(way)
        return found.fixed_bytes + int(self.correction * (found.peak_bytes - found.fixed_bytes))

    def known_peak(self, way: Way) -> int | None:
        """Of a way that was asked for before."""
        return self.peak(way) if way in self._known else None

    def fits(self, way: Way) -> bool:
        return self.peak(way) <= self.allowed

    def largest(self, rows: int, precision: Precision, checkpoint: tuple[str, ...] = ()) -> Fit | None:
        """The most rows at once that fit, at most `rows`; `None` if not even one does."""
        fits, too_many = 0, rows + 1
        for _ in range(_MOST_GUESSES):
            guess = self._guess(fits, too_many, rows, Way(precision, rows, checkpoint))
            if guess is None:
                break
            if self.fits(Way(precision, guess, checkpoint)):
                fits = guess
            else:
                too_many = guess
        if not fits and too_many > 1 and self.fits(Way(precision, 1, checkpoint)):
            fits = 1
        if not fits:
            return None
        way = Way(precision, fits, checkpoint)
        return Fit(way, self.peak(way), self._repeated(way))

    def _guess(self, fits: int, too_many: int, rows: int, whole: Way) -> int | None:
        """The next size to ask for: all, then an eighth, then where a line through the two nearest meets the budget."""
        if too_many - fits <= max(1, fits // 16):
            return None
        if too_many > rows:
            return rows
        if fits == 0:
            return max(1, too_many // 8)
        below = self.peak(whole._replace(micro_batch=fits))
        above = self.peak(whole._replace(micro_batch=too_many))
        slope = (above - below) / (too_many - fits)
        meets = fits + int((self.allowed - below) / slope) if slope > 0 else (fits + too_many) // 2
        return min(max(meets, fits + 1), too_many - 1)

    def checkpointed(self, micro_batch: int, precision: Precision) -> Fit | None:
        """With those layers checkpointed that free enough for the least time; `None` if all of them do not."""
        plain = Way(precision, micro_batch)
        layers = self.footprint(plain).layers
        excess = self.peak(plain) - self.allowed
        for _ in range(_MOST_GUESSES):
            if excess <= 0:
                return Fit(plain, self.peak(plain))
            names = self._select(layers, int(excess / self.correction) + 1)
            if names is None:
                break
            way = plain._replace(checkpoint=names)
            short = self.peak(way) - self.allowed
            if short <= 0:
                return Fit(way, self.peak(way), self._repeated(way))
            excess += short
        everything = plain._replace(checkpoint=tuple(layer.name for layer in layers))
        if layers and self.fits(everything):
            return Fit(everything, self.peak(everything), self._repeated(everything))
        return None

    def most_outputs(self, rows: int, known: int, fixed_bytes: int) -> int:
        """The most rows whose outputs can be computed at once without gradients; `known` rows can be."""
        size = rows
        while size > known and self._predict_outputs is not None:
            if fixed_bytes + self.correction * self._predict_outputs(size) <= self.allowed:
                return size
            size //= 2
        return known

    def smallest(self, precision: Precision) -> Way:
        """One row at a time, and every layer checkpointed: if anything fits, this does."""
        layers = self.footprint(Way(precision, 1)).layers
        return Way(precision, 1, tuple(layer.name for layer in layers))

    def _repeated(self, way: Way) -> float:
        layers = self.footprint(way._replace(checkpoint=())).layers
        whole = sum(layer.seconds for layer in layers)
        return sum(layer.seconds for layer in layers if layer.name in way.checkpoint) / whole if whole else 0.0


def sentence(fit: Fit, rows: int, whole_bytes: int | None, budget: int) -> str:
    """Why it is run so."""
    way, allowed = fit.way, readable_bytes(budget)
    if way.micro_batch >= rows and not way.checkpoint:
        return f"the whole batch of {rows} rows fits: {readable_bytes(fit.peak_bytes)} of {allowed}"
    needs = "" if whole_bytes is None else f", where the whole batch needs {readable_bytes(whole_bytes)}"
    return f"{readable_bytes(fit.peak_bytes)} fit into {allowed}{needs}"
