"""Programs that keep their tiles in registers: what one is, which are legal, and what they compute."""
