# SPDX-License-Identifier: MIT
"""Markdown as the claims need it: blocks, table cells, comments, and the quantities in a text.

A quantity is a number with its unit; which of them are claims of performance is decided here, by
pattern, and rather too often than too seldom.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

# Fenced code, code in a line, or a comment: whichever begins first.
_SCAN = re.compile(
    r"^[ ]{0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^[ ]{0,3}(?P=fence)[`~]*[ ]*$|.*\Z)"
    r"|(?P<ticks>`+)(?!`)(?:(?!\n[ ]*\n).)*?(?<!`)(?P=ticks)(?!`)"
    r"|<!--(?P<comment>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
_URL = re.compile(r"(?<=\]\()[^)\s]*|https?://[^\s)>]*")
_RULE = re.compile(r"^\s*\|?(\s*:?-+:?\s*\|)+\s*(:?-+:?)?\s*$")
_CELL = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Comment:
    start: int
    end: int
    body: str


@dataclass(frozen=True)
class Cell:
    """One cell of a table: where its text lies, and what heads its row and column."""

    start: int
    end: int
    column: str
    row: str


@dataclass
class Block:
    """Lines without an empty one between them, or a fenced block."""

    start: int
    end: int
    cells: list[Cell] = field(default_factory=list)
    rows: list[dict[str, Cell]] = field(default_factory=list)  # of a table, by column


class Document:
    """A text with its comments taken out: `plain` has spaces in their place, so that places are
    the same in both."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.comments: list[Comment] = []
        self.blocks: list[Block] = []
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        fences = []
        plain = text
        for match in _SCAN.finditer(text):
            if match["fence"]:
                fences.append(match.span())
            elif match["comment"] is not None:
                self.comments.append(Comment(*match.span(), match["comment"].strip()))
                plain = _blank(plain, *match.span())
        for match in _URL.finditer(plain):
            plain = _blank(plain, *match.span())
        self.plain = plain
        self._find_blocks(fences)

    def line(self, place: int) -> int:
        """The number of the line, from 1."""
        return bisect_right(self._lines, place)

    def block_at(self, place: int) -> Block | None:
        return next((block for block in self.blocks if block.start <= place < block.end), None)

    def block_after(self, place: int) -> Block | None:
        return next((block for block in self.blocks if block.start >= place), None)

    def block_of(self, comment: Comment) -> Block | None:
        """The block that a comment stands in, or the next where it stands alone."""
        for block in self.blocks:
            if block.start <= comment.end and comment.start <= block.end:
                return block
        return self.block_after(comment.start)

    def _find_blocks(self, fences: list[tuple[int, int]]) -> None:
        start = None
        place = 0
        while place <= len(self.text):
            fence = next((end for begin, end in fences if begin == place), None)
            newline = self.text.find("\n", place)
            end = len(self.text) if newline < 0 else newline
            empty = not self.plain[place:end].strip()
            if (empty or fence is not None) and start is not None:
                self._add_block(start, place)
                start = None
            if fence is not None:
                self.blocks.append(Block(place, fence))
                end = fence
            elif not empty and start is None:
                start = place
            place = end + 1
        if start is not None:
            self._add_block(start, len(self.text))

    def _add_block(self, start: int, end: int) -> None:
        block = Block(start, end)
        lines = []
        place = start
        for line in self.plain[start:end].splitlines():
            lines.append((place, line))
            place += len(line) + 1
        if len(lines) >= 2 and "|" in lines[0][1] and _RULE.match(lines[1][1]):
            self._read_table(block, lines)
        self.blocks.append(block)

    def _read_table(self, block: Block, lines: list[tuple[int, str]]) -> None:
        header = [" ".join(text.split()) for _, text in _split(*lines[0])]
        for place, line in lines[2:]:
            row: dict[str, Cell] = {}
            cells = _split(place, line)
            for index, (start, text) in enumerate(cells):
                column = header[index] if index < len(header) else ""
                first = " ".join(cells[0][1].split()) if index else ""
                cell = Cell(start, start + len(text), column, first)
                block.cells.append(cell)
                row.setdefault(column, cell)
            block.rows.append(row)


def _split(place: int, line: str) -> list[tuple[int, str]]:
    """Cells of a line of a table, with their places."""
    bounds = [-1, *(match.start() for match in _CELL.finditer(line)), len(line)]
    cells = [(place + a + 1, line[a + 1 : b]) for a, b in itertools.pairwise(bounds)]
    if line.lstrip().startswith("|"):
        cells = cells[1:]
    if cells and line.rstrip().endswith("|"):
        cells = cells[:-1]
    return cells


def _blank(text: str, start: int, end: int) -> str:
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


# Quantities

_NUMBER = r"(?<![\w.,])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_GAP = r"(?:[ \t]|\n(?![ ]*\n)|\*)*"
_PER = r"\s?(?:/|per|a|each)\s?"
_TOKEN = r"(?:tokens?|toks?)"
_FASTER = r"(?:faster|quicker|higher|more)"
_SLOWER = r"(?:slower|lower|less|fewer|smaller|shorter)"
_THAN = rf"(?:as|the|{_FASTER}|{_SLOWER}|larger|longer|speed|better|worse)"
_SIZE = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

