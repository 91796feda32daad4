"""From verified candidates to a winner: compiled, tried on random and on hard inputs, timed, verified once more.

`runtime.passes` calls what is here: `on_card` with a GPU, `without_gpu` without one.
"""
