"""Tile programs: roles, tiles, pipelines and instruction tiles, between plans and CUDA (see `tile.program`)."""
