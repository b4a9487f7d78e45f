"""What has to hold of every trace: it is JSON, its slices nest, and tracks do not overlap."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

PHASES = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")


class Trace:
    """A trace that was read back."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text(encoding="ascii"))
        self.said: dict[str, Any] = document["otherData"]
        self.events: list[Event] = document["traceEvents"]
        self.names: dict[tuple[int, int], str] = {
            (each["pid"], each["tid"]): each["args"]["name"]
            for each in self.events
            if each["name"] in ("thread_name", "process_name")
        }

    def of_kind(self, kind: str) -> list[Event]:
        return [each for each in self.events if each["ph"] == kind]

    def tracks(self) -> dict[str, list[Event]]:
        """The slices by the names of their tracks, the outer before the inner."""
        found: dict[str, list[Event]] = defaultdict(list)
        for each in self.of_kind("X"):
            found[self.names[each["pid"], each["tid"]]].append(each)
        return {name: sorted(events, key=lambda e: (e["ts"], -e["dur"])) for name, events in found.items()}

    def calls(self, name: str) -> list[Event]:
        """The slices of calls on the tracks of callers."""
        return [each for each in self.of_kind("X") if each["pid"] == 1 and each["name"].split(" × ")[0] == name]

    def seconds(self, name: str) -> float:
        """What slices of this name on the tracks of callers take together."""
        found = [each for each in self.of_kind("X") if each["pid"] == 1 and each["name"] == name]
        return sum(float(each["dur"]) for each in found) / 1e6

    def waited(self) -> float:
        times: dict[int, float] = {}
        for each in self.of_kind("b"):
            times[each["id"]] = each["ts"]
        return sum(float(each["ts"]) - times.pop(each["id"]) for each in self.of_kind("e")) / 1e6

    def check(self) -> None:
        """Every slice ends before those that enclose it, and nothing of a track overlaps."""
        for name, events in self.tracks().items():
            enclosing: list[Event] = []
            for each in events:
                assert each["dur"] >= 0, each
                begin, end = _nanoseconds(each["ts"]), _nanoseconds(each["ts"]) + _nanoseconds(each["dur"])
                while enclosing and _end(enclosing[-1]) <= begin:
                    enclosing.pop()
                if enclosing:
                    assert end <= _end(enclosing[-1]), f"on {name}: {each} goes beyond {enclosing[-1]}"
                enclosing.append(each)
        arrows = {each["id"]: each for each in self.of_kind("s")}
        for each in self.of_kind("f"):
            assert arrows.pop(each["id"])["ts"] <= each["ts"]
        assert not arrows


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def _end(event: Event) -> int:
    return _nanoseconds(event["ts"]) + _nanoseconds(event["dur"])
