"""Deferred calls however small and slow they are, for tests of their answers.

A call's own way is kept: stand-ins, recording, segments, what is converted at the return, and the refusals. Only these
answers are other ones: operations of every size are recorded, and no function goes back because it is not faster.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from anygpu.array.deferred import recorder
from anygpu.placement import deferred


@contextlib.contextmanager
def always_deferred(*, small: int = -1) -> Iterator[None]:
    """Within the block all calls of deferred functions but the first of a kind are deferred ones.

    Operations on arrays of more than `small` elements are recorded.
    """
    with (
        mock.patch.multiple(deferred, LEAST_PER_OPERATION=0.0, LEAST_GAIN=1e9, TRACES_TOO=False),
        mock.patch.multiple(deferred, PLAIN_AT_FIRST=1, PLAIN_EVERY=10**9),
        mock.patch.object(recorder, "SMALL", small),
    ):
        yield
