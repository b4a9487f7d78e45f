"""Objects of users' own classes around arrays."""

import abc
import dataclasses
import enum
import typing
from collections import namedtuple

import numpy as np

from tests.semantics.cases import World, case, case_of_state, given, matrix, turn, vector

Point = namedtuple("Point", "x y")


class Typed(typing.NamedTuple):
    values: object
    scale: float = 2.0


@dataclasses.dataclass
class Settings:
    factor: float = 2.0
    offset: object = None
    name: str = "plain"


@dataclasses.dataclass(frozen=True)
class Frozen:
    values: object
    factor: int = 3


@dataclasses.dataclass
class Derived:
    factor: float
    squared: float = dataclasses.field(init=False)

    def __post_init__(self):
        self.squared = self.factor**2


class Mode(enum.Enum):
    DOUBLE = "double"
    TRIPLE = "triple"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Slotted:
    __slots__ = ("factor", "table")

    def __init__(self, factor, table):
        self.factor, self.table = factor, table


class Layer:
    scale = 2.0

    def __init__(self, weights, bias):
        self.weights, self.bias = weights, bias
        self.calls = 0

    def __call__(self, x):
        return x @ self.weights + self.bias

    def scaled(self, x):
        return self(x) * self.scale

    @property
    def total(self):
        return self.bias * 3

    def with_property(self, x):
        return x.sum() + self.total

    @classmethod
    def by_class(cls, x):
        return x * cls.scale

    @staticmethod
    def plain(x):
        return x * 5

    def counted(self, x):
        self.calls += 1
        return x * self.calls


class Relu(Layer):
    scale = 3.0

    def __call__(self, x):
        return np.maximum(super().__call__(x), 0)


def layer(n, kind=Layer):
    return kind(matrix(n, 4, 2), turn(n, 0.5, 1.5, 2.0))


@case(lambda n: (Point(vector(n), vector(n + 1)),))
def named_tuple_argument(p):
    return p.x * p.y, p[0] + p[1], p._replace(x=p.y * 2).x


@case(lambda n: (vector(n),))
def named_tuple_result(x):
    return Point(x * 2, Typed(x + 1, 3.0))


@case(lambda n: (Settings(turn(n, 2.0, 3.0), turn(n, None, 1.0)), vector(n)))
def dataclass_argument(settings, x):
    x = x * settings.factor
    return x if settings.offset is None else x + settings.offset


@case(lambda n: (Settings(offset=vector(n + 1)), vector(n)))
def dataclass_with_an_array(settings, x):
    return x * settings.factor + settings.offset


@case(lambda n: (vector(n),))
def dataclass_result(x):
    return Settings(2.0, x * 2), Frozen(x + 1)


@case(lambda n: (Frozen(vector(n), turn(n, 3, 4)),))
def frozen_dataclass(frozen):
    return frozen.values * frozen.factor, dataclasses.replace(frozen, factor=10).values * 1


@case(lambda n: (Derived(turn(n, 1.0, 2.0)), vector(n)))
def dataclass_with_post_init(derived, x):
    return x * derived.squared


@case(lambda n: (vector(n), turn(n, Mode.DOUBLE, Mode.TRIPLE)))
def enum_argument(x, mode):
    return x * 2 if mode is Mode.DOUBLE else x * 3


@case(lambda n: (vector(n), turn(n, Level.LOW, Level.HIGH)), either=True)
def int_enum_argument(x, level):
    return x * level, x + level.value


@case(lambda n: (vector(n), turn(n, Mode.DOUBLE, Mode.TRIPLE)), either=True)
def enum_result(x, mode):
    return x * 2, mode, mode.value


@case(lambda n: (Slotted(turn(n, 2.0, 3.0), vector(n + 1)), vector(n)))
def slots(slotted, x):
    return x * slotted.factor + slotted.table


@case(lambda n: (layer(n), vector(n, 4)))
def callable_object_argument(layer, x):
    return layer(x), layer.scaled(x)


@case(lambda n: (turn(n, layer(n), layer(n, Relu)), vector(n, 4)), either=True)
def inheritance(layer, x):
    return layer.scaled(x), isinstance(layer, Relu), layer.plain(x), layer.by_class(x)


