"""Where a history is kept, as a seam: a file for users, a dictionary for tests."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from anygpu.history.merging import HabitKey, HabitRow, TimingKey, TimingRow, merged_habit, merged_timing


@dataclasses.dataclass
class Batch:
    """What is to be added to what is kept."""

    timings: dict[TimingKey, TimingRow] = dataclasses.field(default_factory=dict)
    habits: dict[HabitKey, HabitRow] = dataclasses.field(default_factory=dict)
    #: What was asked for and found: it is not forgotten, though nothing is added to it.
    used_programs: set[str] = dataclasses.field(default_factory=set)
    used_habits: set[HabitKey] = dataclasses.field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.timings or self.habits or self.used_programs or self.used_habits)


class Storage(Protocol):
    """Keeps rows. No method raises for what is or is not kept, or waits longer than `seconds` for others."""

    def timings(self, program: str, seconds: float) -> dict[TimingKey, TimingRow]: ...

    def habit(self, key: HabitKey, seconds: float) -> HabitRow | None: ...

    def add(self, batch: Batch, seconds: float) -> Batch:
        """Add what there is time for; the rest is returned."""
        ...


class MemoryStorage:
    """Keeps rows for as long as it lives, for tests."""

    def __init__(self) -> None:
        self.rows: dict[TimingKey, TimingRow] = {}
        self.habits: dict[HabitKey, HabitRow] = {}

    def timings(self, program: str, seconds: float) -> dict[TimingKey, TimingRow]:
        return {key: row for key, row in self.rows.items() if key.program == program}

    def habit(self, key: HabitKey, seconds: float) -> HabitRow | None:
        return self.habits.get(key)

    def add(self, batch: Batch, seconds: float) -> Batch:
        for key, row in batch.timings.items():
            self.rows[key] = merged_timing(self.rows.get(key, TimingRow()), row)
        for habit, more in batch.habits.items():
            self.habits[habit] = merged_habit(self.habits.get(habit, HabitRow()), more)
        return Batch()
