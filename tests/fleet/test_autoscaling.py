"""Machines that come and go, with Ray's own autoscaler: one scenario in namespaces of its own, looked at from here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.autoscaled_cluster import VALUE, can_be_started, run_in_namespaces

pytestmark = [pytest.mark.long, pytest.mark.skipif(not can_be_started(), reason="only root can make namespaces")]

Facts = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def facts() -> Facts:
    return {each["name"]: each for each in run_in_namespaces("tests.support.autoscaling_scenario", timeout=500)}


def test_machines_come_when_tasks_wait(facts: Facts) -> None:
    grown = facts["grown"]
    assert (grown["asked"], grown["nodes"]) == (1, 2)
    assert "2 machines, 1 units asked for" in grown["text"]
    assert facts["used"]["node"] is not None


def test_no_task_is_lost_or_wrong(facts: Facts) -> None:
    assert facts["tasks"]["count"] >= 60
    assert facts["tasks"]["wrong"] == 0


def test_machines_go_when_nothing_waits(facts: Facts) -> None:
    assert facts["shrunk"]["devices"] == []
    assert facts["shrunk"]["asked"] == 0


def test_what_nobody_can_provide_is_told(facts: Facts) -> None:
    (told,) = facts["missing"]["missing"]
    assert told.startswith("1 × {GPU: 1} with card: h100: the autoscaler has no machine like that")
    assert any("h100" in warned for warned in facts["missing"]["warned"])


def test_a_machine_that_is_taken_away_finishes_what_it_has(facts: Facts) -> None:
    drained = facts["drained"]
    assert drained["there"], f"no machine with {VALUE} came"
    assert drained["wrong"] == 0
    assert len(drained["nodes"]) >= 1


def test_the_request_of_a_killed_process_is_withdrawn(facts: Facts) -> None:
    assert facts["withdrawn"]["left"] == "asked for 0"
