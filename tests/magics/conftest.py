"""`mirage_magics` is the installed name of the folder `magics`; uninstalled, it gets it here."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

if importlib.util.find_spec("mirage_magics") is None:
    folder = tempfile.mkdtemp(prefix="mirage_magics")
    os.symlink(Path(__file__).resolve().parents[2] / "magics", Path(folder) / "mirage_magics")
    sys.path.insert(0, folder)
