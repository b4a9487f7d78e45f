"""Metrics as values, and as the text that Prometheus reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

MetricKind = Literal["counter", "gauge", "histogram", "summary"]

#: Characters of a label's value; what is longer is cut, and told apart by a hash.
MOST_CHARACTERS = 200


_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Sample(NamedTuple):
    """One value."""

    value: float
    labels: Mapping[str, str] = _NO_LABELS
    #: What the family's name is followed by: "_bucket", "_sum" and "_count" of a histogram.
    suffix: str = ""


class Family(NamedTuple):
    """Samples of one metric."""

    #: With its unit, and the suffix "_total" of a counter.
    name: str
    kind: MetricKind
    help: str
    samples: list[Sample]


def single(name: str, kind: MetricKind, text: str, value: float) -> Family:
    """A family of one sample without labels."""
    return Family(name, kind, text, [Sample(value)])


def histogram_samples(
    labels: dict[str, str], bounds: Sequence[float], up_to: Sequence[int], total: float
) -> Iterator[Sample]:
    """The samples of a histogram. `up_to` are the counts up to each bound, and at last of all."""
    for bound, count in zip((*map(str, bounds), "+Inf"), up_to, strict=True):
        yield Sample(count, {**labels, "le": bound}, "_bucket")
    yield Sample(total, labels, "_sum")
    yield Sample(up_to[-1], labels, "_count")


def to_text(families: Iterable[Family]) -> str:
    """Prometheus' text format, version 0.0.4."""
    return "".join(_lines(families))


def _lines(families: Iterable[Family]) -> Iterator[str]:
    """Yields two lines of description for each family, and one line for each sample."""
    for name, kind, text, samples in families:
        yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        for value, labels, suffix in samples:
            yield f"{name}{suffix}{_labels(labels)} {float(value)!r}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()]) + "}"


@lru_cache(4096)  # the same few names are in thousands of lines
def _escaped(value: str) -> str:
    value = visible(value)
    return value.replace("\\", r"\\").replace('"', r"\"") if "\\" in value or '"' in value else value


def visible(value: str, most: int = MOST_CHARACTERS) -> str:
    """A label's value, or a sentence, without what could command a terminal, and not too long; different ones stay so.

    Names of functions are whatever users make of them, and what can be printed stays as it is. No line breaks are left,
    and nothing that UTF-8 cannot encode.
    """
    if not value.isprintable() or "\\" in value:
        value = "".join(
            letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode("ascii")
            for letter in value
        )
    if len(value) > most:
        digest = hashlib.sha256(value.encode()).hexdigest()[:8]
        value = f"{value[: most - 9]}…{digest}"
    return value
