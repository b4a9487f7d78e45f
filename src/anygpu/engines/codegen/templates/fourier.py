"""FFTs along rows, of any length, from short ones that are straight lines of text.

A length is factored into radices; those up to eight are written out, and longer ones are steps in the group's memory. A
length with a large prime factor is a convolution (Bluestein) of a smooth length. Long transforms take several passes,
with twiddles from tables.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from anygpu.engines.codegen.target import SYNTAX, ComputeType, Dialect, Target, indented
from anygpu.engines.codegen.templates.stages import BYTES, Stage, Stages, Temporary, power_of_two
from anygpu.program.functions import FourierFunction

# -- FFTs of a few elements as straight lines of text
#
# The inner part of every longer transform.


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
        """The lines of a transform of four numbers, without multiplications."""
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
        """The lines of a transform of eight numbers: two of four, and turns by an eighth."""
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


# -- fourier transforms along rows, of any length
#
# A row that a group can hold is transformed in one kernel. A longer one takes a few passes over all of it: each turns
# its elements by their twiddles, transforms those that lie far apart, and puts them where the next pass finds its own
# far apart again (Stockham's order, so that nothing is ever permuted). A length with a large prime factor becomes a
# convolution with a chirp (Bluestein), of a length that has none.
#
# The inverse is the forward transform with real and imaginary parts exchanged, before and after.


#: Columns that a group takes together where a pass reads far apart, so that it reads some neighbours at least.
NEIGHBOURS = 8
#: A table of twiddles up to this long is kept whole; a longer one is a product of two, which costs one more rounding.
WHOLE_TABLE = 2048

_Complex = npt.NDArray[np.complex128]


class _End(msgspec.Struct, frozen=True):
    """The input or output of a transform: statements that load or store `value` at (`row`, `i`)."""

    statements: tuple[str, ...]
    names: tuple[str, ...]


def stages(
    target: Target,
    rows: int,
    length: int,
    fn: FourierFunction,
    component: ComputeType,
    *,
    group_size: int | None = None,
    name: str = "fourier",
) -> Stages:
    """The transform of `length`, computed in f32 or f64.

    Complex ends have two accessors, load_0 and load_1 or store_0 and store_1; the input of "rfft" and the result of
    "irfft" have only the first. The result of "rfft" and the input of "irfft" have length // 2 + 1 elements.
    """
    plan = _Planner(target, rows, component, group_size, name)
    source, sink = _source(plan.complexes, fn, length), _sink(plan.complexes, fn, length)
    if length == 1 or factors_of(length) is not None:
        return plan.temporaries, plan.transform(length, source, sink, name)
    return plan.convolution(length, source, sink)


def _source(complexes: ComplexSyntax, fn: FourierFunction, length: int) -> _End:
    """The lines that load an element of a transform's input.

    Inverse transforms are forward ones with real and imaginary parts exchanged. For "irfft" the missing half is the
    mirrored conjugate.
    """
    re, im, zero = "load_0(${pass}row, i)", "load_1(${pass}row, i)", complexes.number(0.0)
    match fn:
        case "fft":
            lines = [f"value = {complexes.pair(re, im)};"]
        case "ifft":
            lines = [f"value = {complexes.pair(im, re)};"]
        case "rfft":
            lines = [f"value = {complexes.pair(re, zero)};"]
        case "irfft":
            # The second half mirrors the first; where an element mirrors itself, it is real.
            lines = [
                f"if (i == 0 || 2 * i == {length}) {{",
                f"    value = {complexes.pair(zero, re)};",
                f"}} else if (2 * i < {length}) {{",
                f"    value = {complexes.pair(im, re)};",
                "} else {",
                f"    {complexes.syntax.position('mirrored', f'{length} - i')}",
                f"    value = {complexes.pair('-' + im.replace('i)', 'mirrored)'), re.replace('i)', 'mirrored)'))};",
                "}",
            ]
    return _End(tuple(lines), ("in",))


def _sink(complexes: ComplexSyntax, fn: FourierFunction, length: int) -> _End:
    """The lines that store an element of a transform's result.

    Inverse transforms have their parts exchanged back, and are scaled by 1 / length.
    """
    scale = complexes.number(1 / length)
    match fn:
        case "fft":
            lines = ["store_0(${pass}row, i, value.x);", "store_1(${pass}row, i, value.y);"]
        case "ifft":
            lines = [f"store_0(${{pass}}row, i, value.y * {scale});", f"store_1(${{pass}}row, i, value.x * {scale});"]
        case "rfft":
            lines = [f"if (i <= {length // 2}) {{"]
            lines += ["    store_0(${pass}row, i, value.x);", "    store_1(${pass}row, i, value.y);", "}"]
        case "irfft":
            lines = [f"store_0(${{pass}}row, i, value.y * {scale});"]
    return _End(tuple(lines), ("out",))


class _Planner:
    """The passes of one operation, and the buffers between them."""

    def __init__(self, target: Target, rows: int, component: ComputeType, group_size: int | None, name: str) -> None:
        """Plan the passes of transforms over `rows`; `room` is how many numbers fit into half of the group's memory."""
        self.target, self.rows, self.component, self.name = target, rows, component, name
        self.complexes = ComplexSyntax(target.dialect, component)
        self.group_size = min(group_size or 256, target.group_limit)
        self.temporaries: list[Temporary] = []
        #: Complex numbers that a group can hold twice.
        self.room = target.group_memory // (4 * BYTES[component])

    def transform(self, length: int, source: _End, sink: _End, name: str) -> list[Stage]:
        """The passes of one transform.

        Each has a radix that fits into the group's memory, and reads what the last one wrote.
        """
        radices = self._radices(length)
        described, done = [], 1
        for number, radix in enumerate(radices):
            first, last = number == 0, number == len(radices) - 1
            came_from = source if first else self._between(name, number - 1, length, write=False)
            goes_to = sink if last else self._between(name, number, length, write=True)
            own = name if len(radices) == 1 else f"{name}_pass_{number + 1}"
            described.append(self._pass(own, length, radix, done, came_from, goes_to))
            done *= radix
        return described

    def convolution(self, length: int, source: _End, sink: _End) -> Stages:
        """Bluestein: i * j = (i² + j² - (i - j)²) / 2, so that a transform is a convolution between two products."""
        longer = smooth_length(2 * length - 1)
        # Squares are exact modulo a whole turn; as floats they would soon have lost the fraction that counts.
        squares = np.arange(length, dtype=np.int64) ** 2 % (2 * length)
        chirp = np.exp(-1j * np.pi * squares / length)
        kernel = np.zeros(longer, np.complex128)
        kernel[:length] = chirp.conj()
        kernel[longer - length + 1 :] = chirp[1:][::-1].conj()
        chirps = self._constant(f"{self.name}_chirp", chirp)
        spectrum = self._constant(f"{self.name}_spectrum", np.fft.fft(kernel) / longer)
        whole = Temporary(f"{self.name}_product", self.component, 2 * self.rows * longer)
        self.temporaries.append(whole)

        complexes = self.complexes
        place = f"row * {longer} + i"
        by_chirp = f"value = multiplied(value, {complexes.entry(chirps, 'i')});"
        spread = _End(
            (f"if (i < {length}) {{", *indented((*source.statements, by_chirp)), "}"), (*source.names, chirps)
        )
        # Stored with its parts exchanged: what follows is the inverse.
        multiplied = _End(
            (
                f"value = multiplied(value, {complexes.entry(spectrum, 'i')});",
                f"{whole.name}[2 * ({place})] = value.y;",
                f"{whole.name}[2 * ({place}) + 1] = value.x;",
            ),
            (whole.name, spectrum),
        )
        product = _End((f"value = {complexes.entry(whole.name, place)};",), (whole.name,))
        exchanged = f"value = {complexes.pair('value.y', 'value.x')};"
        gathered = _End(
            (f"if (i < {length}) {{", *indented((exchanged, by_chirp, *sink.statements)), "}"), (*sink.names, chirps)
        )
        forward = self.transform(longer, spread, multiplied, f"{self.name}_forward")
        backward = self.transform(longer, product, gathered, f"{self.name}_backward")
        return self.temporaries, [*forward, *backward]

    def _radices(self, length: int) -> tuple[int, ...]:
        """Few passes of about equal size. Those that read far apart leave room for some neighbours."""
        if length <= self.room:
            return (length,)
        primes = factors_of(length) or ()
        limit = self.room // NEIGHBOURS
        count = 2
        while True:
            products = [1] * count
            for prime in primes:
                smallest = products.index(min(products))
                products[smallest] *= prime
            if max(products) <= limit:
                return tuple(sorted(products, reverse=True))
            count += 1

    def _between(self, name: str, number: int, length: int, *, write: bool) -> _End:
        """The lines that read or write the buffer between two passes; two buffers take turns."""
        buffer = f"{self.name}_{('even', 'odd')[number % 2]}"
        size = 2 * self.rows * length
        if all(each.name != buffer for each in self.temporaries):
            self.temporaries.append(Temporary(buffer, self.component, size))
        place = f"row * {length} + i"
        if write:
            return _End((f"{buffer}[2 * ({place})] = value.x;", f"{buffer}[2 * ({place}) + 1] = value.y;"), (buffer,))
        return _End((f"value = {self.complexes.entry(buffer, place)};",), (buffer,))

    def _constant(self, name: str, values: _Complex) -> str:
        """The name of a table of complex constants, which is added once."""
        pairs = np.stack([values.real, values.imag], axis=1).astype({"f32": "<f4", "f64": "<f8"}[self.component])
        if all(each.name != name for each in self.temporaries):
            self.temporaries.append(Temporary(name, self.component, pairs.size, pairs.tobytes()))
        return name

    def _pass(self, name: str, length: int, radix: int, done: int, source: _End, sink: _End) -> Stage:
        """One pass: columns of `radix` elements, in the group's memory; `done` is the product of earlier radices."""
        complexes = self.complexes
        columns_of_row = length // radix
        # Odd where lanes side by side write to columns side by side, which must not lie in one bank of the memory.
        pitch = radix if columns_of_row == 1 else radix | 1
        all_columns = self.rows * columns_of_row
        columns = max(1, min(self.room // pitch, all_columns))
        slots, half = columns * radix, columns * pitch
        factors = steps_of(radix)
        group_size = min(self.group_size, power_of_two(max(1, slots // 4)))
        twiddles = self._constant(f"{self.name}_twiddles_{radix}", _turns(radix, radix))
        reads = [twiddles] if len(factors) > 1 else []
        turn = ""
        if done > 1:
            turn, tables = self._turn(done, radix)
            reads += [table for table in tables if table not in reads]
        steps, finished = [], 0
        within = 1
        for factor in factors:
            steps += self._step(radix, factor, within, columns, pitch, finished, half - finished, group_size, twiddles)
            within *= factor
            finished = half - finished
        by_column = ("slot / " + str(columns), "slot % " + str(columns))
        by_element = ("slot % " + str(radix), "slot / " + str(radix))
        loading = by_element if columns_of_row == 1 else by_column
        storing = by_element if done == 1 else by_column
        numbers = {
            "columns": columns,
            "radix": radix,
            "shared": 2 * half,
            "slots": slots,
            "last_column": all_columns - 1,
            "columns_of_row": columns_of_row,
            "pitch": pitch,
            "done": done,
            "finished": finished,
        }
        named = {*source.names, *reads, *(each for each in sink.names if self._is_constant(each))}
        return Stage(
            name=name,
            template="fourier_pass",
            groups=-(-all_columns // columns),
            group_size=group_size,
            reads=tuple(sorted(named)),
            writes=tuple(each for each in sink.names if not self._is_constant(each)),
            values={
                **{key: str(number) for key, number in numbers.items()},
                "factors": " · ".join(map(str, factors)) or "1",
                "complex": complexes.complex,
                "load": "\n".join(source.statements),
                "load_element": loading[0],
                "load_column": loading[1],
                "turn": turn,
                "steps": "\n".join(steps),
                "store_element": storing[0],
                "store_column": storing[1],
                "store": "\n".join(sink.statements),
            },
        )

    def _is_constant(self, name: str) -> bool:
        return any(each.name == name and each.data is not None for each in self.temporaries)

    def _turn(self, done: int, radix: int) -> tuple[str, list[str]]:
        """Each element turned by its twiddle between two passes."""
        period = done * radix
        complexes = self.complexes
        angle = f"element * (j % {done})"
        if period <= WHOLE_TABLE:
            table = self._constant(f"{self.name}_twiddles_{period}", _turns(period, period))
            return f"value = multiplied(value, {complexes.entry(table, angle)});", [table]
        step = 1 << (period.bit_length() + 1) // 2
        fine = self._constant(f"{self.name}_fine_{period}", _turns(step, period))
        coarse = self._constant(f"{self.name}_coarse_{period}", _turns(-(-period // step), period, step))
        lines = [
            complexes.syntax.position("angle", angle),
            f"value = multiplied(value, {complexes.entry(coarse, f'angle / {step}')});",
            f"value = multiplied(value, {complexes.entry(fine, f'angle % {step}')});",
        ]
        return "\n".join(lines), [fine, coarse]

    def _step(
        self,
        radix: int,
        factor: int,
        done: int,
        columns: int,
        pitch: int,
        read: int,
        write: int,
        group_size: int,
        twiddles: str,
    ) -> list[str]:
        """One factor of a pass, among what the group shares."""
        complexes, apart = self.complexes, radix // factor
        syntax = complexes.syntax
        body = [
            syntax.position("column", f"number / {apart} * {pitch}"),
            syntax.position("first", f"number % {apart}"),
            complexes.let("x0", f"values[{read} + column + first]"),
        ]
        if done > 1:
            body.append(syntax.position("turn", f"first % {done}"))
        for k in range(1, factor):
            element = f"values[{read + k * apart} + column + first]"
            if done > 1:
                scale = k * (radix // (done * factor))
                element = f"multiplied({element}, {complexes.entry(twiddles, f'turn * {scale}')})"
            body.append(complexes.let(f"x{k}", element))
        body += complexes.butterfly(factor)
        place = f"first * {factor}" if done == 1 else f"(first - turn) * {factor} + turn"
        body.append(syntax.position("goes_to", f"{write} + column + {place}"))
        body += [f"values[goes_to + {k * done}] = y{k};" if k else "values[goes_to] = y0;" for k in range(factor)]
        head = syntax.loop("number", "lane", f"< {columns * apart}", f" += {group_size}")
        return [head, *indented(body), "}", syntax.barrier]


def _turns(count: int, period: int, step: int = 1) -> _Complex:
    """exp(-2πi k step / period) for k below `count`."""
    return np.asarray(np.exp(-2j * np.pi * (np.arange(count) * step) / period), np.complex128)
