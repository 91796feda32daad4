"""Indices: which parts of a tensor, or of several, an expression in [ ] reads, and what writing there makes.

In: the syntax of x[...] and what x stands for. Out: results. Invariant: which elements are read or written is known
while the program is read, but where a mask chooses them.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Sequence

from mirage_nb.errors import ProgramSyntaxError, ShapeError
from mirage_nb.lang import sequences
from mirage_nb.lang.arguments import Arguments, count, meant
from mirage_nb.lang.builder import Builder, Extremes, Infinity, Nothing, Picked, Result, Term, Value, Whole, is_tensor
from mirage_nb.lang.elements import picked_together
from mirage_nb.lang.functions import OPERATORS
from mirage_nb.lang.lowering import is_mask
from mirage_nb.lang.masks import is_table, of_places, table, take, where
from mirage_nb.lang.names import AT
from mirage_nb.lang.picked import FOLDS, each, folded, wholes
from mirage_nb.lang.picked import picked as taken
from mirage_nb.lang.signature import Function, Operator
from mirage_nb.lang.views import NEW_AXIS, Item, Range, indexed, reshaped
from mirage_nb.lang.writes import written

_WRITTEN = "what is written has the extents of the part, or 1; a number fills it"
_MASKED = "what is written where a mask holds is a number, or has the extents of the whole"


class Subscripts(Arguments):
    """Reads indices."""

    _ahead: dict[ast.expr, Result]

    @abstractmethod
    def combined(self, node: ast.expr, op: ast.operator, left: Result, right: Result) -> Result:
        """What an operator makes of two results."""

    def of_each(
        self, node: ast.expr, row: Function | Operator, operands: Sequence[Result], sides: Sequence[ast.expr]
    ) -> Result:
        """A function of elements that a mask takes."""
        plain, mask = self.settled(node, wholes, self.builder, operands)
        made = self.lowered(node, row.shape, row.lower, *map(self.term_of, plain, sides))
        picked: Picked = self.settled(node, each, self.builder, made, plain, mask)
        return picked

    def of_picked(self, node: ast.Call, function: Function, found: Picked, nodes: list[ast.expr]) -> Result:
        """A function of elements that a mask takes."""
        if function.name not in FOLDS:
            given = [found, *map(self.result, nodes[1:])]
            made, mask = self.settled(node, wholes, self.builder, given)
            self._ahead.update(zip(nodes, made, strict=True))
            values = self.arguments(node, function, nodes[0] if len(nodes) > len(node.args) else None, True)
            result = self.lowered(node, function.shape, function.lower, *values)
            picked: Picked = self.settled(node, each, self.builder, result, made, mask)
            return picked
        words = {meant(k.arg or "", ("axis",)): self.result(k.value) for k in node.keywords}
        axes = [*map(self.result, nodes[1:]), *words.values()]
        if len(axes) > 1 or {*words} - {"axis"}:
            self.lowered(node, "", Builder.tensor_of, found, "")
        return self.lowered(node, "", folded, function.name, found, *(axes or [Nothing()]))

    def size(self, node: ast.Call, x: ast.expr) -> Result:
        """x.size() and x.size(-1)."""
        shape = self.lowered(node, "", sequences.PROPERTIES["shape"], self.result(x))
        assert isinstance(shape, tuple)
        return shape[self._axis(self.result(node.args[0]), node.args[0], len(shape))] if node.args else shape

    def subscript(self, node: ast.Subscript, found: Result, index: ast.expr) -> Result:
        """x[...]: one of several tensors, or parts of a tensor."""
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        if isinstance(found, tuple) and (len(items) == 1 or not isinstance(found, Extremes)):
            at = slice(*self._bounds(index)) if isinstance(index, ast.Slice) else self.result(index)
            return self.settled(index, sequences.indexed, self.builder, found, at)  # type: ignore[no-any-return]
        row = OPERATORS[ast.Subscript]
        value = self.lowered(node, row.shape, Builder.tensor_of, found, "an index")
        assert is_tensor(value)
        picked = None if isinstance(index, ast.Tuple | ast.Slice | ast.Constant) else self.result(index)
        together = picked if isinstance(picked, tuple) and not isinstance(index, ast.List) else ()
        if len(together) > 1 and all(map(is_table, together)):
            places = [self.settled(index, table, self.builder, one) for one in together]
            return self.lowered(node, row.shape, picked_together, value, places)
        if is_tensor(picked):
            if is_mask(self.builder, picked) and not isinstance(picked, Whole):
                return self.lowered(node, row.shape, taken, value, picked)
            return self.lowered(node, row.shape, of_places(take), value, picked, 0)
        first, several = _between_slices(items)
        if len(several) > 1 and not any(isinstance(item, ast.Slice | ast.Constant | ast.UnaryOp) for item in several):
            picks = [self.settled(item, table, self.builder, self.result(item)) for item in several]
            if all(map(is_tensor, picks)):
                around = [i if isinstance(i, ast.Slice) else ast.copy_location(ast.Slice(), i) for i in items]
                parts = self._items(node, [*around], len(self.builder.shape(value)))
                held = self.lowered(node, "", indexed, value, parts)
                return self.lowered(node, row.shape, picked_together, held, picks, first)
        place, chosen = self._picking(items)
        if chosen is not None:
            items = [*items[:place], ast.copy_location(ast.Slice(), items[place]), *items[place + 1 :]]
        parts = self._items(node, items, len(self.builder.shape(value)))
        made = self.lowered(node, row.shape, row.lower, value, parts)
        if chosen is None or not is_tensor(made):
            return made
        dots = any(isinstance(item, ast.Constant) and item.value is ... for item in items[:place])
        axis = place + len(self.builder.shape(made)) - len(items) if dots else place
        return self.lowered(node, row.shape, of_places(take), made, chosen, axis)

    def _picking(self, items: Sequence[ast.expr]) -> tuple[int, Value | None]:
        """Which of several items is a tensor of places, where all others are slices, ... or None; and that tensor."""
        fixed = [isinstance(item, ast.Slice | ast.Constant) or self._is_new_axis(item) for item in items]
        whole = any(isinstance(item, ast.Constant) and isinstance(item.value, int) for item in items)
        if len(items) < 2 or fixed.count(False) != 1 or whole:
            return 0, None
        at = fixed.index(False)
        found = self._ahead[items[at]] = self.result(items[at])
        if not is_tensor(found) or (is_mask(self.builder, found) and not isinstance(found, Whole)):
            return 0, None
        del self._ahead[items[at]]
        return at, found

    def written(self, target: ast.Subscript, new: Result, op: ast.operator | None = None) -> Result:
        """What x is once new is x[...], or x[...] op new with an operator."""
        found, index = self.result(target.value), target.slice
        items = index.elts if isinstance(index, ast.Tuple) else [index]
        if isinstance(found, tuple) and not isinstance(found, Extremes) and len(items) == 1:
            held = self.subscript(target, found, index) if op is not None else new
            new = new if op is None else self.combined(target, op, held, new)
            return self.settled(index, sequences.replaced, found, self.result(index), new)  # type: ignore[no-any-return]
        x = self.lowered(target, "", Builder.tensor_of, found, "an index")
        assert is_tensor(x)
        if len(items) == 1 and not isinstance(index, ast.Slice | ast.Constant) and is_tensor(at := self.result(index)):
            if not is_mask(self.builder, at):
                hint = "indices are integer constants; where(one_hot(i, n) > 0, new, x) writes at places that are given"
                raise ProgramSyntaxError("this part depends on values", hint=hint, span=self.source.of(index))
            if op is not None:
                new = self.combined(target, op, Picked(x, at) if isinstance(new, Picked) else x, new)
            if isinstance(new, Picked) and new.mask == at:
                new = new.whole
            spread = self.builder.shape(at) + (1,) * (len(self.builder.shape(x)) - len(self.builder.shape(at)))
            mask = reshaped(self.builder, at, spread)
            return self.lowered(target, _MASKED, where, mask, self._choice(new, target), x)
        parts = self._items(target, items, len(self.builder.shape(x)))
        if op is not None:
            held = self.lowered(target, "", indexed, x, parts)
            new = self.combined(target, op, held, new)
        return self.lowered(target, _WRITTEN, written, x, parts, self._choice(new, target))

    def at(self, node: ast.Call, target: ast.Subscript, name: str) -> Result:
        """x.at[...].set(y), and with .add, .multiply and others what NumPy does with +=, *=."""
        if name not in AT or len(node.args) != 1:
            hint = f"write x.at[:, 0].set(y); there are {', '.join(AT)}"
            raise ProgramSyntaxError(f"there is no .at[...].{name} of this", hint=hint, span=self.source.of(node))
        return self.written(target, self.result(node.args[0]), AT[name])

    def _choice(self, new: Result, node: ast.expr) -> Term | Infinity:
        return new if isinstance(new, Infinity) else self.term_of(new, node)

    def _items(self, node: ast.Subscript, items: list[ast.expr], rank: int) -> list[Item]:
        """The items of an index into a tensor of so many dimensions, `...` written out."""
        items = [ast.copy_location(ast.Constant(None), i) if self._is_new_axis(i) else i for i in items]
        dots = [item for item in items if isinstance(item, ast.Constant) and item.value is ...]
        held = len(items) - len(dots) - sum(isinstance(item, ast.Constant) and item.value is None for item in items)
        if len(dots) > 1:
            hint = "it stands for all other dimensions"
            raise ProgramSyntaxError("... stands twice", hint=hint, span=self.source.of(dots[1]))
        if held > rank:
            message = f"an index of {held} for {count(rank, 'dimension')}"
            hint = "one for each dimension; None makes a new one"
            raise ShapeError(message, hint=hint, span=self.source.of(node))
        parts: list[Item] = []
        for item in items:
            match item:
                case ast.Constant(value=None):
                    parts.append(NEW_AXIS)
                case ast.Constant() if item in dots:
                    parts += [Range(None, None, None)] * (rank - held)
                case ast.Slice():
                    parts.append(self._range(item))
                case _:
                    found = self.result(item)
                    if is_tensor(found) and is_mask(self.builder, found):
                        self.lowered(item, "", Builder.tensor_of, Picked(found, found), "")
                    several = found if isinstance(found, tuple) else (found,)
                    places = tuple(self.index(one, item, "an index") for one in several)
                    parts.append(places if several is found else places[0])
        if any(isinstance(part, tuple) for part in parts) and sum(isinstance(p, int | tuple) for p in parts) > 1:
            hint = "one after the other: x[0][:, [1, 2]]"
            raise ShapeError("a list of places stands beside another index", hint=hint, span=self.source.of(node))
        return parts

    def _is_new_axis(self, item: ast.expr) -> bool:
        """Whether an item is np.newaxis."""
        return isinstance(item, ast.Attribute) and item.attr == "newaxis" and self.family(item.value) is not None

    def _range(self, node: ast.Slice) -> Range:
        return Range(*self._bounds(node))

    def _bounds(self, node: ast.Slice) -> tuple[int | None, int | None, int | None]:
        nodes = (node.lower, node.upper, node.step)
        given = (None if isinstance(one, ast.Constant) and one.value is None else one for one in nodes)
        first, last, step = (None if one is None else self.index(self.term(one), one, "a bound") for one in given)
        if step == 0:
            raise ShapeError("a step of 0", hint="steps are 1, 2, ..., or negative", span=self.source.of(node))
        return first, last, step


def _between_slices(items: list[ast.expr]) -> tuple[int, list[ast.expr]]:
    """How many slices stand in front of other items, and what stands between these and slices behind it."""
    other = [place for place, item in enumerate(items) if not isinstance(item, ast.Slice)]
    return (other[0], items[other[0] : other[-1] + 1]) if other else (0, [])
