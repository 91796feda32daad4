"""SVG elements as strings, the width of text without a font, and the colours of all pictures.

Colours are CSS variables: the theme of VS Code or JupyterLab where there is one, else the reader's scheme. The
accents are mid tones of the Okabe and Ito palette, told apart by colour-blind readers and legible on light
and on dark grounds; every colour comes with a word or a place that says the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

CHARACTER = 0.615
"""Widest advance of the usual monospaced fonts, in units of the font size."""

# VS Code stands first: it defines some of Jupyter's variables as well, in light colours under any theme.
_THEME = """
--mir-fg:var(--vscode-editor-foreground,var(--jp-content-font-color1,{fg}));
--mir-soft:var(--vscode-descriptionForeground,var(--jp-content-font-color2,{soft}));
--mir-ground:var(--vscode-editor-background,var(--jp-layout-color1,{ground}));
--mir-line:var(--vscode-panel-border,var(--jp-border-color1,{line}));
--mir-word:var(--jp-mirror-editor-keyword-color,{word});--mir-number:var(--jp-mirror-editor-number-color,{number});
""".strip()
_LIGHT = _THEME.format(fg="#1f2328", soft="#57606a", ground="#fff", line="#b6bec8", word="#0b5a8a", number="#94450a")
_DARK = _THEME.format(fg="#e6e6e6", soft="#a8b0b8", ground="#16181c", line="#4a525c", word="#7cc4f0", number="#f0a070")
STYLE = (
    """
.mir{--mir-light;
--mir-kernel:#0072b2;--mir-block:#009e73;--mir-thread:#c0629a;--mir-loop:#d55e00;
--mir-kept:#009e73;--mir-merged:#56b4e9;--mir-types:#8f8f8f;--mir-expression:#d55e00;
--mir-canonical:#e69f00;--mir-shift:#cc79a7;
font-family:var(--jp-code-font-family,ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace)}
@media (prefers-color-scheme:dark){.mir{--mir-dark}}
.mir-trusted[hidden]{display:block!important;margin:0}
.mir-instead{display:none!important}
.mir text{fill:var(--mir-fg);stroke:none}
.mir .soft{fill:var(--mir-soft)}
.mir .edge{fill:none;stroke:var(--mir-soft);stroke-width:1.2}
.mir .tip{fill:var(--mir-soft);stroke:none}
.mir .op{fill:var(--mir-ground);stroke:var(--mir-fg);stroke-width:1.1}
.mir .level{fill-opacity:.05;stroke-width:1.4}
.mir .bar{fill-opacity:.16;stroke:none}
.mir .loop{fill:var(--mir-loop);fill-opacity:.07;stroke:var(--mir-loop);stroke-width:1.4;stroke-dasharray:6 4}
.mir .kernel{fill:var(--mir-kernel);stroke:var(--mir-kernel)}
.mir .block{fill:var(--mir-block);stroke:var(--mir-block)}
.mir .thread{fill:var(--mir-thread);stroke:var(--mir-thread)}
.mir .pill{fill-opacity:.13;stroke-width:.8}
.mir .out{stroke-width:2}
.mir .chip{fill-opacity:.2;stroke-width:.9}
.mir .chip.grid{fill:var(--mir-block);stroke:var(--mir-block)}
.mir .chip.iteration{fill:var(--mir-loop);stroke:var(--mir-loop)}
""".strip()
    .replace("--mir-light;", _LIGHT)
    .replace("--mir-dark", _DARK)
)


def text_width(text: str, size: float) -> float:
    """An upper bound of the width in pixels in a monospaced font; symbols may come from a wider font."""
    return size * sum(CHARACTER if ord(c) < 0x250 else 1.0 for c in text)


def element(name: str, content: str | Iterable[str] = "", **attributes: object) -> str:
    """One element; `cls` stands for class, underscores in attribute names for hyphens."""
    shown = "".join(
        f' {"class" if key == "cls" else key.replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
    )
    inside = content if isinstance(content, str) else "".join(content)
    return f"<{name}{shown}>{inside}</{name}>" if inside else f"<{name}{shown}/>"


def rect(x: float, y: float, width: float, height: float, cls: str, radius: float = 4) -> str:
    """A rectangle with round corners."""
    return element("rect", x=x, y=y, width=width, height=height, rx=radius, cls=cls)


def label(text: str, x: float, y: float, size: float, *, cls: str = "", anchor: str = "start") -> str:
    """Text whose vertical middle is at y."""
    extra = {"cls": cls} if cls else {}
    shown = escape(text)
    return element("text", shown, x=x, y=y + size * 0.35, font_size=size, text_anchor=anchor, **extra)


def move(x: float, y: float, content: Iterable[str]) -> str:
    """A group shifted by (x, y)."""
    return element("g", content, transform=f"translate({_number(x)} {_number(y)})")


def document(width: float, height: float, summary: str, content: Iterable[str], style: str = "") -> str:
    """A whole picture that stands on its own: as a file, in a page, or in a notebook."""
    return element(
        "svg",
        (element("title", escape(summary)), element("style", STYLE + style), *content),
        xmlns="http://www.w3.org/2000/svg",
        cls="mir",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=summary,
        style="max-width:100%;height:auto",
    )


def framed(picture: str, name: str) -> str:
    """A picture that scrolls where it is too large, by keys, too."""
    return f"<div class='mir-picture' tabindex='0' role='group' aria-label='{escape(name)}'>{picture}</div>"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
