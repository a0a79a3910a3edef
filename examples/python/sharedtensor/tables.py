"""Tables for people: fixed columns in a terminal, HTML in a notebook. What peers sent is shown without control
characters."""

from __future__ import annotations

import html
import shutil
import time
from collections.abc import Sequence

_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]


def size(nbytes: int) -> str:
    """Returns bytes as people read them: 768 B, 1.5 GiB."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{nbytes} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(since: int) -> str:
    """Returns how long ago a time in nanoseconds since 1970 was: 12s, 3m, 2h, 5d; "-" for 0."""
    if not since:
        return "-"
    seconds = max(time.time() - since / 1e9, 0)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)}{name}"
    return f"{int(seconds // 86400)}d"


def clean(text: str) -> str:
    """Returns a text with what moves the cursor, colours or rings written out, so that a peer's words cannot do that
    to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Table:
    """Rows under headings. `str` of it fits the terminal's width; a notebook shows HTML.

    :ivar rows: texts, as many as there are columns.
    """

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
        self.columns = list(columns)
        self.rows = [[clean(cell) for cell in row] for row in rows]
        self.title = title

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.text(shutil.get_terminal_size((120, 24)).columns)

    def text(self, width: int) -> str:
        """Returns the table in at most `width` columns of text; the widest column is cut where it does not fit."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 8:
            widths[widths.index(max(widths))] -= 1
        return "\n".join(
            "  ".join(_fit(cell, w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in self.rows)
        caption = f"<caption>{html.escape(clean(self.title))}</caption>" if self.title else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _fit(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else cell[: width - 1] + "…"
