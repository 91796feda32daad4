"""Programs of the language that nobody wrote: every function and operator of its tables, drawn by a seed.

In: a seed. Out: the text of a legal program, one to six statements over one to three inputs of ranks 0 to 5, extents of
1, primes and powers of two, any element types, one to three outputs. A statement that the language refuses is drawn
again. A function that the tables grow by is drawn from then on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from mirage_nb.errors import MirageError
from mirage_nb.ir import DType
from mirage_nb.lang import FUNCTIONS, parse
from mirage_nb.lang.signature import REST, Kind, Parameter

EXTENTS = (1, 1, 2, 2, 3, 4, 5, 7, 8, 8, 13, 16, 16, 17, 31, 32, 64)
MAX_ELEMENTS = 4096
NUMBERS = ("1", "2", "0.5", "-1", "3", "1/3", "0.125", "-0.75", "1e-3")
INFIX = ("+", "-", "*", "/", "+", "-", "*", "/", "@", "@")
LETTERS = ("ij,jk->ik", "ij->ji", "bij,bjk->bik", "i,j->ij", "bhqd,bhkd->bhqk", "ij,ij->i")
INDICES = ("0", "-1", "None", "...", "1:", ":-1", "::2", "::-1", ":")
TRIES = 12

Shapes = dict[str, tuple[int, ...]]


class _Drawing:
    """A program as far as it is drawn; `shapes` are those of its names."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.shapes: Shapes = {}
        self.legal = ""
        """The whole text, as it was when the last statement was taken."""

    def inputs(self) -> None:
        rng = self.rng
        shape = self._shape()
        dtypes = [t.value for t in DType]
        dtype = rng.choice(dtypes)
        for name in ("X", "Y", "W")[: rng.randint(1, 3)]:
            kept = rng.choice((shape, shape, shape[1:], shape[-1:], self._shape(), shape[:-2] + shape[:-3:-1]))
            self.shapes[name] = kept
            own = rng.choice((dtype, dtype, dtype, rng.choice(dtypes)))
            self.lines.append(f"{name}: {own}[{', '.join(map(str, kept))}]" if kept else f"{name}: {own}")

    def _shape(self) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5))
        found = [self.rng.choice(EXTENTS) for _ in range(rank)]
        while math.prod(found) > MAX_ELEMENTS:
            found[found.index(max(found))] = self.rng.choice((1, 2, 3, 4))
        return tuple(found)

    def name(self) -> str:
        return self.rng.choice(list(self.shapes)[-4:])

    def term(self) -> str:
        return self.name() if self.rng.random() < 0.7 else self.rng.choice(NUMBERS)

    def axis(self) -> str:
        return str(self.rng.randint(-2, 2))

    def expression(self) -> str:
        rng = self.rng
        way = rng.random()
        if way < 0.55:
            return self._call(rng.choice(list(FUNCTIONS)))
        if way < 0.85:
            return f"{self.term()} {rng.choice(INFIX)} {self.name()}"
        if way < 0.9:
            return f"{self.name()} ** {rng.choice(('2', '-1', '3', '0.5', '-0.5'))}"
        if way < 0.95:
            part = f"[{', '.join(rng.choice(INDICES) for _ in range(rng.randint(1, 3)))}]"
            written = f".at{part}.{rng.choice(('set', 'set', 'add', 'multiply'))}({self.term()})"
            return self.name() + rng.choice((part, written))
        compared = rng.choice((">=", "<", ">", "<=", "==", "!="))
        return f"where({self.name()} {compared} {self.term()}, {self.name()}, {rng.choice(('-inf', '0', self.term()))})"

    def _call(self, function: str) -> str:
        texts = []
        for parameter in FUNCTIONS[function].parameters:
            if parameter.default is not None and self.rng.random() < 0.5:
                if not parameter.keyword_only and self.rng.random() < 0.5:
                    break
                continue
            value = self._argument(parameter)
            if parameter.name == "index" or (function == "one_hot" and parameter.kind is Kind.TENSOR):
                value = f"floor({value})"
            named = parameter.keyword_only or (parameter.default is not None and parameter.kind not in REST)
            texts.append(f"{parameter.name}={value}" if named else value)
        return f"{function}({', '.join(texts)})"

    def _argument(self, parameter: Parameter) -> str:
        rng = self.rng
        ways: dict[Kind, Callable[[], str]] = {
            Kind.TENSOR: self.name,
            Kind.TENSORS: lambda: f"[{', '.join(self.name() for _ in range(rng.randint(1, 3)))}]",
            Kind.TERM: self.term,
            Kind.CHOICE: lambda: rng.choice((self.term(), "inf", "-inf")),
            Kind.NUMBER: lambda: rng.choice(NUMBERS),
            Kind.COUNT: lambda: str(rng.randint(0, 4)),
            Kind.COUNTS: lambda: rng.choice(("2", "[1, 2]", "1", "3")),
            Kind.AXIS: self.axis,
            Kind.NEW_AXIS: self.axis,
            Kind.AXES: lambda: rng.choice(("None", self.axis(), self.axis(), "(0, 1)", "(-1, -2)")),
            Kind.FLAG: lambda: rng.choice(("True", "True", "False")),
            Kind.TEXT: lambda: repr(rng.choice(LETTERS)).replace("'", '"'),
            Kind.REST_TENSORS: lambda: ", ".join(self.name() for _ in range(rng.randint(1, 2))),
            Kind.REST_AXES: lambda: ", ".join(map(str, rng.sample(range(3), rng.randint(2, 3)))),
            Kind.REST_EXTENTS: lambda: rng.choice(("-1", "2, -1", "-1, 2", "1, -1", "4, -1", "2, 2, -1")),
        }
        return ways[parameter.kind]()

    def grow(self, name: str) -> None:
        """One more statement, if one is drawn that the language takes."""
        for _ in range(TRIES):
            line = f"{name} = {self.expression()}"
            text = "\n".join([*self.lines, line, f"return {name}"])
            try:
                graph = parse(text).graph
            except MirageError:
                continue
            if max(t.elements for t in graph.types) <= MAX_ELEMENTS:
                self.legal = text
                self.lines.append(line)
                self.shapes[name] = graph.output_types[0].shape
                return


def program(seed: int) -> str:
    """The text of a legal program."""
    while True:
        drawing = _Drawing(seed)
        drawing.inputs()
        given = len(drawing.shapes)
        for number in range(drawing.rng.randint(1, 6)):
            drawing.grow(f"v{number}")
        made = list(drawing.shapes)[given:]
        outputs = [*made[-1:], *(name for name in made[:-1] if drawing.rng.random() < 0.2)][:3]
        text = "\n".join([*drawing.lines, f"return {', '.join(outputs)}"])
        try:
            if text != drawing.legal:
                parse(text)
        except MirageError:  # nothing was drawn, or what is returned is an input after all
            seed += 1_000_003
            continue
        return text
