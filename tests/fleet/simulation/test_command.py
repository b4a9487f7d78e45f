"""`anygpu fleet simulate`."""

from __future__ import annotations

import inspect
import json

import pytest
from typer.testing import CliRunner

from anygpu.cli.fleet import fleet, simulate
from anygpu.fleet.simulation.scenario import Arrivals, Faults, Scenario, SimulatedNetwork


def test_it_prints_figures_and_what_breaks_first() -> None:
    found = CliRunner().invoke(fleet, ["simulate", "--devices", "20", "--tasks", "100", "--actor-faults", "100"])
    assert found.exit_code == 0, found.output
    for word in ("throughput", "waiting", "p99", "busy", "a decision", "0 tasks lost", "breaks first"):
        assert word in " ".join(found.output.split())


def test_json_has_the_scenario_and_the_report() -> None:
    found = CliRunner().invoke(fleet, ["simulate", "--tasks", "50", "--arrivals", "bursts", "--drivers", "2", "--json"])
    report = json.loads(found.stdout)
    assert report["schema"] == "anygpu.simulation/1"
    assert report["scenario"]["arrivals"]["pattern"] == "bursts"
    assert report["delivered"] == 50


def test_an_unknown_pattern_is_refused() -> None:
    found = CliRunner().invoke(fleet, ["simulate", "--arrivals", "never"])
    assert found.exit_code == 2


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("devices", Scenario().devices),
        ("tasks", Scenario().tasks),
        ("task_seconds", Scenario().task_seconds),
        ("noise", Scenario().noise),
        ("kinds", Scenario().kinds),
        ("nbytes", Scenario().nbytes),
        ("marginal", Scenario().marginal),
        ("driver_launch", Scenario().driver_launch),
        ("driver_task", Scenario().driver_task),
        ("load", Arrivals().load),
        ("burst", Arrivals().burst),
        ("period", Arrivals().period),
        ("latency", SimulatedNetwork().latency),
        ("bandwidth", SimulatedNetwork().bytes_per_second),
        ("cut_seconds", Faults().link_cut),
    ],
)
def test_defaults_are_those_of_a_scenario(option: str, value: float) -> None:
    assert inspect.signature(simulate).parameters[option].default == value
