"""Verification: field trials with an error bound, and the floating-point gate (paper section 5)."""
