# SPDX-License-Identifier: MIT
"""Checks the numbers in Markdown files against the results that they name.

A number names its source in a comment that stands after it:

    3.4x <!-- result: bench/results/peer.json summary.pairs.decode_rate.median -->

or a comment above a table names the sources of its columns (docs/results.md has the rules).  The
number must be the figure at the precision printed, and the words around it must not say otherwise.
A number that looks like a claim of performance and names no source is unsupported, unless
`<!-- no result: REASON -->` stands in its block or alone above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .audit import Verdict, audit_file
from .fields import Figure, NoFigure, all_figures, contradiction, find_figure
from .markdown import (
    Block,
    Cell,
    Comment,
    Document,
    Quantity,
    quantities,
    spelled_claims,
    unit_of_words,
)

SUPPORTED = "supported"
NOT_IN_RAW = "not in raw"
MISLABELLED = "mislabelled"
UNSUPPORTED = "unsupported"
ALLOWED = "allowed"

TOLERANCE_MAX_PERCENT = 10
GAP_MAX = 60  # characters between a number and the comment that names its source
REASON_MIN = 10  # characters that a reason for having no result needs
_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n\s*(?:[-*+]|\d+\.)\s")


@dataclass(frozen=True)
class Claim:
    """One number of a text.  why: empty where it is supported."""

    line: int
    text: str
    verdict: str
    why: str
    source: str  # result file and field as written, or the reason why there is none

    @property
    def accepted(self) -> bool:
        return self.verdict in (SUPPORTED, ALLOWED)


@dataclass(frozen=True)
class _Source:
    file: str
    field: str
    tolerance: float = 0.0  # percent

    def __str__(self) -> str:
        return f"{self.file} {self.field}"


def audit_markdown(path: str | os.PathLike[str]) -> list[Claim]:
    """Every claim of a Markdown file in the order of its lines.  OSError if it cannot be read."""
    path = Path(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    claims = _Auditor(Document(text), path).claims()
    return sorted(claims, key=lambda claim: claim.line)


class _Auditor:
    def __init__(self, document: Document, path: Path) -> None:
        self._doc, self._path = document, path
        self._results: dict[str, tuple[Verdict, Mapping[str, Any] | None] | None] = {}
        self._sourced: dict[int, Quantity] = {}  # by where the number starts
        self._allowed: list[tuple[Block, str]] = []
        self._cells = {cell.start: cell for block in document.blocks for cell in block.cells}

    def claims(self) -> list[Claim]:
        waiting: list[tuple[Quantity, _Source, Cell | None]] = []
        made: list[Claim] = []
        for comment in self._doc.comments:
            word, _, rest = comment.body.partition(":")
            if word == "result":
                made += self._read_inline(comment, rest, waiting)
            elif word == "results":
                made += self._read_table(comment, rest, waiting)
            elif word == "no result":
                made += self._read_allowance(comment, rest)
        for quantity, source, cell in waiting:
            self._sourced[quantity.start] = quantity
        made += [self._judge(*each) for each in waiting]
        return [*made, *self._unsourced()]

    # What the comments say

    def _read_inline(
        self, comment: Comment, rest: str, waiting: list[tuple[Quantity, _Source, Cell | None]]
    ) -> Iterator[Claim]:
        words = rest.split()
        cell = self._cell_at(comment.start)
        if len(words) == 1 and cell:
            return  # names the file of its row; _read_table looks for it
        source = _source(words)
        if source is None:
            yield self._malformed(comment, "want `result: FILE FIELD`, `~N%` after it if need be")
            return
        block = self._doc.block_of(comment)
        first = cell.start if cell else block.start if block else 0
        before = [c.end for c in self._doc.comments if c.end <= comment.start]
        first = max(first, before[-1] if before else 0)
        numbers = list(quantities(self._doc.plain, first, comment.start))
        if not numbers or comment.start - numbers[-1].end > GAP_MAX:
            yield self._malformed(comment, "no number stands before it")
            return
        waiting.append((_with_unit(numbers[-1], cell), source, cell))

    def _read_table(
        self, comment: Comment, rest: str, waiting: list[tuple[Quantity, _Source, Cell | None]]
    ) -> Iterator[Claim]:
        head, *lines = rest.strip().split("\n")
        block = self._doc.block_after(comment.end)
        if block is None or not block.rows:
            yield self._malformed(comment, "no table stands below it")
            return
        for line in filter(None, map(str.strip, lines)):
            column, equals, what = line.partition(" = ")
            column = " ".join(column.split())
            source = _source([head.strip(), *what.split()])
            if not equals or source is None:
                yield self._malformed(comment, f"want `COLUMN = FIELD`, got {line!r}")
            elif not all(column in row for row in block.rows):
                yield self._malformed(comment, f"the table has no column {column!r}")
            else:
                for row in block.rows:
                    self._read_cell(row, column, source, waiting)

    def _read_cell(
        self,
        row: Mapping[str, Cell],
        column: str,
        source: _Source,
        waiting: list[tuple[Quantity, _Source, Cell | None]],
    ) -> None:
        cell = row[column]
        numbers = list(quantities(self._doc.plain, cell.start, cell.end))
        if not numbers:
            return

        def filled(text: str) -> str:
            return re.sub(
                r"\{([^}]*)\}",
                lambda match: self._cell_text(row[match[1]]) if match[1] in row else match[0],
                text,
            )

        file = self._row_file(row) or filled(source.file)
        quantity = _with_unit(numbers[0], cell)
        waiting.append((quantity, replace(source, file=file, field=filled(source.field)), cell))

    def _row_file(self, row: Mapping[str, Cell]) -> str | None:
        for comment in self._doc.comments:
            words = comment.body.split()
            inside = any(cell.start <= comment.start < cell.end for cell in row.values())
            if inside and len(words) == 2 and words[0] == "result:":
                return words[1]
        return None

    def _cell_text(self, cell: Cell) -> str:
        return self._doc.plain[cell.start : cell.end].strip().strip("*`")

    def _read_allowance(self, comment: Comment, reason: str) -> Iterator[Claim]:
        reason = " ".join(reason.split())
        block = self._doc.block_of(comment)
        if len(reason) < REASON_MIN:
            yield self._malformed(comment, "want a reason after `no result:`")
        elif block is not None:
            self._allowed.append((block, reason))

    def _malformed(self, comment: Comment, why: str) -> Claim:
        line = self._doc.line(comment.start)
        return Claim(line, f"<!-- {comment.body} -->"[:80], UNSUPPORTED, why, "")

    # Numbers with a source

    def _judge(self, quantity: Quantity, source: _Source, cell: Cell | None) -> Claim:
        verdict, why = self._verdict(quantity, source, cell)
        line = self._doc.line(quantity.start)
        return Claim(line, quantity.text, verdict, why, str(source))

    def _verdict(self, quantity: Quantity, source: _Source, cell: Cell | None) -> tuple[str, str]:
        if quantity.range:
            return UNSUPPORTED, "a range of numbers: give each end its own source"
        found = self._result(source.file)
        if found is None:
            return UNSUPPORTED, f"there is no file {source.file} here or in a folder above"
        verdict, result = found
        if result is None or not verdict.accepted:
            return UNSUPPORTED, f"{source.file} is refused: {verdict.refused[0]}"
        try:
            figure = find_figure(result, source.field)
        except NoFigure as error:
            return NOT_IN_RAW, f"{source.file}: {error}"
        printed = _as_printed(figure, quantity)
        if printed is None:
            return (
                MISLABELLED,
                f"{quantity.text!r} is {quantity.dimension}, {figure.name} is {figure.dimension}",
            )
        if not _agrees(printed, quantity, source.tolerance):
            other = self._other_figure(result, quantity, figure)
            if other:
                return MISLABELLED, f"it is {other.name}, not {figure.name}, which is {printed:.6g}"
            return NOT_IN_RAW, f"{figure.name} is {printed:.6g}"
        why = contradiction(figure, result, self._contexts(quantity, cell))
        why = why or _direction_contradicts(figure, self._after(quantity))
        return (MISLABELLED, why) if why else (SUPPORTED, "")

    def _other_figure(
        self, result: Mapping[str, Any], quantity: Quantity, figure: Figure
    ) -> Figure | None:
        """The figure that was quoted in truth, where one agrees in two digits or more."""
        if len(re.sub(r"\D", "", f"{quantity.value:g}").strip("0")) < 2:
            return None
        for other in all_figures(result):
            printed = _as_printed(other, quantity)
            if printed is None or other.dimension != figure.dimension:
                continue
            if _agrees(printed, quantity, 0):
                return other
        return None

    def _result(self, file: str) -> tuple[Verdict, Mapping[str, Any] | None] | None:
        if file not in self._results:
            folders = [self._path.resolve().parent, *self._path.resolve().parent.parents]
            path = next((f / file for f in folders if (f / file).is_file()), None)
            self._results[file] = None if path is None else audit_file(path)
        return self._results[file]

    # What stands around a number

    def _cell_at(self, place: int) -> Cell | None:
        return next((c for c in self._cells.values() if c.start <= place < c.end), None)

    def _contexts(self, quantity: Quantity, cell: Cell | None) -> list[str]:
        if cell:
            return [self._doc.plain[cell.start : cell.end], cell.column, cell.row]
        return [self._before(quantity), self._after(quantity)]

    def _before(self, quantity: Quantity) -> str:
        """From the beginning of the sentence, or from the claim before, to the number."""
        block = self._doc.block_at(quantity.start)
        first = block.start if block else 0
        for match in _SENTENCE_END.finditer(self._doc.plain, first, quantity.start):
            first = match.end()
        ends = [q.end for start, q in self._sourced.items() if start < quantity.start]
        return self._doc.plain[max([first, *ends]) : quantity.start]

    def _after(self, quantity: Quantity) -> str:
        """From the number's unit to the end of the sentence, or to the next claim."""
        block = self._doc.block_at(quantity.start)
        last = block.end if block else len(self._doc.plain)
        match = _SENTENCE_END.search(self._doc.plain, quantity.end, last)
        if match:
            last = match.start()
        starts = [start for start in self._sourced if start > quantity.start]
        unit = quantity.text.lstrip("0123456789.,")
        return unit + self._doc.plain[quantity.end : min([last, *starts])]

    # Numbers without a source

    def _unsourced(self) -> Iterator[Claim]:
        plain = self._doc.plain
        ends = {quantity.end for quantity in self._sourced.values()}
        for quantity in quantities(plain):
            cell = self._cell_at(quantity.start)
            with_unit = _with_unit(quantity, cell)
            if quantity.start not in self._sourced and self._is_claim(with_unit, cell):
                yield self._without_source(quantity.start, quantity.text)
        for match in spelled_claims(plain, 0, len(plain)):
            if match.end() not in ends:
                yield self._without_source(match.start(), match[0])

    def _is_claim(self, quantity: Quantity, cell: Cell | None) -> bool:
        if isinstance(quantity.claim, bool):
            return quantity.claim
        if cell:
            nearby = " ".join(self._contexts(quantity, cell))
        else:
            nearby = self._before(quantity) + " " + self._after(quantity)
        return quantity.claim.search(nearby) is not None

    def _without_source(self, place: int, text: str) -> Claim:
        line = self._doc.line(place)
        for block, reason in self._allowed:
            if block.start <= place < block.end:
                return Claim(line, text, ALLOWED, reason, "")
        why = "it names no result file: add `<!-- result: FILE FIELD -->` after it"
        return Claim(line, text, UNSUPPORTED, why, "")


