"""How many machines are asked for: decisions on plain values, without a cluster and without a clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import anygpu as ag
from anygpu.fleet import Scaling
from anygpu.fleet.messages import (
    Bundle,
    MachinesRefused,
    Node,
    RequestMachines,
    decode_event,
    decode_request,
    encode,
)
from anygpu.fleet.scaling import (
    FORGET_LIMIT,
    PATIENCE,
    Asking,
    Demand,
    Idleness,
    Scaler,
    Shortage,
    Use,
    bundle_of,
    explain,
    has_labels,
    may_run_elsewhere,
    provided,
    written,
)
from anygpu.runtime.health import Health

GPU = Bundle({"GPU": 1.0})
A100 = Bundle({"GPU": 1.0}, {"card": "a100"})


def node(number: int = 1, labels: dict[str, str] | None = None, **resources: float) -> Node:
    return Node(str(number), f"node-{number}", "10.0.0.1", resources, labels or {})


# -- what waits


def test_demand_is_what_waits_by_the_target() -> None:
    demand = Demand(Scaling(most=8, target=10.0))
    assert demand.look(0.0, 0.0) == 0
    assert demand.look(1.0, 9.9) == 0, "less than a target's worth starts no machine"
    assert demand.look(2.0, 10.0) == 1
    assert demand.look(3.0, 31.0) == 4
    assert demand.look(4.0, 1e6) == 8, "never more than most"


def test_demand_falls_only_after_a_while() -> None:
    demand = Demand(Scaling(most=8, target=10.0, idle=30.0))
    assert demand.look(0.0, 80.0) == 8
    assert demand.look(10.0, 0.0) == 8
    assert demand.look(39.0, 0.0) == 8
    assert demand.look(40.0, 0.0) == 0


def test_demand_falls_to_the_highest_of_that_while() -> None:
    demand = Demand(Scaling(most=8, target=10.0, idle=30.0))
    demand.look(0.0, 80.0)
    demand.look(10.0, 0.0)
    demand.look(20.0, 30.0)
    assert demand.look(40.0, 0.0) == 3
    assert demand.look(41.0, 0.0) == 3
    assert demand.look(71.0, 0.0) == 0


def test_demand_that_comes_back_ends_the_while() -> None:
    demand = Demand(Scaling(most=8, target=10.0, idle=30.0))
    demand.look(0.0, 20.0)
    demand.look(10.0, 0.0)
    assert demand.look(35.0, 20.0) == 2
    assert demand.look(60.0, 0.0) == 2, "it was needed at 35 s"


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ((), True),
        (("gpu",), True),
        (("fleet",), True),
        (("opencl:0", "gpu"), True),
        (("numpy",), False),
        (("opencl:0",), False),
        (("gpu@node-1",), False),
        (("@node-1",), False),
    ],
)
def test_tasks_that_another_machine_could_run(on: tuple[str, ...], expected: bool) -> None:
    assert may_run_elsewhere(on) is expected


# -- what is asked for


def test_all_is_asked_for_until_it_is_refused() -> None:
    asking = Asking()
    assert asking.look(0.0, 6, 0) == 6
    assert asking.limit is None


def test_a_refused_request_is_halved_and_grows_again() -> None:
    """An autoscaler that may start four machines, and starts none for a request of six."""
    asking, there, refusals = Asking(), 0, 0
    for now in range(20):
        asked = asking.look(float(now), 6, there)
        if asked > 4:
            asking.refused(float(now), asked, there)
            refusals += 1
        else:
            there = max(there, asked)
    assert there == 4
    assert refusals == 2
    assert asking.look(20.0, 6, there) == 4


def test_what_nobody_offers_is_not_asked_for_again_and_again() -> None:
    asking = Asking()
    asking.refused(0.0, 1, 0)
    assert asking.look(1.0, 1, 0) == 0
    assert asking.look(FORGET_LIMIT, 1, 0) == 1, "somebody may have added such machines"


def test_a_refusal_of_nothing_is_none() -> None:
    asking = Asking()
    asking.refused(0.0, 0, 0)
    assert asking.look(0.0, 3, 0) == 3


def test_something_else_is_asked_for_as_a_whole() -> None:
    asking = Asking()
    asking.refused(0.0, 6, 0)
    asking.forget()
    assert asking.look(1.0, 6, 0) == 6


# -- what there is


def test_machines_hold_as_many_bundles_as_fit() -> None:
    nodes = [node(1, CPU=8.0), node(2, CPU=8.0, GPU=4.0), node(3, CPU=2.0, GPU=1.0)]
    assert provided(GPU, nodes) == 5
    assert provided(bundle_of(1, 4, {}), nodes) == 2
    assert provided(bundle_of(0.5, 0, {}), nodes) == 10
    assert provided(A100, nodes) == 0
    assert provided(A100, [node(4, {"card": "a100"}, GPU=2.0)]) == 2


@pytest.mark.parametrize(
    ("selector", "expected"),
    [("a100", True), ("h100", False), ("in(h100, a100)", True), ("in(h100)", False), ("!h100", True), ("!a100", False)],
)
def test_label_selectors(selector: str, expected: bool) -> None:
    assert has_labels(node(1, {"card": "a100"}), {"card": selector}) is expected


def test_a_label_that_is_not_there() -> None:
    assert not has_labels(node(1), {"card": "a100"})
    assert has_labels(node(1), {"card": "!a100"})


# -- what is missing


def shortage(bundle: Bundle, wanted: int, there: int, refusal: Any = None, seconds: float = 1.0) -> Shortage:
    return Shortage(bundle, wanted, there, refusal, seconds)


def test_what_is_on_its_way_is_no_shortage() -> None:
    assert explain(shortage(GPU, 3, 0), []) is None
    assert explain(shortage(GPU, 3, 3, "alone"), []) is None


def test_what_takes_too_long_is_told() -> None:
    told = explain(shortage(GPU, 3, 1, None, PATIENCE), [node(1, GPU=1.0)])
    assert told is not None
    assert told.startswith("3 × {GPU: 1}: asked for 60 s ago, and 1 came.")


@pytest.mark.parametrize(
    ("bundle", "nodes", "expected"),
    [
        (GPU, [node(1, CPU=2.0)], "GPU: 1 is in none"),
        (A100, [node(1, GPU=1.0)], "the label card: a100 is on none"),
        (A100, [node(1, GPU=1.0), node(2, {"card": "a100"})], "all of it at once is in none"),
    ],
)
def test_the_resource_or_label_is_named(bundle: Bundle, nodes: list[Node], expected: str) -> None:
    for refusal in ("infeasible", "alone"):
        told = explain(shortage(bundle, 2, 0, refusal), nodes)
        assert told is not None
        assert expected in told
        assert written(bundle) in told


def test_a_maximum_is_told() -> None:
    told = explain(shortage(GPU, 6, 4, "infeasible"), [node(1, GPU=4.0)])
    assert told is not None
    assert "no more than 4" in told


def test_an_autoscaler_that_ignores_labels_is_told() -> None:
    told = explain(shortage(A100, 1, 0, "labels"), [])
    assert told is not None
    assert "v2" in told


# -- who is idle


def test_a_device_is_idle_after_a_while_without_tasks() -> None:
    idleness = Idleness(10.0)
    assert idleness.look(0.0, {"a@n": Use(3, False)}) == []
    assert idleness.look(9.0, {"a@n": Use(3, False)}) == []
    assert idleness.look(10.0, {"a@n": Use(3, False), "b@n": Use(0, False)}) == ["a@n"]


def test_a_device_that_works_is_not() -> None:
    idleness = Idleness(10.0)
    idleness.look(0.0, {"a@n": Use(3, False)})
    idleness.look(9.0, {"a@n": Use(4, False)})
    assert idleness.look(18.0, {"a@n": Use(4, True)}) == []
    assert idleness.look(27.0, {"a@n": Use(4, False)}) == []
    assert idleness.look(28.0, {"a@n": Use(4, False)}) == ["a@n"]


def test_a_device_that_is_opened_again_begins_anew() -> None:
    idleness = Idleness(10.0)
    idleness.look(0.0, {"a@n": Use(3, False)})
    idleness.look(5.0, {})
    idleness.look(6.0, {"a@n": Use(3, False)})
    assert idleness.look(12.0, {"a@n": Use(3, False)}) == []


# -- what users may say, and what crosses to the driver


@pytest.mark.parametrize(
    "given",
    [
        {"most": -1},
        {"most": 1.5},
        {"most": 1, "gpu": 0.0},
        {"most": 1, "gpu": -1.0},
        {"most": 1, "target": 0.0},
        {"most": 1, "idle": float("inf")},
    ],
)
def test_options_that_make_no_sense(given: dict[str, Any]) -> None:
    with pytest.raises(ag.InvalidOption):
        Scaling(**given)


def test_messages_come_back_as_they_were() -> None:
    request = RequestMachines((GPU, A100))
    assert decode_request(encode(request)) == request
    refused = MachinesRefused(2, "infeasible")
    assert decode_event(encode(refused)) == refused


def test_a_fleet_without_its_cluster_is_not_well() -> None:
    cluster: Any = SimpleNamespace(nodes={"ab": 1, "cd": 2}, ended=None)
    unused: Any = None
    scaler = Scaler(cluster, unused, unused, unused, scaling=None)
    well = Health(
        ok=True, closed=None, waiting=0, limit=10, open_tasks=0, oldest_seconds=None, lanes=(), tenants=(), losses=()
    )
    assert (scaler.health(well).ok, scaler.health(well).nodes, scaler.health(well).lost) == (True, 2, None)
    cluster.nodes, cluster.ended = {}, "the head is gone"
    found = scaler.health(well)
    assert (found.ok, found.nodes, found.lost) == (False, 0, "the head is gone")
    assert str(found).startswith("without its cluster: 0 of at most 10 tasks wait")
    assert "the cluster is gone: the head is gone" in str(found)
