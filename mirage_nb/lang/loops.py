"""Loops within expressions, and what they make: sequences, results with names, texts.

In: syntax nodes. Out: results. Invariant: a loop goes over what is known while the program is read, once for each.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from mirage_nb.errors import ProgramSizeError, ProgramSyntaxError
from mirage_nb.lang import sequences
from mirage_nb.lang.arguments import Arguments
from mirage_nb.lang.bindings import Binding, Memory
from mirage_nb.lang.builder import Named, Nothing, Result, Text
from mirage_nb.lang.constants import Number
from mirage_nb.lang.limits import MAX_STATEMENTS


class Loops(Arguments):
    """Reads comprehensions and calls of Python's functions of sequences.

    `turns`: of all loops so far; `turning`: the loops within which the present expression stands.
    """

    bindings: ChainMap[str, Binding]
    reads: set[Binding]
    turns: int
    turning: int
    _ahead: dict[ast.expr, Result]

    @abstractmethod
    def truth(self, node: ast.expr) -> bool:
        """Whether a condition holds that is known while the program is read."""

    def sequence(self, node: ast.expr, found: Iterable[Result]) -> tuple[Result, ...]:
        made: tuple[Result, ...] = self.settled(node, sequences.sequence, found)
        return made

    def named(self, node: ast.expr, pairs: Sequence[Result]) -> Result:
        made: Result = self.settled(node, sequences.named, pairs)
        return made

    def shown(self, node: ast.expr) -> str:
        """A part of a text, or what stands in braces in it."""
        if not isinstance(node, ast.FormattedValue):
            return str(node.value) if isinstance(node, ast.Constant) else ""
        for inner in ast.walk(node):  # Python's parser says other places, or none
            if isinstance(inner, ast.Constant) and not isinstance(inner.value, str):
                inner.kind = repr(inner.value)
            ast.copy_location(inner, node)
        return told(self.result(node.value))

    def each_of(self, loops: Sequence[ast.comprehension], element: ast.expr) -> Iterator[Result]:
        """[x @ w for w in (A, B) if ...]: one for each."""
        if not loops:
            yield self.result(element)
            return
        outer, over, read = self.bindings, loops[0].iter, frozenset(self.reads)
        turns = self.settled(over, partial(sequences.elements, self.builder), self.result(over))
        inner = outer.new_child()  # one for all turns: a function that is made in one sees the last
        for turn in turns:
            self.turns += 1
            if self.turns > MAX_STATEMENTS:
                message = f"loops within expressions make more than {MAX_STATEMENTS:,} turns"
                raise ProgramSizeError(message, hint="a program is one kernel, or a few", span=self.source.of(over))
            self.bindings, self.turning = inner, self.turning + 1
            self.bind(loops[0].target, turn, read)
            if all(self.truth(test) for test in loops[0].ifs):
                yield from self.each_of(loops[1:], element)
            self.turning -= 1
        self.bindings = outer

    def bind(self, target: ast.expr, turn: Result, read: frozenset[Binding], whole: Memory | None = None) -> None:
        """Give a name, or several, what one turn of a loop is about; `read`: what the loop goes over, `whole`: the
        memory that has the elements."""
        if isinstance(target, ast.Name):
            place = self.source.of(target)
            self.bindings[target.id] = Binding(target.id, turn, place, read, memory=Memory(whole))
        elif isinstance(target, ast.Tuple) and isinstance(turn, tuple) and len(turn) == len(target.elts):
            for inner, part in zip(target.elts, turn, strict=True):
                self.bind(inner, part, read, whole)
        else:
            hint = "write for i in range(3):, or for i, w in enumerate((A, B)):"
            raise ProgramSyntaxError("a loop has one name", hint=hint, span=self.source.of(target))

    def mapped(self, node: ast.Call, function: ast.expr, over: ast.expr) -> Result:
        """map(f, (A, B)): f of each."""
        calls = []
        for turn in self.settled(over, partial(sequences.elements, self.builder), self.result(over)):
            calls.append(ast.copy_location(ast.Call(function, [self._standing(turn, over)], []), node))
        return self.sequence(node, map(self.result, calls))

    def spread(self, nodes: Sequence[ast.expr]) -> list[ast.expr]:
        """The nodes, those of *t written out."""
        made: list[ast.expr] = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                made.append(node)
                continue
            found = self.result(node.value)
            if not isinstance(found, tuple):
                raise self.foreign(node)
            made += [self._standing(one, node) for one in found]
        return made

    def spelled(self, keywords: Sequence[ast.keyword]) -> list[ast.keyword]:
        """The keywords, **d written out."""
        made: list[ast.keyword] = []
        for keyword in keywords:
            found = self.result(keyword.value) if keyword.arg is None else None
            if not isinstance(found, Named):
                made.append(keyword)
                continue
            for name, one in zip(found.names, found, strict=True):
                made.append(ast.copy_location(ast.keyword(name, self._standing(one, keyword.value)), keyword))
        return made

    def of_names(self, node: ast.Call) -> Result | None:
        """d.items(), d.keys(), d.values() and d.get("a", 1) of results that have names; None for any other call."""
        match node.func:
            case ast.Attribute(value=inner, attr="items" | "keys" | "values" | "get" as how) if not self.family(inner):
                found = self.result(inner)
                if not isinstance(found, Named):
                    self._ahead[inner] = found
                    return None
                names = tuple(map(Text, found.names))
                if how == "get":
                    name, *other = map(self.result, node.args)
                    return found[names.index(name)] if name in names else other[0] if other else Nothing()
                return {"keys": names, "values": tuple(found), "items": tuple(zip(names, found, strict=True))}[how]
        return None

    def _standing(self, found: Result, place: ast.expr) -> ast.expr:
        """A node that stands for what was read already, at the place where it was."""
        made = ast.copy_location(ast.Name(""), place)
        self._ahead[made] = found
        return made

    def folded(self, node: ast.Call, name: str) -> Result | None:
        """Python's own sum of a sequence, max and min of numbers; None where the call is of a tensor. What was read of
        the arguments is not read again."""
        nodes = [*node.args, *(k.value for k in node.keywords if k.arg == "start" and name == "sum")]
        given = tuple(self.result(argument) for argument in nodes)
        parts = given
        if given and isinstance(given[0], tuple) and len(given) <= 1 + (name == "sum"):
            parts = (*given[1:], *given[0])
        if len(nodes) < len(node.args) + len(node.keywords) or (
            parts is given and (len(given) < 2 or not all(isinstance(g, Number) for g in given))
        ):
            self._ahead.update(zip(nodes, given, strict=True))
            return None
        terms = [self.term_of(part, node) for part in parts]
        total: Result = terms[0] if terms else Number.of(name == "prod")
        for term in terms[1:]:
            total = self.lowered(node, "", sequences.FOLDED[name], total, term)
        return total


def told(found: Result) -> str:
    """What a text says of a constant, or of several."""
    if isinstance(found, tuple):
        return f"({', '.join(map(told, found))})"
    return found.value if isinstance(found, Text) else str(found) if isinstance(found, Number) else "a tensor"
