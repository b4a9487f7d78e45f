"""A storage of rows in memory, for tests."""

from __future__ import annotations

from anygpu.placement.history.records import HabitKey, HabitRow, TimingKey, TimingRow, merged_habit, merged_timing
from anygpu.placement.history.storage import RowBatch


class MemoryStorage:
    """Stores rows for as long as it lives."""

    def __init__(self) -> None:
        self.rows: dict[TimingKey, TimingRow] = {}
        self.habits: dict[HabitKey, HabitRow] = {}

    def timings(self, program: str) -> dict[TimingKey, TimingRow]:
        return {key: row for key, row in self.rows.items() if key.program == program}

    def habit(self, key: HabitKey) -> HabitRow | None:
        return self.habits.get(key)

    def add(self, batch: RowBatch, seconds: float) -> bool:
        for key, row in batch.timings.items():
            self.rows[key] = merged_timing(self.rows.get(key, TimingRow()), row)
        for habit, more in batch.habits.items():
            self.habits[habit] = merged_habit(self.habits.get(habit, HabitRow()), more)
        return True
