"""Tile programs: roles, tiles, pipelines and instruction tiles, between plans and CUDA.

The way through: `roles` has programs whose warps have roles, `staged` those whose tiles pass through shared memory,
`resident` those that keep them in registers; each says what a `program` is, what one computes (`run`), which are legal
(`validate`). `instructions` is what multiplies, `rules` what planner and ranking share. `places`: where things lie
along axes; `index`: arithmetic of that; `lines`: the text form; `machine`: what programs that run share; `planned`: a
program beside the block that it was planned of.
"""
