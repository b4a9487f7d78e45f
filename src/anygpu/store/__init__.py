"""Named tensors that several models share, on the device, on the host and on disk."""

from anygpu.store.contents import HostBytes
from anygpu.store.entry import Lease
from anygpu.store.names import Namespace
from anygpu.store.report import Report, Statistics
from anygpu.store.store import Store
from anygpu.store.tensor import Tensor

__all__ = ["HostBytes", "Lease", "Namespace", "Report", "Statistics", "Store", "Tensor"]
