"""Every type travels to the device and back unchanged, and calls return what NumPy's would: values, dtype, shape."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.program.dtypes import DType
from anygpu.testing.cases import REFERENCE_DTYPES, tame, values
from anygpu.verify.cases import ActCase, Case, Check, Tried, judged
from anygpu.verify.subject import Subject


def _travel(dtype: DType, subject: Subject) -> Tried:
    handle = subject.handle
    arrays = (values(dtype, 4, 5), values(dtype, 0, 3), values(dtype, 1).reshape(()), values(dtype, 6, 4)[::-2].T)
    for array in arrays:
        got = handle.download(handle.upload(array))
        if got.dtype != array.dtype or got.shape != array.shape or _bits(got) != _bits(array):
            return Tried(f"{dtype}{list(array.shape)} changed on its way to the device and back.")
    return Tried()


def _bits(array: HostArray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _function(x: Any, y: Any) -> Any:
    return np.where(x == y, x, y), x[::-1], x.max(), np.sort(y)


def _arithmetic(x: Any, y: Any) -> Any:
    return x + y, x * y, x.sum(), np.cumsum(y)


def _called(dtype: DType, subject: Subject) -> Tried:
    x, y = tame(dtype, 77), tame(dtype, 77, seed=1)
    skipped = ""
    for function in (_function, _arithmetic) if np.dtype(dtype).kind != "c" else (_arithmetic,):
        value = subject.call(function, x, y).value
        found = judged(record(function, x, y), (x, y), [np.asarray(each) for each in value], set())
        if found.wrong:
            return Tried(f"{function.__name__[1:]} of {dtype}: {found.wrong}")
        skipped = skipped or found.skipped
    return Tried(skipped=skipped)


def _cases(subject: Subject) -> Iterator[Case]:
    for number, dtype in enumerate(REFERENCE_DTYPES):
        yield ActCase(f"{dtype}, round trip", number, partial(_travel, dtype))
    for number, dtype in enumerate(REFERENCE_DTYPES, len(REFERENCE_DTYPES)):
        yield ActCase(f"calls with {dtype}", number, partial(_called, dtype))


DTYPES = Check(
    "dtypes",
    "Every dtype travels unchanged, and calls return what NumPy's would.",
    0.04,
    lambda subject: 2 * len(REFERENCE_DTYPES),
    _cases,
)
