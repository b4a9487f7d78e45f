"""Temporaries that are never needed at the same time share memory."""

from __future__ import annotations

from anygpu.codegen.kernel import Schedule


def shared_temporaries(schedule: Schedule) -> tuple[dict[int, int], list[int]]:
    """For each temporary slot the number of the piece of memory that it is in, and how large each piece is."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in enumerate(schedule.steps):
        for slot in step.slots:
            if schedule.slots[slot].role == "temporary":
                first.setdefault(slot, number)
                last[slot] = number
    places: dict[int, int] = {}
    sizes: list[int] = []
    free_from: list[int] = []
    for slot in sorted(first, key=lambda each: (first[each], each)):
        nbytes = schedule.slots[slot].nbytes
        # The smallest that is large enough; else the largest of the others grows.
        idle = [piece for piece, free in enumerate(free_from) if free < first[slot]]
        enough = [piece for piece in idle if sizes[piece] >= nbytes]
        if enough:
            piece = min(enough, key=lambda each: sizes[each])
        elif idle:
            piece = max(idle, key=lambda each: sizes[each])
            sizes[piece] = nbytes
        else:
            piece = len(sizes)
            sizes.append(nbytes)
            free_from.append(-1)
        places[slot] = piece
        free_from[piece] = last[slot]
    return places, sizes