@case(lambda n: ([layer(n), layer(n + 1)], vector(n, 4)))
def a_list_of_objects(layers, x):
    return sum(each(x) for each in layers)


@case(lambda n: ({"first": layer(n)}, vector(n, 4)))
def a_dict_of_objects(layers, x):
    return layers["first"].with_property(x)


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self, r): ...


class Circle(Shape):
    def area(self, r):
        return r * r * 3


class Square(Shape):
    def area(self, r):
        return r * r


@case(lambda n: (turn(n, Circle(), Square()), vector(n)))
def abstract_base_class(shape, r):
    return shape.area(r)


class Vec:
    """Operators of a user's own."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Vec(self.x + other.x, self.y + other.y)

    def __mul__(self, k):
        return Vec(self.x * k, self.y * k)

    __rmul__ = __mul__

    def __neg__(self):
        return Vec(-self.x, -self.y)

    def __getitem__(self, name):
        return getattr(self, name)

    def __iter__(self):
        yield self.x
        yield self.y

    def __len__(self):
        return 2

    def __eq__(self, other):
        return (self.x == other.x) & (self.y == other.y)

    __hash__ = None

    def __contains__(self, name):
        return name in ("x", "y")

    def __bool__(self):
        return True

    def __matmul__(self, other):
        return (self.x * other.x + self.y * other.y).sum()


@case(lambda n: (vector(n), vector(n + 1)))
def operators_of_a_class(x, y):
    v = Vec(x, y) + 2 * Vec(y, x) * 3
    a, b = -v
    return a, b, v["x"], len(v), "x" in v, v @ v, 5 if v else 6


@case(lambda n: (Vec(vector(n), vector(n + 1)),))
def operators_of_an_argument(v):
    return (v + v * 2).x, list(v)[1] * 2, v == v


@case(lambda n: (vector(n),), either=True)
def an_object_as_result(x):
    return Vec(x * 2, x + 1)


class Descriptor:
    def __get__(self, instance, owner):
        return instance.__dict__["raw"] * 2

    def __set__(self, instance, value):
        instance.__dict__["raw"] = value


class Described:
    value = Descriptor()

    def __init__(self, value):
        self.value = value


@case(lambda n: (Described(turn(n, 1.0, 2.0)), vector(n)), either=True)
def descriptors(described, x):
    return x * described.value


@case(lambda n: (vector(n), turn(n, 1.0, 2.0)))
def a_class_made_inside(x, k):
    class Local:
        factor = k

        def apply(self, v):
            return v * self.factor

    return Local().apply(x)


class Meta(type):
    def __call__(cls, *arguments):
        made = super().__call__(*arguments)
        made.extra = 3
        return made


class WithMeta(metaclass=Meta):
    def __init__(self, factor):
        self.factor = factor


@case(lambda n: (vector(n),), either=True)
def metaclass(x):
    made = WithMeta(2)
    return x * made.factor + made.extra


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)
        return self

    def pop(self):
        return self.items.pop()


@case(lambda n: (vector(n), vector(n + 1)))
def an_object_used_inside(x, y):
    stack = Stack()
    stack.push(x).push(y).push(x * 2)
    return stack.pop() + stack.pop(), len(stack.items)


@case_of_state()
def a_bound_method_as_the_function():
    made = layer(0)

    def change(n):
        made.bias = turn(n, 0.5, 1.5)
        if n % 3 == 0:
            made.weights = matrix(n % 2, 4, 2)

    return World(made.scaled, lambda n: (vector(n, 4),), change)


@case_of_state()
def a_callable_object_as_the_function():
    made = layer(0, Relu)

    def change(n):
        made.weights[n % 4, 0] += 1

    return World(made, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def a_class_method_as_the_function():
    class Own(Layer):
        pass

    def change(n):
        Own.scale = turn(n, 2.0, 4.0)

    return World(Own.by_class, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def a_method_that_counts():
    made = layer(0)
    return World(made.counted, lambda n: (vector(n),), seen=lambda: made.calls)


@case_of_state()
def a_class_attribute_changes():
    class Own(Layer):
        pass

    made = Own(matrix(0, 4, 2), 1.0)

    def change(n):
        Own.scale = turn(n, 2.0, 4.0, 5)

    return World(made.scaled, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def an_attribute_hides_a_class_attribute():
    made = layer(0)

    def change(n):
        if n % 3 == 1:
            made.scale = 7.0
        else:
            made.__dict__.pop("scale", None)

    return World(made.scaled, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def a_method_is_replaced():
    class Own(Layer):
        pass

    made = Own(matrix(0, 4, 2), 1.0)

    def function(x):
        return made.plain(x)

    def change(n):
        Own.plain = staticmethod(turn(n, lambda x: x * 2, lambda x: x * 3))

    return World(function, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def the_class_of_an_object_changes():
    made = layer(0)

    def function(x):
        return made(x)

    def change(n):
        made.__class__ = turn(n, Layer, Relu)

    return World(function, lambda n: (vector(n, 4),), change)


@case_of_state(either=True)
def a_property_with_state():
    class Meter:
        def __init__(self):
            self.reads = 0

        @property
        def value(self):
            self.reads += 1
            return self.reads

    meter = Meter()

    def function(x):
        return x * meter.value

    return World(function, lambda n: (vector(n),), seen=lambda: meter.reads)


@case_of_state(either=True)
def getattr_of_an_object():
    class Odd:
        def __init__(self):
            self.values = {"factor": 2.0}

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return self.__dict__["values"][name]

    odd = Odd()

    def function(x):
        return x * odd.factor

    def change(n):
        odd.values["factor"] = turn(n, 2.0, 3.0)

    return World(function, lambda n: (vector(n),), change)


@case_of_state(either=True)
def getitem_that_counts():
    class Counting:
        def __init__(self):
            self.count = 0

        def __getitem__(self, name):
            self.count += 1
            return self.count

    counting = Counting()

    def function(x):
        return x * counting["a"]

    return World(function, lambda n: (vector(n),), seen=lambda: counting.count)


@case_of_state(either=True)
def attributes_that_raise():
    class Strict:
        def __getattribute__(self, name):
            if name == "factor":
                return 2.0
            raise RuntimeError(f"no {name} here")

    strict = Strict()

    def function(x):
        return x * strict.factor

    return World(function, lambda n: (vector(n),))


@case_of_state(either=True)
def an_unused_object_whose_attributes_raise():
    class Strict:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name} here")

        def __eq__(self, other):
            raise RuntimeError("not comparable")

        __hash__ = None

    strict = Strict()

    def function(x):
        return x * (2 if strict is not None else 3)

    return World(function, lambda n: (vector(n),))


@case_of_state()
def slots_change():
    slotted = Slotted(2.0, np.ones(6, np.float32))

    def function(x):
        return x * slotted.factor + slotted.table

    def change(n):
        slotted.factor = turn(n, 2.0, 3)
        slotted.table = vector(n % 2)

    return World(function, lambda n: (vector(n),), change)


@case_of_state()
def nested_attributes_change():
    class Node:
        pass

    root = Node()
    root.child = Node()
    root.child.child = Node()
    root.child.child.factor = 1.0

    def function(x):
        return x * root.child.child.factor

    def change(n):
        root.child.child.factor = turn(n, 1.0, 2.0)
        if n % 5 == 4:
            root.child = Node()
            root.child.child = Node()
            root.child.child.factor = 9.0

    return World(function, lambda n: (vector(n),), change)


@case_of_state(either=True)
def dunder_dict_and_vars():
    made = layer(0)

    def function(x):
        return x * made.__dict__["bias"] + vars(made)["bias"] + getattr(made, "bi" + "as")

    def change(n):
        made.bias = turn(n, 0.5, 1.5)

    return World(function, lambda n: (vector(n),), change)


@case(lambda n: given(layer(n), x=vector(n, 4)), either=True)
def an_argument_is_an_object_that_is_changed(layer, x):
    layer.bias = layer.bias + 1
    return layer(x)


@case(lambda n: (Settings(), vector(n)), either=True)
def an_argument_gets_an_array(settings, x):
    settings.offset = x * 2
    return x + 1
