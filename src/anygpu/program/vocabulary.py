"""Every primitive there is. The byte form knows these and nothing else."""

from __future__ import annotations

from anygpu.program import primitives as p
from anygpu.program.attention import Attend
from anygpu.program.custom import Custom

PRIMITIVES = (
    p.Input
    | p.Constant
    | p.Iota
    | p.Unary
    | p.Binary
    | p.Select
    | p.Cast
    | p.Reduce
    | p.Scan
    | p.Reshape
    | p.Permute
    | p.Broadcast
    | p.Slice
    | p.Update
    | p.Flip
    | p.Pad
    | p.Concatenate
    | p.Windows
    | p.Contract
    | p.Gather
    | p.Scatter
    | p.Sort
    | p.Argsort
    | p.Search
    | p.Fourier
    | p.Linear
    | Attend
    | Custom
)