def _source(words: list[str]) -> _Source | None:
    if len(words) not in (2, 3):
        return None
    tolerance = 0.0
    if len(words) == 3:
        match = re.fullmatch(r"~(\d+(?:\.\d+)?)%", words[2])
        if not match or float(match[1]) > TOLERANCE_MAX_PERCENT:
            return None
        tolerance = float(match[1])
    return _Source(words[0], words[1], tolerance)


def _with_unit(quantity: Quantity, cell: Cell | None) -> Quantity:
    """A number in a cell has the unit of its column, or of its row, where it has none itself."""
    if quantity.dimension or cell is None:
        return quantity
    for words in (cell.column, cell.row):
        unit = unit_of_words(words)
        if unit:
            return quantity.with_unit(unit)
    return quantity


def _as_printed(figure: Figure, quantity: Quantity) -> float | None:
    """The figure in the unit that is printed; None where the two are not of one kind."""
    dimension, value = quantity.dimension, figure.value
    if not dimension:
        return value
    if dimension == "% faster":
        right = figure.dimension == "x" and figure.better == "higher"
        return 100 * (value - 1) if right else None
    if dimension == "% less":
        return 100 * (1 - value) if figure.dimension == "x" else None
    if dimension == "%" and figure.dimension == "x":
        return 100 * value
    if dimension != figure.dimension:
        return None
    return value * figure.scale / quantity.scale


def _agrees(value: float, quantity: Quantity, tolerance: float) -> bool:
    half = 0.5 * 10.0**-quantity.decimals
    slack = max(half * (1 + 1e-9), abs(value) * tolerance / 100)
    return abs(value - quantity.value) <= slack


def _direction_contradicts(figure: Figure, after: str) -> str | None:
    """A ratio of rates above 1 is faster; a ratio of times is neither, quote that of the rates."""
    if figure.pair is None:
        return None
    match = re.match(r"[\s*\w×]{0,12}?\b(faster|slower)\b", after)
    if not match or "%" in after[: match.end()]:
        return None
    faster = figure.better == "higher" and figure.value > 1
    if (match[1] == "faster") == faster:
        return None
    return f"{figure.name} is {figure.value:.6g}, better is {figure.better}: not {match[1]}"
