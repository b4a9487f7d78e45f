"""How many machines a fleet asks for. Decisions on plain values: nothing here knows Ray, a thread or a clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from anygpu.errors import InvalidOption
from anygpu.fleet.driver_messages import Bundle, Node, Refusal
from anygpu.hardware.device import CPU, FLEET

#: After this many seconds a limit that the autoscaler has shown may have been raised.
FORGET_LIMIT = 300.0
#: Machines that are not there after so many seconds are reported, whatever the autoscaler says.
PATIENCE = 60.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """When a fleet asks for more machines, and for what kind. Made for `connect(scaling=)`.

    What waits, in predicted seconds, divided by `target` is the number of units that the fleet asks for, `most` at
    most. A unit is `gpu` GPUs and `cpu` CPUs of one machine that has the `labels`.
    """

    most: int
    gpu: float = 1.0
    cpu: float = 0.0
    #: As Ray's label selectors: "A100", "in(A100,H100)", "!spot".
    labels: dict[str, str] = {}
    #: Seconds of work that may wait for each unit.
    target: float = 10.0
    #: Seconds without work after which a machine is given back.
    idle: float = 60.0

    def __post_init__(self) -> None:
        if type(self.most) is not int or self.most < 0:
            raise InvalidOption(f"most is a whole number of units, at least 0; got {self.most!r}.")
        for name, number in (("gpu", self.gpu), ("cpu", self.cpu)):
            if not (number >= 0 and math.isfinite(number)):
                raise InvalidOption(f"{name} is a number, at least 0; got {number!r}.")
        if not (self.gpu or self.cpu):
            raise InvalidOption("a unit needs a share of a GPU or of a CPU: gpu=1.0 or cpu=1.0.")
        for name, seconds in (("target", self.target), ("idle", self.idle)):
            if not (seconds > 0 and math.isfinite(seconds)):
                raise InvalidOption(f"{name} is a number of seconds, more than 0; got {seconds!r}.")

    @property
    def unit(self) -> Bundle:
        return bundle_of(self.gpu, self.cpu, self.labels)


def bundle_of(gpu: float, cpu: float, labels: Mapping[str, str]) -> Bundle:
    resources = {name: float(number) for name, number in (("GPU", gpu), ("CPU", cpu)) if number}
    return Bundle(resources, dict(labels))


def may_run_elsewhere(on: Sequence[str]) -> bool:
    """Whether a machine that is not there yet could run a call with this `on=`."""
    return not on or any(
        name.lower() == FLEET or not ("@" in name or ":" in name or name.lower() in ("numpy", CPU)) for name in on
    )


class Demand:
    """How many units the waiting tasks need. It rises at once, and falls when it was lower for a while."""

    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._lower_since: float | None = None
        #: The highest need since then.
        self._highest = 0
        self.units = 0

    def look(self, now: float, queued_seconds: float) -> int:
        """The units to ask for, given what waits now."""
        need = min(self._scaling.most, math.ceil(queued_seconds / self._scaling.target))
        # Less than one target's worth is no reason to start a machine.
        if queued_seconds < self._scaling.target:
            need = 0
        if need >= self.units:
            self.units, self._lower_since, self._highest = need, None, 0
            return self.units
        if self._lower_since is None:
            self._lower_since = now
        self._highest = max(self._highest, need)
        if now - self._lower_since >= self._scaling.idle:
            self.units, self._lower_since, self._highest = self._highest, None, 0
        return self.units


class Asking:
    """What is asked of an autoscaler that takes a request as a whole or not at all.

    After a refusal half as much is asked for, and one more whenever all of it has come.
    """

    def __init__(self) -> None:
        self._limit: int | None = None
        #: The smallest number that was refused, and when.
        self._refused: int | None = None
        self._refused_at = 0.0

    def look(self, now: float, wanted: int, provided: int) -> int:
        """How many of the `wanted` bundles to ask for, when so many are `provided` already."""
        if self._refused is not None and now - self._refused_at >= FORGET_LIMIT:
            self._limit = self._refused = None
        if self._limit is None or self._refused is None:
            return wanted
        if provided >= self._limit and self._limit + 1 < self._refused:
            self._limit += 1
        return min(wanted, self._limit)

    def refused(self, now: float, count: int, provided: int) -> None:
        if count < 1:
            return
        self._refused = count if self._refused is None else min(count, self._refused)
        self._refused_at = now
        # One more than are there is tried before it is given up.
        self._limit = min(max(count // 2, provided), self._refused - 1)

    def forget(self) -> None:
        """Something else is wanted."""
        self._limit = self._refused = None

    @property
    def limit(self) -> int | None:
        return self._limit


def provided(bundle: Bundle, nodes: Iterable[Node]) -> int:
    """How many such bundles the machines could hold, if they were free."""
    return sum(_fits(bundle, node) for node in nodes if has_labels(node, bundle.labels))


def _fits(bundle: Bundle, node: Node) -> int:
    return min(
        (int(node.resources.get(name, 0.0) / number + 1e-9) for name, number in bundle.resources.items() if number),
        default=0,
    )


def has_labels(node: Node, wanted: Mapping[str, str]) -> bool:
    """Whether a machine has them, as Ray's selectors mean it: a value, `in(a,b)`, and `!` before either."""
    return all(_selects(selector, node.labels.get(name)) for name, selector in wanted.items())


