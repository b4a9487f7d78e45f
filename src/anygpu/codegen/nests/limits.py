"""How much one loop, and a whole program, may be written as."""

from __future__ import annotations

#: Values that may be looked at and written for a program: so many for each node, and in any case so many. A thousand
#: take 0.05 s. Programs that people wrote have 2 to 120 for a node.
VALUES_OF_NODE = 500
FEWEST_VALUES = 100_000
#: Lines of a module: LLVM takes a second for 20,000 of them.
MOST_LINES = 200_000


class TooMany(Exception):
    """One loop would compute too many values: it names the node that is computed at most places."""

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node


class TooLarge(Exception):
    """A program would be more code than a compiler should be given."""


class Written:
    """How many values have been looked at and written for one program, in all of its loops."""

    def __init__(self, nodes: int) -> None:
        self.most = max(FEWEST_VALUES, VALUES_OF_NODE * nodes)
        self.values = 0

    def add_one(self) -> None:
        """One more value; raises `TooLarge` where there are too many."""
        self.values += 1
        if self.values > self.most:
            raise TooLarge(f"its loops compute more than {self.most:,} values")
