"""Live views for notebooks; needs the extra `notebook` (ipywidgets, anywidget).

Raises:
    MissingPartError: on import, when the extra is not installed.
"""

from mirage_nb.errors import MissingPartError

try:
    from mirage_nb.widgets.explorer_view import ExplorerView
    from mirage_nb.widgets.session_view import SessionView
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("IPython", "anywidget", "ipywidgets", "traitlets"):
        raise
    raise MissingPartError(f"the live view needs {error.name}", hint="pip install 'mirage-nb[notebook]'") from error

__all__ = ["ExplorerView", "SessionView"]
