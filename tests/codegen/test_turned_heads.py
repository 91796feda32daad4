"""Attention whose heads lie side by side in its result: the kernel that it has where they lie one after the other."""

from __future__ import annotations

from mirage_nb.codegen import emit
from mirage_nb.ir import DType
from mirage_nb.lang import parse
from mirage_nb.search import EFFORTS, configurations, prepare
from mirage_nb.search.sizes.instantiate import sized
from mirage_nb.targets import TARGETS
from mirage_nb.tile.roles.program import Program
from tests.codegen.running import TOLERANCE, WAYS, draw, errors, run
from tests.search.explored import explored

H200 = TARGETS["h200"]
HEADS = """
Q: f16[2, 256, 64]
K: f16[2, 256, 64]
V: f16[2, 256, 64]
return transpose(softmax(Q @ transpose(K, 0, 2, 1)) @ V, 1, 0, 2)
"""


def test_heads_side_by_side_are_stored_by_roles() -> None:
    prepared, effort = prepare(parse(HEADS).graph), EFFORTS["quick"]
    keys = next(c for c in configurations(prepared, effort) if "loop over d" in c.label)
    (structure, *_) = explored(prepared, keys, effort).structures
    found = sized(structure, prepared, H200, {"grid b": 2, "grid a": 2, "loop d": 2})
    assert found is not None
    emitted, inputs = emit(found.graph, H200), draw(found.graph, scale=0.3)
    assert isinstance(emitted.programs[0].program, Program)
    for how in WAYS:
        outputs = run(emitted, inputs, **how)
        assert errors(found.graph, emitted, inputs, outputs)[0] < TOLERANCE[DType.F16]
