"""Rules that the planner asks with numbers and the ranking with arrays: of a `sketch`, a block without its extents,
where values live, what runs when, how loop bodies stay with warps; of extents, how tensors lie in shared memory, how
tiles travel and how warps share a product. `products` and `attention` say what makes a block one whose warps have
roles, `teams` how such a block is cut."""
