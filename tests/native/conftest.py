from __future__ import annotations

from tests.support.calibrations import own_calibrations as own_calibrations
