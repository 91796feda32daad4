"""Boards: what of a search can be turned by hand besides its bounds: axioms, prunings, sizes and operators.

In: a session (its `switches` and `limits`, and what its `extend` takes), and what a form of the page sends. Out: HTML
of boxes and fields, and keywords of `extend` for what the reader changed. Invariant: what was not touched is not
named.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from mirage_nb.errors import OptionError
from mirage_nb.search import AXIOMS, OPERATORS, PRUNINGS, Limits, Switch

SWITCHES: Mapping[str, Mapping[str, Switch]] = {"axioms": AXIOMS, "prunings": PRUNINGS}
"""What can be on or off, by the keyword of the session's method."""
RANGES = {"blocks": "blocks", "loop": "for-loop range"}
MARK = "boards"
"""A field that says that boards were on the form: boxes that are not checked do not travel."""


def state(session: Any) -> tuple[dict[str, bool], Limits | None]:
    """What is on and off, and the limits."""
    return dict(getattr(session, "switches", {})), getattr(session, "limits", None)


def boards_html(session: Any) -> str:
    """One panel for each thing that `extend` takes; empty for a session that takes none."""
    taken = _taken(session)
    switches, limits = state(session)
    panels = [_switchboard(keyword, SWITCHES[keyword], switches) for keyword in SWITCHES if keyword in taken]
    if "limits" in taken and limits is not None:
        panels += [_sizes(limits), _operators(limits)]
    return (
        f"<input type='hidden' name='{MARK}' value='1'><div class='mir-boards'>{''.join(panels)}</div>"
        if panels
        else ""
    )


def turned(session: Any, content: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """The keywords of what the reader changed, and the changes in words. Raises OptionError."""
    found: dict[str, Any] = {}
    words: list[str] = []
    if not content.get(MARK):
        return found, words
    taken = _taken(session)
    switches, limits = state(session)
    for keyword in (keyword for keyword in SWITCHES if keyword in taken):
        asked = {s.name: f"{keyword}.{s.name}" in content for s in SWITCHES[keyword].values() if not s.fixed}
        changed = {name: on for name, on in asked.items() if on != switches.get(name, on)}
        if changed:
            found[keyword] = changed
            words += [f"{name} {'on' if on else 'off'}" for name, on in changed.items()]
    if "limits" in taken and limits is not None:
        wanted = _read_limits(content)
        wanted.check()
        if wanted != limits:
            found["limits"] = wanted
            words += wanted.sentences() or ("no limits of sizes and operators",)
    return found, words


def _taken(session: Any) -> Iterable[str]:
    extend = getattr(session, "extend", None)
    return inspect.signature(extend).parameters if callable(extend) else ()


def _read_limits(content: Mapping[str, object]) -> Limits:
    ranges = {
        name: (_number(content, f"{name}.least", 1) or 1, _number(content, f"{name}.most", None)) for name in RANGES
    }
    without = frozenset(name for name in OPERATORS if f"operators.{name}" not in content)
    dims = _number(content, "grid_dims", Limits().grid_dims)
    return Limits(Limits().grid_dims if dims is None else dims, ranges["blocks"], ranges["loop"], without)


def _number(content: Mapping[str, object], name: str, default: int | None) -> int | None:
    text = str(content.get(name, "")).strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"{name}: {text!r}", hint="give a whole number") from error


def _switchboard(keyword: str, table: Mapping[str, Switch], now: Mapping[str, bool]) -> str:
    boxes = "".join(_switch(keyword, switch, now.get(switch.name, False)) for switch in table.values())
    count = sum(now.get(name, False) for name in table)
    return _panel(
        keyword, f"{count} of {len(table)} on", f"<fieldset class='mir-board'>{_legend(keyword)}{boxes}</fieldset>"
    )


def _switch(keyword: str, switch: Switch, on: bool) -> str:
    says = f"{switch.says}; it cannot be switched off: {switch.fixed}" if switch.fixed else switch.says
    box = _box(f"{keyword}.{switch.name}", on, fixed=bool(switch.fixed))
    return f"<label title='{escape(says)}'>{box}<code>{switch.name}</code> <span>{escape(switch.says)}</span></label>"


def _sizes(limits: Limits) -> str:
    dims = _field("grid_dims", "grid dims, at most", str(limits.grid_dims), "0 to 3")
    rows = [f"<fieldset>{_legend('grid dims')}{dims}</fieldset>"]
    for name, label in RANGES.items():
        least, most = getattr(limits, name)
        fields = _field(f"{name}.least", f"{label} from", "" if least == 1 else str(least), "1")
        fields += _field(f"{name}.most", "to", "" if most is None else str(most), "no limit")
        rows.append(f"<fieldset>{_legend(label)}{fields}</fieldset>")
    said = [s for s in limits.sentences() if not s.endswith("allowed")]
    return _panel("grid and loop", ", ".join(said) or "whatever fits", f"<div class='mir-sizes'>{''.join(rows)}</div>")


def _operators(limits: Limits) -> str:
    boxes = "".join(
        f"<label>{_box(f'operators.{name}', name not in limits.without)}<code>{name}</code></label>"
        for name in OPERATORS
    )
    count = f"{len(OPERATORS) - len(limits.without)} of {len(OPERATORS)} allowed"
    board = f"<fieldset class='mir-board mir-many'>{_legend('operators')}{boxes}</fieldset>"
    return _panel("operators", count, board)


def _panel(name: str, now: str, body: str) -> str:
    return f"<details data-branch='board {name}'><summary>{name} <span>{escape(now)}</span></summary>{body}</details>"


def _legend(words: str) -> str:
    return f"<legend class='mir-unseen'>{words}</legend>"


def _box(name: str, on: bool, fixed: bool = False) -> str:
    return f"<input type='checkbox' name='{name}'{' checked' * on}{' disabled' * fixed}>"


def _field(name: str, label: str, now: str, hint: str) -> str:
    return f"<label>{label} <input type='number' min='0' name='{name}' value='{now}' placeholder='{hint}'></label>"
