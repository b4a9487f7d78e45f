"""Progress reporting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

#: True for a bar in the terminal, or a callback that takes the numbers of finished and of all items (None if unknown).
Progress = bool | Callable[[int, int | None], object]


@contextlib.contextmanager
def showing(wanted: Progress, task: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a callback that takes the number of finished items."""
    if callable(wanted):
        yield lambda done: (wanted(done, total), None)[1]
        return
    if not wanted:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        number = bar.add_task(task, total=total)
        yield lambda done: bar.update(number, completed=done)
