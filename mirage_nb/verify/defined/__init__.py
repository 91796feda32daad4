"""What "equal" means, and where a program and its candidate are defined."""
