"""Calls of functions of the language from elsewhere: of what PyTorch's operators are that programs know by name.

In: a program under construction, the name of a function, its arguments. Out: what a call of it stands for in a program.
Invariant: it is what the same call in the text of a program becomes; errors are told at the builder's place.
"""

from __future__ import annotations

import ast

from mirage_nb.errors import SourceSpan
from mirage_nb.lang.bindings import Binding
from mirage_nb.lang.builder import Builder, Result, Text
from mirage_nb.lang.source import Within
from mirage_nb.lang.statements import Statements


def call(builder: Builder, name: str, *given: Result, **named: Result) -> Result:
    """`torch.name(*given, **named)`. Raises MirageError where a program may not call it so."""
    place = builder.place or SourceSpan(1, 1, len(name), name)
    reader = Statements(Within((place.text,) * place.line, 0, place), ast.Module([], []), {}, builder)
    values = {**{f"x{n}": value for n, value in enumerate(given)}, **named}
    for key, value in values.items():
        reader.expressions.bindings[key] = Binding(key, value, place, memory=None)
    keywords = [ast.keyword(key, ast.Name(key)) for key in named]
    arguments: list[ast.expr] = [  # texts stand where they are read, as names of what they are do not
        ast.Constant(value.value) if isinstance(value, Text) else ast.Name(f"x{n}") for n, value in enumerate(given)
    ]
    try:
        return reader.expressions.result(ast.Call(ast.Attribute(ast.Name("torch"), name), arguments, keywords))
    finally:
        builder.place = place
