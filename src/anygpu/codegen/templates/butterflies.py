"""FFTs of a few elements as straight lines of text: the inner part of every longer transform."""

from __future__ import annotations

import math

from anygpu.codegen.syntax import SYNTAX
from anygpu.codegen.target import ComputeType, Dialect
from anygpu.codegen.templates.rows import power_of_two

#: Factors that have a butterfly; a length with any other prime factor is transformed by a convolution.
PRIMES = (2, 3, 5, 7, 11, 13)


def factors_of(length: int) -> tuple[int, ...] | None:
    """Prime factors, greatest first, or `None` when one has no butterfly."""
    found = []
    for prime in PRIMES:
        while length % prime == 0:
            found.append(prime)
            length //= prime
    return tuple(reversed(found)) if length == 1 else None


def smooth_length(at_least: int) -> int:
    """The least power of two, or 3 or 5 times one, that is long enough."""
    return min(factor * power_of_two(-(-at_least // factor)) for factor in (1, 3, 5))


def steps_of(radix: int) -> tuple[int, ...]:
    """The factors to go by: as few as possible, for each step passes through memory."""
    primes = factors_of(radix)
    if primes is None:
        raise ValueError(f"{radix} has a prime factor without a butterfly.")
    twos = primes.count(2)
    eights, left = divmod(twos, 3)
    powers = [8] * eights + [2**left] * (left > 0)
    if left == 1 and eights:
        powers = [8] * (eights - 1) + [4, 4]
    return tuple([prime for prime in primes if prime > 2] + powers)


class ComplexSyntax:
    """Complex numbers in a dialect: vectors of two."""

    def __init__(self, dialect: Dialect, component: ComputeType) -> None:
        self.syntax, self.component = SYNTAX[dialect], component
        self.complex = self.syntax.vector(component, 2)

    def let(self, name: str, value: str) -> str:
        return self.syntax.let(name, self.complex, value)

    def number(self, value: float) -> str:
        return self.syntax.number(value, self.component)

    def pair(self, x: str, y: str) -> str:
        return self.syntax.construct(self.complex, [x, y])

    def entry(self, table: str, index: str) -> str:
        """An entry of a buffer that interleaves real and imaginary parts."""
        return self.pair(f"{table}[2 * ({index})]", f"{table}[2 * ({index}) + 1]")

    def butterfly(self, factor: int) -> list[str]:
        """Lines from x0, x1, … to y0, y1, …"""
        if factor == 2:
            return [self.let("y0", "x0 + x1"), self.let("y1", "x0 - x1")]
        if factor == 4:
            return self._four("", ("x0", "x1", "x2", "x3"), ("y0", "y1", "y2", "y3"))
        return self._eight() if factor == 8 else self._odd(factor)

    def _turned(self, x: str) -> str:
        """Times -i."""
        return self.pair(f"{x}.y", f"-{x}.x")

    def _four(self, prefix: str, x: tuple[str, ...], y: tuple[str, ...]) -> list[str]:
        a, b, c, d = (f"{prefix}{name}" for name in ("sum_02", "difference_02", "sum_13", "difference_13"))
        return [
            self.let(a, f"{x[0]} + {x[2]}"),
            self.let(b, f"{x[0]} - {x[2]}"),
            self.let(c, f"{x[1]} + {x[3]}"),
            self.let(d, self.pair(f"{x[1]}.y - {x[3]}.y", f"{x[3]}.x - {x[1]}.x")),
            self.let(y[0], f"{a} + {c}"),
            self.let(y[1], f"{b} + {d}"),
            self.let(y[2], f"{a} - {c}"),
            self.let(y[3], f"{b} - {d}"),
        ]

    def _eight(self) -> list[str]:
        half = self.number(math.sqrt(0.5))
        lines = self._four("even_", ("x0", "x2", "x4", "x6"), ("e0", "e1", "e2", "e3"))
        lines += self._four("odd_", ("x1", "x3", "x5", "x7"), ("o0", "o1", "o2", "o3"))
        lines += [
            self.let("t1", f"{half} * {self.pair('o1.x + o1.y', 'o1.y - o1.x')}"),
            self.let("t2", self._turned("o2")),
            self.let("t3", f"{half} * {self.pair('o3.y - o3.x', '-o3.x - o3.y')}"),
        ]
        for k, odd in enumerate(("o0", "t1", "t2", "t3")):
            lines += [self.let(f"y{k}", f"e{k} + {odd}"), self.let(f"y{k + 4}", f"e{k} - {odd}")]
        return lines

    def _odd(self, factor: int) -> list[str]:
        """Elements k and -k meet the same cosine and opposite sines."""
        half = range(1, factor // 2 + 1)
        lines = []
        for k in half:
            lines += [self.let(f"s{k}", f"x{k} + x{factor - k}"), self.let(f"d{k}", f"x{k} - x{factor - k}")]
        lines.append(self.let("y0", f"x0 + {' + '.join(f's{k}' for k in half)}"))
        for m in half:
            angles = [2 * math.pi * (k * m % factor) / factor for k in half]
            cosines = " + ".join(
                f"{self.number(math.cos(angle))} * s{k}" for k, angle in zip(half, angles, strict=True)
            )
            sines = " + ".join(f"{self.number(math.sin(angle))} * d{k}" for k, angle in zip(half, angles, strict=True))
            lines += [
                self.let(f"a{m}", f"x0 + {cosines}"),
                self.let(f"b{m}", sines),
                self.let(f"y{m}", self.pair(f"a{m}.x + b{m}.y", f"a{m}.y - b{m}.x")),
                self.let(f"y{factor - m}", self.pair(f"a{m}.x - b{m}.y", f"a{m}.y + b{m}.x")),
            ]
        return lines