def _selects(selector: str, value: str | None) -> bool:
    denied = selector.startswith("!")
    bare = selector.removeprefix("!").strip()
    values = bare[3:-1].split(",") if bare.startswith("in(") and bare.endswith(")") else [bare]
    return (value in [each.strip() for each in values]) != denied


class Shortage(NamedTuple):
    """Machines that were asked for and do not come."""

    bundle: Bundle
    wanted: int
    provided: int
    refusal: Refusal | None
    #: Since they were asked for.
    seconds: float


def explain(shortage: Shortage, nodes: Sequence[Node]) -> str | None:
    """Why machines do not come, in a sentence; `None` if they may be on their way."""
    bundle, wanted, there, refusal, seconds = shortage
    if there >= wanted:
        return None
    what = f"{wanted} × {written(bundle)}"
    match refusal:
        case "labels":
            return (
                f"{what}: this cluster's autoscaler ignores labels. Start the head with RAY_enable_autoscaler_v2=1, "
                "or with KubeRay's autoscalerOptions.version: v2."
            )
        case "alone":
            return f"{what}: the cluster has no autoscaler, and {_lacking(bundle, nodes)} of its machines."
        case "infeasible" if there:
            return f"{what}: the cluster may have no more than {there}. Raise the maximum of its machines."
        case "infeasible":
            return f"{what}: the autoscaler has no machine like that, and {_lacking(bundle, nodes)} of those here."
    if seconds < PATIENCE:
        return None
    return f"{what}: asked for {seconds:.0f} s ago, and {there} came. `ray status` at the head says what it waits for."


def _lacking(bundle: Bundle, nodes: Sequence[Node]) -> str:
    """Which resource or label nobody has."""
    for name, number in bundle.resources.items():
        if not any(node.resources.get(name, 0.0) >= number for node in nodes):
            return f"{name}: {number:g} is in none"
    for name, selector in bundle.labels.items():
        if not any(has_labels(node, {name: selector}) for node in nodes):
            return f"the label {name}: {selector} is on none"
    if not provided(bundle, nodes):
        return "all of it at once is in none"
    return "it is in too few"


def written(bundle: Bundle) -> str:
    what = ", ".join(f"{name}: {number:g}" for name, number in bundle.resources.items())
    labels = ", ".join(f"{name}: {value}" for name, value in bundle.labels.items())
    return f"{{{what}}}" + (f" with {labels}" if labels else "")


class Use(NamedTuple):
    """What a look at a device has shown."""

    #: Tasks that were ever taken there.
    done: int
    busy: bool


class Idleness:
    """Which devices have done nothing for so long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, tuple[int, float]] = {}

    def look(self, now: float, uses: Mapping[str, Use]) -> list[str]:
        """Those whose machines may be given back."""
        found = []
        for name, use in uses.items():
            done, since = self._last.get(name, (-1, now))
            if use.busy or use.done != done:
                self._last[name] = (use.done, now)
            elif now - since >= self._seconds:
                found.append(name)
        for name in self._last.keys() - uses.keys():
            del self._last[name]
        return found
