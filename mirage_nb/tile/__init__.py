"""Tile programs: roles, tiles, pipelines and instruction tiles, between plans and CUDA.

The way through: `program` says what one is and `text` how it is written, `validate` (by `flow`, `places`, `flight`)
which are legal, `run` what they compute; of blocks whose tiles pass through shared memory `staged`, of those that keep
them in registers `resident`, each with a `_validate` and a `_run` on a `machine`. What multiplies: `instructions`, one
table, `texels`, where registers lie, and `texel_run`, what follows from it; `groups`, rows derived from the table;
`precision`, f32 of shorter products; `tessellation`, exact covers by several kinds; `schemes`, how roles share a tile;
`rates`, how fast each was. Rules that planner and ranking share: `sketch`, a block without extents, and on it
`placement`, `order`, `thread_graph`, `bodies`, `register_resident`, `rules`, `shared`.
"""