# name -> (pattern, dimension, is it a claim: yes, or where one of these words stands nearby).
# The first that fits wins.
_MEMORY_WORDS = re.compile(
    r"\b(peak|rss|resident|footprint|uses?|used|using|needs?|takes?|saves?|freed|less memory)\b",
    re.IGNORECASE,
)
_SHARE_WORDS = re.compile(
    r"\b(hits?|hit rate|faster|slower|speed|bandwidth|throughput|of the (?:disk|memory)|less|more"
    r"|top-1|busy|idle|utili[sz]ation)\b",
    re.IGNORECASE,
)
_UNITS: tuple[tuple[re.Pattern[str], str, re.Pattern[str] | bool], ...] = tuple(
    (re.compile(rf"{_GAP}(?:{pattern})", flags), dimension, claim)
    for pattern, flags, dimension, claim in (
        (rf"(?:{_TOKEN}|t){_PER}s(?:ec(?:ond)?)?\b|tps\b", re.IGNORECASE, "tokens/s", True),
        (rf"(?P<size>[kKMGT])(?P<binary>i?)B{_PER}s(?:ec(?:ond)?)?\b", 0, "B/s", True),
        (r"[KMGT](?:FLOPS?|OPS?|FLOP/s|OP/s)\b", 0, "flops", True),
        (rf"(?P<size>[kKMGT])(?P<binary>i?)B{_PER}{_TOKEN}\b", 0, "B", True),
        (
            rf"(?:demand )?(?:misses|miss|hits?|reads?|lookups?|faults?){_PER}{_TOKEN}\b",
            re.IGNORECASE,
            "count",
            True,
        ),
        (r"(?P<size>[kKMGT])(?P<binary>i?)B\b", 0, "B", _MEMORY_WORDS),
        (r"(?P<time>ns|nanoseconds?)\b", 0, "ns", True),
        (r"(?P<time>us|[µμ]s|microseconds?)\b", 0, "us", True),
        (r"(?P<time>ms|milliseconds?)\b", 0, "ms", True),
        (r"(?P<time>s|secs?|seconds?)\b", 0, "s", True),
        (r"(?P<time>minutes?|min)\b", 0, "min", True),
        (rf"(?:%|percent){_GAP}{_FASTER}\b", re.IGNORECASE, "% faster", True),
        (rf"(?:%|percent){_GAP}{_SLOWER}\b", re.IGNORECASE, "% less", True),
        (r"(?:%|percent\b)", re.IGNORECASE, "%", _SHARE_WORDS),
        (r"(?:[xX]\b|×)(?!\s?\d)", 0, "x", True),
        (rf"times{_GAP}{_THAN}\b|-?fold\b", re.IGNORECASE, "x", True),
    )
)
_SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_QUANTITY = re.compile(_NUMBER)
_RANGE = re.compile(r"\d\s?(?:–|-|—|to|\.\.)\s?$")
_SPELLED = re.compile(
    r"\b(?:twice|thrice|(?:two|three|four|five|six|seven|eight|nine|ten|hundred) times)\s"
    rf"(?:as|{_FASTER}|{_SLOWER})\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Quantity:
    """A number as printed.  dimension "" = it has no unit of its own."""

    start: int
    end: int
    text: str
    value: float
    decimals: int
    dimension: str
    scale: float  # of the unit: value * scale is in the dimension's base unit
    claim: re.Pattern[str] | bool
    range: bool  # it ends a range such as 3-4

    def with_unit(self, unit: Quantity) -> Quantity:
        """This number, with the unit of another."""
        return replace(self, dimension=unit.dimension, scale=unit.scale, claim=unit.claim)


def quantities(text: str, start: int = 0, end: int | None = None) -> Iterator[Quantity]:
    """Every number of a text, with its unit if one follows."""
    end = len(text) if end is None else end
    for match in _QUANTITY.finditer(text, start, end):
        number = match["number"]
        value = float(number.replace(",", ""))
        decimals = len(number.partition(".")[2])
        dimension, scale, claim, stop = _unit(text, match.end(), end)
        ranged = _RANGE.search(text, max(start, match.start() - 8), match.start()) is not None
        words = " ".join(text[match.start() : stop].replace("*", "").split())
        yield Quantity(match.start(), stop, words, value, decimals, dimension, scale, claim, ranged)


def spelled_claims(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """Claims without a digit, such as "twice as fast"."""
    return _SPELLED.finditer(text, start, end)


def unit_of_words(words: str) -> Quantity | None:
    """The unit that stands in a header such as "decode, tokens/s", as that of a number."""
    for match in re.finditer(r"(?<![\w/])[\w%×µμ]", words):
        dimension, scale, claim, stop = _unit(words, match.start(), len(words))
        # Words such as "s" or "min" in a header are too short to be sure of, but alone.
        short = stop - match.start() < 2 and dimension not in ("%", "x")
        if dimension and not (short and not _alone(words, match.start(), stop)):
            return Quantity(0, 0, words, 0, 0, dimension, scale, claim, False)
    return None


def _alone(words: str, start: int, stop: int) -> bool:
    before, after = words[:start].rstrip(), words[stop:].strip()
    return (not before or before[-1] in ",(:") and (not after or after[0] in ",);")


def _unit(text: str, place: int, end: int) -> tuple[str, float, re.Pattern[str] | bool, int]:
    for pattern, dimension, claim in _UNITS:
        match = pattern.match(text, place, end)
        if not match:
            continue
        groups = match.groupdict()
        scale = 1.0
        if groups.get("size"):
            sizes = _BINARY if groups["binary"] else _SIZE
            scale = sizes[groups["size"].upper() if groups["binary"] else groups["size"]]
        if groups.get("time"):
            return "time", _SCALE[dimension], claim, match.end()
        return dimension, scale, claim, match.end()
    return "", 1.0, False, place
