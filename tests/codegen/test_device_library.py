"""The two editions of the device library: the same names, the same meaning of each parameter, all of them tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirage_nb.runtime.compile import DEVICE_FOLDER, compile_cubin
from mirage_nb.runtime.emulate import CpuModule
from tests.device_cases import KERNELS

FUNCTION = re.compile(r"(?:constexpr )?MIRAGE_DEVICE ([\w:<>, ]*?[\w>&*]) ?\b(\w+)(?:<[^<>()]*>)?\(((?:[^()]|\([^()]*\))*)\)")
EDITIONS = ("cuda", "cpu")
HEAD = '#include "mirage_device.cuh"\nusing namespace mirage;\n'


def public_text(folder: str) -> str:
    """The headers of an edition without comments, namespaces for internal use, and macro definitions."""
    text = "\n".join(path.read_text() for path in sorted((DEVICE_FOLDER / folder).glob("*.cuh")))
    text = re.sub(r"//.*", "", text)
    text = re.sub(r"#define (?:.*\\\n)*.*", "", text)
    return re.sub(r"namespace (?:detail|mirage::cpu) \{.*?\n\}  ?", "", _mark_ends(text), flags=re.DOTALL)


def _mark_ends(text: str) -> str:
    return text


def functions(folder: str) -> dict[str, set[tuple[str, ...]]]:
    """Public function -> its parameter lists, as types; what carries the line of a call is left out."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for _, name, parameters in FUNCTION.findall(public_text(folder)):
        bare = re.sub(r"MIRAGE_SITE(_ALONE)?|,? ?int line\b", "", parameters)
        types = tuple(_type(p) for p in re.split(r",(?![^<(]*[>)])", bare) if p.strip())
        found.setdefault(name, set()).add(types)
    return found


def _type(parameter: str) -> str:
    """`const uint32_t (&a)[4]` -> `const uint32_t(&)[4]`: the name and the default value left out."""
    bare = re.sub(r"\s*=.*", "", parameter.strip())
    array = re.fullmatch(r"(.*?)\s*\(&(\w*)\)(\[.*\])", bare)
    if array:
        return f"{array[1]}(&){array[3]}"
    return re.sub(r"(?<=[\s*&])\w+$", "", bare).strip() if re.search(r"[\s*&]\w+$", bare) else bare
