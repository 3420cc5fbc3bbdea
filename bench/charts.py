"""Draws tables as SVG that is readable on light and on dark pages: text and axes have the page's colour.

In a file of its own a chart follows the system's setting, by a style that the documentation site takes out.
"""

from __future__ import annotations

import io
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

_TEXT = "#010203"  # stands for the page's colour, which matplotlib does not know
_STYLE = '<style class="file">svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>'
_OURS = "#2f81f7"
_OTHERS = ("#d9822b", "#a371f7", "#3fb950", "#db61a2")
_FLOOR = "#8b949e"
_FLOORS = {"floor", "ceiling"}
_MARKERS = ("o", "s", "D", "^")
_INCH_A_ROW = 0.27
_INCH_A_PANEL, _ROOM_ABOVE = 1.35, 1.25
_WIDE = 100  # the axis has room for the powers of ten alone
_SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kafkafmt",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _TEXT,
    "axes.edgecolor": _TEXT,
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}

Cell = Mapping[str, Any]
TableJson = Mapping[str, Any]


@dataclass(frozen=True)
class Relative:
    """Each row's contenders beside ours, which is 1, on a logarithmic axis.

    ours: the column of ours; others: those of the contenders, by column, with the names to show. less_is_better: the
    figures are costs, and the chart shows their reciprocals. Tables that were written earlier may lack columns.
    older: the column of ours in these.
    """

    ours: str
    others: Mapping[str, str]
    less_is_better: bool = False
    older: str = ""

    def draw(self, table: TableJson) -> str:
        rows = [row for row in _named_rows(table) if self._compared(row)]
        others = {
            column: name for column, name in self.others.items() if self._is_drawn(column, table["columns"])
        }
        figure, axes = _figure(len(rows))
        for place, row in enumerate(rows):
            axes.axhline(place, color=_FLOOR, alpha=0.25, linewidth=0.6, zorder=0)
            axes.plot(1, place, "|", color=_OURS, markersize=12, markeredgewidth=3)
            for column, relative in self._compared(row).items():
                axes.plot(relative, place, **_marker(others[column], list(others).index(column)))
        axes.plot([], [], "|", color=_OURS, markersize=10, markeredgewidth=3, label="kafkafmt")
        for number, name in enumerate(others.values()):
            axes.plot([], [], label=name, **_marker(name, number))
        axes.axvline(1, color=_OURS, linewidth=0.8, alpha=0.6, zorder=0)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > _WIDE else (1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("← slower than kafkafmt\u00a0\u00a0\u00a0\u00a0\u00a0\u00a0faster than kafkafmt →")
        _name_rows(axes, [_label(row) for row in rows])
        axes.legend(
            loc="lower center", bbox_to_anchor=(0.3, 1.0), ncols=5, columnspacing=1.2, handletextpad=0.3
        )
        return _svg(figure)

    def _compared(self, row: Mapping[str, Cell]) -> dict[str, float]:
        ours = row[self._ours(row)].get("value")
        if not ours:
            return {}
        values = {column: row[column].get("value") for column in self.others if self._is_drawn(column, row)}
        return {
            column: ours / value if self.less_is_better else value / ours
            for column, value in values.items()
            if value
        }

    def _ours(self, columns: Container[str]) -> str:
        return self.ours if self.ours in columns else self.older

    def _is_drawn(self, column: str, columns: Container[str]) -> bool:
        return column in columns and column != self._ours(columns)


@dataclass(frozen=True)
class Bars:
    """One column as bars, with a line at the bound.

    ours: what the names of our own rows contain; outcome: a column whose text stands beside the bar.
    """

    column: str
    ours: str
    bound: float
    bound_name: str
    label: str
    outcome: str | None = None

    def draw(self, table: TableJson) -> str:
        rows = _named_rows(table)
        figure, axes = _figure(len(rows))
        for place, row in enumerate(rows):
            cell = row[self.column]
            colour = _OURS if self.ours in _name_of(row) else _OTHERS[0]
            axes.barh(place, cell["value"], height=0.6, color=colour)
            text = ", ".join([cell["text"], *([row[self.outcome]["text"]] if self.outcome else ())])
            end = max(cell["value"], self.bound)  # not across the line
            axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center")
        axes.axvline(self.bound, color=_TEXT, linewidth=1, linestyle="--")
        axes.annotate(
            self.bound_name, (self.bound, -0.6), (3, 3), textcoords="offset points", va="bottom", fontsize=8
        )
        axes.margins(x=0.25)
        axes.set_xlabel(self.label)
        _name_rows(axes, [_name_of(row) for row in rows])
        return _svg(figure)


@dataclass(frozen=True)
class Lines:
    """The table's series as lines. is_log: whether the x axis has powers of two."""

    x_label: str
    y_label: str
    is_log: bool = False
    bound: float | None = None
    bound_name: str = ""

    def draw(self, table: TableJson) -> str:
        figure, axes = _figure(12)
        colours = (_OURS, *_OTHERS)
        for colour, (name, points) in zip(colours, table["series"].items(), strict=False):
            style = {"marker": "o", "markersize": 4} if self.is_log else {}
            axes.plot([x for x, _ in points], [y for _, y in points], color=colour, label=name, **style)
        if self.is_log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if self.bound is not None:
            axes.axhline(self.bound, color=_TEXT, linewidth=1, linestyle="--")
            axes.annotate(self.bound_name, (0, self.bound), (3, 3), textcoords="offset points")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(self.x_label)
        axes.set_ylabel(self.y_label)
        axes.legend(loc="best")
        return _svg(figure)


@dataclass(frozen=True)
class Panel:
    """Some of the table's series on an axis of their own."""

    y_label: str
    series: Sequence[str]


@dataclass(frozen=True)
class Panels:
    """The table's series over the same x axis, in panels one above the other. Each panel begins at 0."""

    x_label: str
    panels: Sequence[Panel]

    def draw(self, table: TableJson) -> str:
        figure = _empty_figure(_INCH_A_PANEL * len(self.panels))
        all_axes = figure.subplots(len(self.panels), sharex=True)
        for panel, axes in zip(self.panels, all_axes, strict=True):
            axes.patch.set_alpha(0)
            for name, colour in zip(panel.series, (_OURS, *_OTHERS), strict=False):
                points = table["series"][name]
                axes.plot(
                    [x for x, _ in points], [y for _, y in points], color=colour, linewidth=1.2, label=name
                )
            values = (y for name in panel.series for _, y in table["series"][name])
            axes.set_ylim(0, max([1.0, *values]) * _ROOM_ABOVE)
            axes.set_ylabel(panel.y_label)
            axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
            axes.grid(axis="y", color=_FLOOR, alpha=0.25, linewidth=0.6)
            if len(panel.series) > 1:
                axes.legend(loc="upper right", ncols=len(panel.series), borderaxespad=0)
        all_axes[-1].set_xlim(left=0)
        all_axes[-1].set_xlabel(self.x_label)
        figure.align_ylabels()
        return _svg(figure)


Chart = Relative | Bars | Lines | Panels


def _named_rows(table: TableJson) -> list[dict[str, Cell]]:
    """Rows by column. Rows that vary the one above them, which are indented, are left out."""
    rows = (dict(zip(table["columns"], row, strict=True)) for row in table["rows"])
    return [row for row in rows if not next(iter(row.values()))["text"].startswith(" ")]


def _name_of(row: Mapping[str, Cell]) -> str:
    return str(next(iter(row.values()))["text"])


def _label(row: Mapping[str, Cell]) -> str:
    missed = "MISSED" in row.get("verdict", {"text": ""})["text"]
    return f"{_name_of(row)}{'  ✗' if missed else ''}"


def _marker(name: str, number: int) -> dict[str, Any]:
    if name in _FLOORS:
        return {"marker": "x", "color": _FLOOR, "linestyle": "", "markersize": 6, "markeredgewidth": 1.8}
    marker, colour = _MARKERS[number % len(_MARKERS)], _OTHERS[number % len(_OTHERS)]
    return {"marker": marker, "color": colour, "linestyle": "", "markersize": 5.5}


def _figure(rows: int) -> tuple[Figure, Axes]:
    figure = _empty_figure(0.9 + rows * _INCH_A_ROW)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    return figure, axes


def _empty_figure(height: float) -> Figure:
    """A figure without axes, of so many inches."""
    mpl.rcParams.update(_SETTINGS)
    figure = Figure(figsize=(7.6, height), layout="constrained")
    figure.patch.set_alpha(0)
    return figure


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.4, -0.6)


def _svg(figure: Figure) -> str:
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", written.getvalue(), flags=re.DOTALL)
    svg = svg.replace(_TEXT, "currentColor")
    lines = (line.rstrip() for line in re.sub(r"(<svg\b[^>]*>)", rf"\1{_STYLE}", svg, count=1).splitlines())
    return "\n".join(lines) + "\n"
