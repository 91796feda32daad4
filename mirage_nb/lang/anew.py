"""A program that is said anew, operator by operator.

In: a builder and the outputs of its program. Out: what each value that they need becomes. Invariant: what has operands
that stay stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage_nb.ir.ops import OPS, Attrs, OpKind, Trait
from mirage_nb.lang.builder import Builder, Value


class Anew:
    """A program said anew: `made` is what each of its values becomes, `readers` are the operators that read it."""

    def __init__(self, b: Builder, outputs: Sequence[Value]) -> None:
        self.b, self.outputs = b, frozenset(outputs)
        self.values = b.needed(outputs)
        self.readers: dict[Value, list[Value]] = {value: [] for value in self.values}
        for value in self.values:
            for source in b.operands(value):
                self.readers[source].append(value)
        self.made: dict[Value, Value] = {}
        self.look()
        for value in self.values:
            b.place = b.place_of(value)
            self.made[value] = self.say(value)

    def look(self) -> None:
        """At the whole program, before it is said anew."""

    def say(self, value: Value) -> Value:
        """What a value becomes: its operator on what its operands became."""
        op, operands = self.b.definition(value), tuple(self.made[v] for v in self.b.operands(value))
        return value if op is None or operands == op.inputs else self.b.emit(op.kind, *operands, attrs=op.attrs)

    def kind(self, value: Value) -> OpKind | None:
        """Of the operator that makes a value."""
        op = self.b.definition(value)
        return None if op is None else op.kind

    def attrs(self, value: Value) -> Attrs | None:
        """Of that operator."""
        op = self.b.definition(value)
        return None if op is None else op.attrs

    def has(self, value: Value, *traits: Trait) -> bool:
        """Whether a value is of an operator with one of these traits."""
        op = self.b.definition(value)
        return op is not None and not OPS[op.kind].traits.isdisjoint(traits)
