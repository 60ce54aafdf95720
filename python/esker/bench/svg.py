# SPDX-License-Identifier: MIT
"""Charts as SVG text: axes with round ticks, lines, bands, dots, bars.  Colours are CSS classes
(s0, s1, ... for series), so that a page decides how they look.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

Point = tuple[float, float]

_TICKS = 6  # about so many on an axis
_BOTTOM, _TOP, _RIGHT = 44, 12, 16


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round numbers between low and high: 1, 2, 5 times powers of ten."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps: tuple[int, ...] = (1, 2, 5) if len(powers) <= 4 else (1,)
        found = [step * 10.0**power for power in powers for step in steps]
        return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
    rough = (high - low) / _TICKS or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(s for s in (1, 2, 5, 10) if s * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    return f"{value:.10g}" if abs(value) < 1e6 else f"{value:.3g}"


class Chart:
    """One chart.  x and y are (low, high) in data; `rows` names replace the y axis, top down."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float] = (0, 1),
        *,
        x_label: str = "",
        y_label: str = "",
        log_x: bool = False,
        rows: Sequence[str] = (),
        width: int = 760,
        height: int = 270,
    ) -> None:
        self._x, self._y, self._log_x = x, y, log_x
        longest = max((len(name) for name in rows), default=0)
        self._left = 24 + 7 * longest if rows else 62
        self._width, self._height = width, 26 * len(rows) + _TOP + _BOTTOM if rows else height
        self._parts: list[str] = []
        if rows:
            self._y = (len(rows) - 0.5, -0.5)
        self._title = title
        self._axes(x_label, y_label, rows)

    def x(self, value: float) -> float:
        low, high = self._x
        if self._log_x:
            low, high, value = (math.log10(v) for v in (low, high, max(value, low / 10)))
        inner = self._width - self._left - _RIGHT
        return self._left + inner * (value - low) / ((high - low) or 1)

    def y(self, value: float) -> float:
        low, high = self._y
        inner = self._height - _TOP - _BOTTOM
        return _TOP + inner * (high - value) / ((high - low) or 1)

    def line(self, points: Sequence[Point], style: str) -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self._parts.append(f'<polyline class="line {style}" points="{path}"/>')

    def band(self, lower: Sequence[Point], upper: Sequence[Point], style: str) -> None:
        edge = [*lower, *reversed(upper)]
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in edge)
        self._parts.append(f'<polygon class="band {style}" points="{path}"/>')

    def dot(self, x: float, y: float, style: str, tip: str = "", radius: float = 3.5) -> None:
        body = f"<title>{escape(tip)}</title>" if tip else ""
        at = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius}"'
        self._parts.append(f'<circle class="dot {style}" {at}>{body}</circle>')

    def box(self, x0: float, x1: float, y0: float, y1: float, style: str, tip: str = "") -> None:
        left, right = sorted((self.x(x0), self.x(x1)))
        top, bottom = sorted((self.y(y0), self.y(y1)))
        size = f'width="{max(right - left, 0.5):.1f}" height="{max(bottom - top, 0.5):.1f}"'
        body = f"<title>{escape(tip)}</title>" if tip else ""
        at = f'x="{left:.1f}" y="{top:.1f}"'
        self._parts.append(f'<rect class="bar {style}" {at} {size}>{body}</rect>')

    def segment(self, a: Point, b: Point, style: str) -> None:
        ends = f'x1="{self.x(a[0]):.1f}" y1="{self.y(a[1]):.1f}"'
        ends += f' x2="{self.x(b[0]):.1f}" y2="{self.y(b[1]):.1f}"'
        self._parts.append(f'<line class="{style}" {ends}/>')

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", dx: int = 0, dy: int = 4
    ) -> None:
        at = f'x="{self.x(x) + dx:.1f}" y="{self.y(y) + dy:.1f}" text-anchor="{anchor}"'
        self._parts.append(f"<text {at}>{escape(words)}</text>")

    def render(self) -> str:
        size = f'viewBox="0 0 {self._width} {self._height}" width="{self._width}"'
        head = f'<svg role="img" aria-label="{escape(self._title, quote=True)}" {size}>'
        return head + "".join(self._parts) + "</svg>"

    def _axes(self, x_label: str, y_label: str, rows: Sequence[str]) -> None:
        bottom, right = self._height - _BOTTOM, self._width - _RIGHT
        for tick in ticks(*self._x, log=self._log_x):
            at = self.x(tick)
            self._parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
                f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{number(tick)}</text>'
            )
        for index, name in enumerate(rows):
            at = self.y(index) + 4
            self._parts.append(
                f'<text x="{self._left - 10}" y="{at:.1f}" text-anchor="end">{escape(name)}</text>'
            )
        for tick in () if rows else ticks(*self._y):
            at = self.y(tick)
            self._parts.append(
                f'<line class="grid" x1="{self._left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="{self._left - 8}" y="{at + 4:.1f}" text-anchor="end">'
                f"{number(tick)}</text>"
            )
        middle = (self._left + right) / 2
        self._parts.append(
            f'<text class="label" x="{middle:.1f}" y="{self._height - 6}" text-anchor="middle">'
            f"{escape(x_label)}</text>"
        )
        if y_label:
            turn = f"translate(14 {(_TOP + bottom) / 2:.1f}) rotate(-90)"
            self._parts.append(
                f'<text class="label" transform="{turn}" text-anchor="middle">'
                f"{escape(y_label)}</text>"
            )
