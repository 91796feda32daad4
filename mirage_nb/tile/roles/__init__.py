"""Programs whose warps have roles: `program` says what one is, `validate` (by `flow`, `shape`, `flight`, `marks` and
`registers`) which are legal, `run` what they compute, `price` what they take."""
