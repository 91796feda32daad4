"""mirage_nb: a superoptimizer for tensor programs that lives in a notebook."""
