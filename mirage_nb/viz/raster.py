"""A picture as PNG, for readers that take SVG out: notebooks that nobody has trusted yet, mail, issue trackers.

In: an SVG of this room. Out: PNG on white, in the light colours. Needs resvg, which comes with the extra `notebook`;
without it there is no PNG, and nothing else changes.
"""

from __future__ import annotations

import base64
import re
from functools import lru_cache

from mirage_nb.viz.svg import STYLE

KNOWN = 8
"""Pictures that are remembered: a notebook's output has one by its type and one inside its HTML."""
ZOOM = 1.5
"""Pixels per unit: text stays sharp on fine screens."""
_VARIABLE = re.compile(r"var\((--[\w-]+)(?:,((?:[^()]|\([^()]*\))*))?\)")
_MIX = re.compile(r"color-mix\(in srgb,#([0-9a-f]+) ([\d.]+)%,(?:#([0-9a-f]+)|transparent)\)")
_LIGHT = dict(re.findall(r"(--mir-[\w-]+):([^;}]+)", STYLE.partition("@media")[0]))


@lru_cache(maxsize=KNOWN)
def png(svg: str) -> bytes | None:
    """The picture, or None without resvg."""
    try:
        import resvg_py
    except ImportError:
        return None
    return bytes(resvg_py.svg_to_bytes(svg_string=resolved(svg), background="#ffffff", zoom=ZOOM))


def resolved(svg: str) -> str:
    """The same picture without CSS variables, mixed colours and media queries, which only pages know: variables have
    their light values, or what stands behind them."""
    text = re.sub(r"@media[^{]*\{(?:[^{}]|\{[^{}]*\})*\}", "", svg)
    text = re.sub(r"--[\w-]+:[^;}]+;?", "", text)
    while (found := _VARIABLE.search(text)) is not None:
        value = str(_LIGHT.get(found[1], found[2] or "none"))
        text = text[: found.start()] + value + text[found.end() :]
    return _MIX.sub(_mixed, text)


def _mixed(found: re.Match[str]) -> str:
    """A mixture of two colours, or of one and nothing."""
    share, (one, other) = float(found[2]) / 100, (_parts(found[1]), _parts(found[3] or "000"))
    if found[3] is None:
        return f"rgba({','.join(map(str, one))},{share:g})"
    return f"rgb({','.join(str(round(share * a + (1 - share) * b)) for a, b in zip(one, other, strict=True))})"


def _parts(colour: str) -> list[int]:
    """Red, green and blue of three or six digits."""
    wide = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
    return [int(wide[n : n + 2], 16) for n in (0, 2, 4)]


def png_bundle(svg: str) -> dict[str, str]:
    """A picture as PNG by its MIME type; empty where it cannot be made."""
    made = png(svg)
    return {"image/png": base64.b64encode(made).decode("ascii")} if made is not None else {}


def trusted_only(body: str) -> str:
    """HTML that hides where a page takes styles and SVG out of what it does not trust: what it leaves of a picture are
    its words. `STYLE` shows it, and it goes with the rest."""
    return f"<figure class='mir-trusted' hidden='hidden'>{body}</figure>"  # empty attributes go as well


def with_png(body: str, svg: str) -> str:
    """HTML, and the picture `svg` as PNG, which shows where a page takes styles and SVG out. Both bring `STYLE`; where
    no PNG can be made, the HTML as it is."""
    made = png_bundle(svg).get("image/png")
    picture = f"<img class='mir-instead' alt='the picture' src='data:image/png;base64,{made}'>"
    return trusted_only(body) + picture if made else body
