"""Durations of calls, stored across processes as hints for the next one."""
