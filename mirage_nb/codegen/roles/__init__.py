"""How programs whose warps have roles are printed, statement by statement, through the device library."""
