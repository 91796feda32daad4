"""Programs whose tiles pass through shared memory: what one is, which are legal, and what they compute, on a
`machine`."""
