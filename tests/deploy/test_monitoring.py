"""The alert rules and the Grafana dashboard in `deploy/`: each alert fires in its test, each query is understood."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from anygpu.base.metric_families import Family
from anygpu.observe.metrics import anomaly_families, call_families, usage_families
from anygpu.observe.statistics import Summary
from anygpu.runtime.health import Health, runtime_families
from anygpu.runtime.serving.application import Metrics
from benchmarks.prometheus_process import program

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES, RULE_TESTS = DEPLOY / "prometheus/anygpu.rules.yml", DEPLOY / "prometheus/anygpu.test.yml"
DASHBOARD = DEPLOY / "grafana/anygpu.json"


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True, timeout=120)


def known_metrics() -> set[str]:
    """Every name that a process may show."""
    empty = Summary(seconds=0.0, calls=())
    health = Health(
        ok=True,
        closed=None,
        waiting=0,
        limit=1,
        open_tasks=0,
        oldest_seconds=None,
        lanes=(),
        tenants=(),
        losses=(),
    )
    families: list[Family] = [
        *call_families(empty, {}),
        *usage_families({}),
        *anomaly_families(()),
        *runtime_families(health),
        *Metrics()._families(0, True),
    ]
    names = {"anygpu_build_info", "anygpu_observed"}
    for each in families:
        suffixes = ("_bucket", "_sum", "_count") if each.kind == "histogram" else ("",)
        names |= {each.name + suffix for suffix in suffixes}
    return names


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.full
def test_rules_are_valid_and_each_alert_fires_in_its_test() -> None:
    checked = promtool("check", "rules", RULES)
    assert checked.returncode == 0, checked.stderr
    tested = promtool("test", "rules", RULE_TESTS)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    fires = {
        one["alertname"]
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]
        for one in test["alert_rule_test"]
        if one["exp_alerts"]
    }
    assert fires == {rule["alert"] for rule in rules()}


@pytest.mark.full
@pytest.mark.parametrize("alert", ["AnygpuCallsFail", "AnygpuDeviceLost", "AnygpuGone"])
def test_a_rule_that_never_fires_fails_its_test(tmp_path: Path, alert: str) -> None:
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == alert:
                rule["expr"] = f"({rule['expr']}) and on () vector(1) > 2"
    (tmp_path / RULES.name).write_text(yaml.safe_dump(document))
    (tmp_path / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    tested = promtool("test", "rules", tmp_path / RULE_TESTS.name)
    assert tested.returncode != 0
    assert alert in tested.stdout + tested.stderr


def test_rules_and_dashboard_use_metrics_that_exist() -> None:
    used = set(re.findall(r"\banygpu_\w+", RULES.read_text() + DASHBOARD.read_text()))
    assert used <= known_metrics()


def dashboard_queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return [*panels, *(each["expr"] for each in dashboard["annotations"]["list"])]


def test_every_query_of_the_dashboard_is_understood(tmp_path: Path) -> None:
    queries = [re.sub(r"\$__(rate_interval|range)", "5m", query).replace("$", "") for query in dashboard_queries()]
    records = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    checked = promtool("check", "rules", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_panels_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
