"""What a role stores that folds columns behind its products: values with rows only beside those with columns.

In: the statements behind the last fold, what was defined in front of them. Out: what has rows only computed and stored
where it lies, by one lane of each row; the others as they are without folds (`values`), which take what was folded
from registers. Invariant: a value with columns is no more than an expression, so it is said anew to who stores it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mirage_nb.codegen.roles.registers import Defined, RegisterText
from mirage_nb.codegen.roles.values import ValueText
from mirage_nb.tile.roles.program import Map, Reduce, Store


@dataclass(slots=True)
class BehindText:
    """Writes it. values: what is computed, in order, and not written yet; stores: what is stored."""

    registers: RegisterText
    values: tuple[Defined, ...]
    stores: tuple[Store, ...]

    def __post_init__(self) -> None:
        self.registers.defined.update({made.name: made for made in self.values})

    @property
    def folds(self) -> bool:
        """Whether anything has rows only, or was computed in front of this."""
        known, written = self.registers.defined, {made.name for made in self.values}
        read = {name for made in self.values for name in _operands(made)} | {store.value for store in self.stores}
        return bool((read & known.keys()) - written) or any(self.registers.of_rows(s.value) for s in self.stores)

    def emit(self) -> None:
        """All of it."""
        registers = self.registers
        known = registers.defined
        rows = {name for name in known if registers.of_rows(name)}
        alone = [store for store in self.stores if registers.of_rows(store.value)]
        others = [store for store in self.stores if store not in alone]
        whole = self._needed([store.value for store in others], rows)
        first = self._needed([name for name in rows if name in whole] + [store.value for store in alone])
        for made in self.values:
            if made.name in first:
                registers.write(made)
        for store in alone:
            registers.store(store)
        if others:
            statements = [made for name, made in known.items() if name in whole - rows]
            said = tuple(s for s in statements if not isinstance(s, Reduce))
            with registers.out.block():  # what is read of a number may be called as it was for the folds
                ValueText(registers.out, registers.program, (*said, *others), registers.ends, frozenset(rows)).emit()

    def _needed(self, names: Iterable[str], known: Iterable[str] = ()) -> set[str]:
        """What is computed for these values, they and what is known included, but nothing of what that is made of."""
        found, waiting = set[str](), [*names]
        while waiting:
            name = waiting.pop()
            if name in found or name not in self.registers.defined:
                continue
            found.add(name)
            waiting += () if name in known else _operands(self.registers.defined[name])
        return found


def _operands(made: Defined) -> tuple[str, ...]:
    match made:
        case Map():
            return made.operands
        case Reduce():
            return (made.operand,)
        case _:
            return ()
