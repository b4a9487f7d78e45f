"""Large copies between two places in the host's memory."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from anygpu.base.processors import usable_processors

Bytes = npt.NDArray[np.uint8]

#: One core cannot use all of the bandwidth of the memory. Measured on two cores: below 4 MB, starting a thread costs
#: more than it saves; copies of 16 MB take 0.7 of the time, and of 64 MB 0.6.
WORTH_A_THREAD = 16 << 20

_PAGE = 4096


def copy_bytes(target: Bytes, source: Bytes) -> None:
    """`target[:] = source`, by two threads where that is faster. Returns when all of it is there."""
    if source.nbytes < WORTH_A_THREAD or usable_processors() < 2:
        target[:] = source
        return
    half = source.nbytes // 2 // _PAGE * _PAGE
    failed: list[BaseException] = []

    def copy_first() -> None:
        try:
            target[:half] = source[:half]
        except BaseException as error:  # noqa: BLE001 - raised where the copy was asked for
            failed.append(error)

    # A thread of its own: one that is kept would not be there after a fork, nor at the end of the interpreter.
    other = threading.Thread(target=copy_first, name="anygpu-copy", daemon=True)
    try:
        other.start()
    except RuntimeError:  # no thread can be started any more
        target[:] = source
        return
    try:
        target[half:] = source[half:]
    finally:
        _join(other)
    if failed:
        raise failed[0]


def _join(thread: threading.Thread) -> None:
    """Also while the caller is interrupted: what it copies to may belong to somebody else afterwards."""
    interrupted: BaseException | None = None
    while thread.is_alive():
        try:
            thread.join()
        except BaseException as error:  # noqa: BLE001 - Ctrl-C, raised below
            interrupted = error
    if interrupted is not None:
        raise interrupted
