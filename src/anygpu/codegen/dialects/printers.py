"""WGSL and OpenCL C: two ways to print the same kernel form. (LLVM IR, which has loop nests, is apart.)"""

from __future__ import annotations

from anygpu.codegen.dialects.opencl import OpenCLPrinter
from anygpu.codegen.dialects.printer import Printer
from anygpu.codegen.dialects.wgsl import WGSLPrinter
from anygpu.codegen.target import Target


def printer(target: Target) -> Printer:
    """What prints kernels for devices of that kind."""
    return WGSLPrinter(target) if target.dialect == "wgsl" else OpenCLPrinter(target)
