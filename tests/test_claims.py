# SPDX-License-Identifier: MIT
"""Numbers in Markdown: those of this repository name results that hold, and every way in which a
number can be wrong is found."""

import json
import shutil
from pathlib import Path

import pytest
from esker.bench import records
from esker.bench.claims import audit_markdown
from esker.bench.fields import NoFigure, all_figures, find_figure
from esker.bench.markdown import Document, quantities
from esker.cli import main
from support.results import paired_result

ROOT = Path(__file__).resolve().parent.parent
TEXTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").rglob("*.md"),
    ]
)
FILE = "bench/results/peer.json"
SIDES = "summary.sides"
RATIO = "summary.pairs.decode_rate.median"


def sourced(text, field=RATIO, more=""):
    return f"{text} <!-- result: {FILE} {field}{more} -->"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A repository with one result: esker 10 tokens/s, the peer 2.86, prompt of 64 tokens."""
    root = tmp_path_factory.mktemp("claims")
    records.write_result(root / FILE, paired_result())
    spoilt = json.loads((root / FILE).read_text())
    spoilt["summary"]["pairs"]["decode_rate"]["median"] = 99
    (root / "bench/results/spoilt.json").write_text(json.dumps(spoilt))
    return root


@pytest.fixture
def judge(place):
    """judge(text) -> the claims of a text, as (verdict, text, why)."""

    def call(text):
        path = place / "docs" / "a.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return [(claim.verdict, claim.text, claim.why) for claim in audit_markdown(path)]

    return call


@pytest.fixture
def verdict(judge):
    """verdict(text) -> (verdict, why) of its only claim."""

    def call(text):
        claims = judge(text)
        assert len(claims) == 1, claims
        return claims[0][0], claims[0][2]

    return call


# This repository


@pytest.mark.parametrize("name", TEXTS)
def test_the_claims_of_this_repository_hold(name):
    refused = [claim for claim in audit_markdown(ROOT / name) if not claim.accepted]
    assert refused == []


@pytest.mark.parametrize(
    "claim",
    [
        "Esker decodes 10 times faster than its peer.",
        "It decodes at 14 tokens/s.",
        "It decodes at 14 tokens/s <!-- result: bench/results/none.json summary.x -->.",
    ],
)
def test_a_wrong_claim_in_the_readme_is_found(tmp_path, claim):
    shutil.copy(ROOT / "README.md", tmp_path)
    if (ROOT / "bench/results").is_dir():
        shutil.copytree(ROOT / "bench/results", tmp_path / "bench/results")
    copy = tmp_path / "README.md"
    assert all(claim.accepted for claim in audit_markdown(copy))
    copy.write_text(copy.read_text() + f"\n{claim}\n")
    assert [claim.verdict for claim in audit_markdown(copy) if not claim.accepted] == [
        "unsupported"
    ]
    assert main(["audit", str(copy)]) == 1


# Numbers with a source


@pytest.mark.parametrize(
    "text",
    [
        sourced("3.5x"),
        sourced("**3.5x**"),
        sourced("3.50×"),
        sourced("Esker decodes 3.5 times as fast"),
        sourced("350 % of the peer's speed in decode"),
        sourced("decode is 250 % faster"),
        sourced("decode takes 71 % less time", "summary.pairs.decode_ms.median"),
        sourced("about 3.6x", more=" ~3%"),
        sourced("decode: 10.0 tokens/s", f"{SIDES}.esker.decode_rate.median"),
        sourced("a token takes 100 ms", f"{SIDES}.esker.decode_ms.median"),
        sourced("a token takes 0.1 s", f"{SIDES}.esker.decode_ms.median"),
        sourced("The peer takes 350\nms", f"{SIDES}.peer.decode_ms.median"),
        sourced("llama.cpp takes 350 ms", f"{SIDES}.peer.decode_ms.median"),
        sourced("minimum 99 ms", f"{SIDES}.esker.decode_ms.min"),
        sourced("at best 99 ms", f"{SIDES}.esker.decode_ms.min"),
        sourced("spread 1 ms", f"{SIDES}.esker.decode_ms.mad"),
        sourced("hit rate 83.3 %", f"{SIDES}.esker.decode_hit_rate.median"),
        sourced("reads 80 MB/s while decoding", f"{SIDES}.esker.decode_read_rate.median"),
        sourced("8 MB/token", f"{SIDES}.esker.decode_bytes_read.median"),
        sourced("8 misses a token", f"{SIDES}.esker.decode_demand_misses.median"),
        sourced("peak memory 2.93 KiB", f"{SIDES}.esker.rss_peak_bytes.median"),
        sourced("a 64-token prompt at 31.5 tokens/s", f"{SIDES}.esker.prompt_rate.median"),
        sourced("warm, 100 ms", f"{SIDES}.esker.decode_ms.median"),
        sourced("median of 3 runs", f"{SIDES}.esker.decode_ms.n"),
    ],
)
def test_a_number_that_its_result_bears_out_is_supported(verdict, text):
    assert verdict(text + " and so on.\n") == ("supported", "")


@pytest.mark.parametrize(
    ("text", "outcome", "why"),
    [
        (sourced("3.7x"), "not in raw", "summary.pairs.decode_rate.median is 3.5"),
        (sourced("3.48x"), "not in raw", "is 3.5"),
        (sourced("4.1x", more=" ~3%"), "not in raw", "is 3.5"),
        (sourced("3.5x", "summary.pairs.speed.median"), "not in raw", "no summary.pairs.speed"),
        (sourced("3.5x", "summary.pairs.decode_rate"), "not in raw", "is no number"),
        (sourced("2.1", "raw.runs.0.phases.first_token_s"), "not in raw", "raw record of one run"),
        # another unit
        (sourced("3.5 ms"), "mislabelled", "is time, summary.pairs.decode_rate.median is x"),
        (sourced("100x", f"{SIDES}.esker.decode_ms.median"), "mislabelled", "is x"),
        (
            sourced("31.5 ms", f"{SIDES}.esker.prompt_rate.median"),
            "mislabelled",
            "is tokens/s",
        ),
        # another phase: what a prompt reaches quoted as decode, and the other way round
        (
            sourced("it decodes at 31.5 tokens/s", f"{SIDES}.esker.prompt_rate.median"),
            "mislabelled",
            "is of prompt, the text says decode",
        ),
        (
            sourced("prefill runs at 10.0 tokens/s", f"{SIDES}.esker.decode_rate.median"),
            "mislabelled",
            "is of decode, the text says prompt",
        ),
        (
            sourced("decode runs at 31.5 tokens/s", f"{SIDES}.esker.decode_rate.median"),
            "mislabelled",
            "it is summary.sides.esker.prompt_rate.median, not",
        ),
        # another statistic
        (
            sourced("the median is 99 ms", f"{SIDES}.esker.decode_ms.median"),
            "mislabelled",
            "it is summary.sides.esker.decode_ms.min, not",
        ),
        (
            sourced("the median is 99 ms", f"{SIDES}.esker.decode_ms.min"),
            "mislabelled",
            "is the min, the text says median",
        ),
        (
            sourced("it takes 99 ms", f"{SIDES}.esker.decode_ms.min"),
            "mislabelled",
            "is the min, the text does not say so",
        ),
        (
            sourced("on average 100 ms", f"{SIDES}.esker.decode_ms.median"),
            "mislabelled",
            "the text says mean",
        ),
        (
            sourced("at best 101 ms", f"{SIDES}.esker.decode_ms.max"),
            "mislabelled",
            "is the max, the text says best",
        ),
        # another side
        (
            sourced("Esker takes 350 ms", f"{SIDES}.peer.decode_ms.median"),
            "mislabelled",
            "is of peer, the text says esker",
        ),
        (
            sourced("llama.cpp takes 100 ms", f"{SIDES}.esker.decode_ms.median"),
            "mislabelled",
            "is of esker, the text says peer",
        ),
        (
            sourced("Esker takes 350 ms", f"{SIDES}.esker.decode_ms.median"),
            "mislabelled",
            "it is summary.sides.peer.decode_ms.median, not",
        ),
        # other runs
        (
            sourced("cold, 100 ms", f"{SIDES}.esker.decode_ms.median"),
            "mislabelled",
            "the runs were warm",
        ),
        (
            sourced("a 1K-token prompt at 31.5 tokens/s", f"{SIDES}.esker.prompt_rate.median"),
            "mislabelled",
            "the prompt has 64 tokens, the text says '1K-token prompt'",
        ),
        # another direction
        (sourced("3.5 times slower"), "mislabelled", "not slower"),
        (
            sourced("0.3 times faster", "summary.pairs.decode_ms.median"),
            "mislabelled",
            "better is lower",
        ),
        # no source to speak of
        ("3.5x <!-- result: none.json summary.x -->", "unsupported", "there is no file none.json"),
        (
            f"3.5x <!-- result: bench/results/spoilt.json {RATIO} -->",
            "unsupported",
            "spoilt.json is refused: summary.pairs.decode_rate.median: 99 stands there",
        ),
        (sourced("some"), "unsupported", "no number stands before it"),
        (sourced("some", more=" ~50%"), "unsupported", "want `result: FILE FIELD`"),
        ("<!-- result: -->", "unsupported", "want `result: FILE FIELD`"),
        (sourced("3–3.5x"), "unsupported", "a range of numbers"),
    ],
)
def test_a_number_that_says_something_else_is_found(verdict, text, outcome, why):
    told = verdict(text + " and so on.\n")
    assert told[0] == outcome and why in told[1], told


def test_several_numbers_of_one_sentence_are_told_apart(judge):
    esker = sourced("10.0 tokens/s", f"{SIDES}.esker.decode_rate.median")
    peer = sourced("2.86 tokens/s", f"{SIDES}.peer.decode_rate.median")
    claims = judge(f"Esker decodes at {esker}, the peer at {peer}, so {sourced('3.5x')} it.\n")
    assert [claim[0] for claim in claims] == ["supported"] * 3
    claims = judge(f"The peer decodes at {esker}, Esker at {peer}.\n")
    assert [claim[0] for claim in claims] == ["mislabelled"] * 2


TABLE = """
<!-- results: bench/results/{case}.json
esker, tokens/s = summary.sides.esker.decode_rate.median
peer, ms = summary.sides.peer.decode_ms.median
ratio = summary.pairs.decode_rate.median ~1%%
-->

| case | esker, tokens/s | peer, ms | ratio |
|---|---|---:|---|
| peer | %s | %s | %s |
| none | - | | |
"""


def test_a_table_names_the_sources_of_its_columns(judge):
    claims = judge(TABLE % ("10.0", "**350**", "3.52x"))
    assert [claim[:2] for claim in claims] == [
        ("supported", "10.0"),
        ("supported", "350"),
        ("supported", "3.52x"),
    ]


def test_a_row_can_name_its_own_file(judge):
    text = TABLE.replace("| peer |", f"| in memory <!-- result: {FILE} --> |")
    assert [claim[0] for claim in judge(text % ("10.0", "350", "3.5"))] == ["supported"] * 3


@pytest.mark.parametrize(
    ("cells", "outcome", "why"),
    [
        (("2.86", "350", "3.5"), "mislabelled", "it is summary.sides.peer.decode_rate.median"),
        (("10.0", "35", "3.5"), "not in raw", "is 350"),
        (("10.0", "350 s", "3.5"), "not in raw", "is 0.35"),
        (("10.0 GB/s", "350", "3.5"), "mislabelled", "is B/s"),
        (("10.0", "350", "5"), "not in raw", "is 3.5"),
    ],
)
def test_a_wrong_cell_is_found(judge, cells, outcome, why):
    wrong = [claim for claim in judge(TABLE % cells) if claim[0] != "supported"]
    assert len(wrong) == 1
    assert wrong[0][0] == outcome and why in wrong[0][2]


def test_the_peers_number_under_our_column_is_found(verdict):
    peer = sourced("2.86", f"{SIDES}.peer.decode_rate.median")
    told = verdict(f"| | esker, tokens/s |\n|---|---|\n| decode | {peer} |\n")
    assert told[0] == "mislabelled" and "is of peer, the text says esker" in told[1]


def test_a_prompts_number_in_the_row_of_decode_is_found(verdict):
    prompt = sourced("31.5", f"{SIDES}.esker.prompt_rate.median")
    told = verdict(f"| | esker, tokens/s |\n|---|---|\n| decode | {prompt} |\n")
    assert told[0] == "mislabelled" and "is of prompt, the text says decode" in told[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("esker, tokens/s =", "esker ="), "the table has no column 'esker'"),
        (("ratio =", "ratio"), "want `COLUMN = FIELD`"),
        (("\n| case |", "\ntext\n\n| case |"), "no table stands below it"),
    ],
)
def test_a_comment_over_a_table_that_makes_no_sense_is_found(judge, change, why):
    claims = judge((TABLE % ("10.0", "350", "3.5")).replace(*change))
    assert any(claim[0] == "unsupported" and why in claim[2] for claim in claims)


# Numbers without one


@pytest.mark.parametrize(
    "text",
    [
        "It decodes at 14 tokens/s.",
        "It decodes at 13.88 tok/s.",
        "14 tokens per second",
        "14 tokens a\nsecond",
        "a token takes 72.04 ms",
        "loads in 0.34 s",
        "ready in 3 seconds",
        "reads 6.94 GB/s",
        "3.5x the peer",
        "**3.5×** the peer",
        "10 times faster",
        "twice as fast",
        "61 % faster",
        "a hit rate of 92.85 %",
        "hits: 92.85%",
        "84.0 MB/tok",
        "34.3 misses/tok",
        "a peak of 4.2 GB",
        "it uses 3 GiB",
        "saves 1.60 GB",
        "between 12.96–13.88 tok/s",
        "`14 tokens/s`",
        "```\ndecode 14 tokens/s\n```",
        "- decode: 14 tokens/s",
        "# 14 tokens/s",
        "> 14 tokens/s",
        "| decode |\n|---|\n| 14 tokens/s |",
        "| case | tokens/s |\n|---|---|\n| decode | 14 |",
        "| case | esker, ms |\n|---|---|\n| decode | 72 |",
        "| | esker |\n|---|---|\n| tokens/s | 14 |",
    ],
)
def test_a_claim_without_a_source_is_unsupported(verdict, text):
    told = verdict(text + "\n")
    assert told[0] == "unsupported" and "names no result file" in told[1]


@pytest.mark.parametrize(
    "text",
    [
        "The demo model has 35 million parameters and 8 layers of 64 experts.",
        "Python 3.10 or newer, C++20, version 1.2.3 of 2026-09-01.",
        "matrices of 2560 x 640, or 2560x640, or 2560×640",
        "`--memory 8GB` sets the limit; the file has 23 MB.",
        "llama-cpp-python==0.3.36, K256-q2_0, Qwen3.8, 0x1F, utf-8",
        "one to four times, a few minutes, several seconds",
        "[here](https://example.com/14ms/3x)",
        "<!-- 14 tokens/s -->",
        "| shape | bytes |\n|---|---|\n| 2560 | 14 |",
        "100 % of the tests",
        "at least three repeats; n = 5",
    ],
)
def test_a_number_that_claims_nothing_is_left_alone(judge, text):
    assert judge(text + "\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "14 tokens/s, 3x <!-- no result: a target, not a claim -->\n",
        "<!-- no result: a target, not a claim -->\n14 tokens/s\nand 3x\n",
        "<!-- no result: a target, not a claim -->\n\n| a |\n|---|\n| 14 tokens/s |\n| 3x |\n",
        "<!-- no result: a target, not a claim -->\n```\n14 tokens/s\n\n3x\n```\n",
    ],
)
def test_a_target_may_stand_with_its_reason(judge, text):
    assert [claim[0] for claim in judge(text)] == ["allowed"] * 2
    assert judge(text)[0][2] == "a target, not a claim"
    assert [claim[0] for claim in judge(text + "\n4 ms\n")] == ["allowed"] * 2 + ["unsupported"]


def test_an_allowance_needs_a_reason(judge):
    claims = judge("14 tokens/s <!-- no result: ok -->\n")
    assert [claim[0] for claim in claims] == ["unsupported"] * 2


def test_comments_in_code_are_text(judge):
    assert judge("`<!-- result: FILE FIELD -->`\n\n```\n<!-- result: FILE FIELD -->\n```\n") == []


# The command


def test_the_command_lists_claims(place, capsys):
    path = place / "b.md"
    path.write_text(f"It is {sourced('3.5x')} as fast.\n\nIt runs at 14 tokens/s.\n")
    assert main(["audit", str(path), "--json"]) == 1
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert [(c["line"], c["verdict"]) for c in file["claims"]] == [
        (1, "supported"),
        (3, "unsupported"),
    ]
    assert file["claims"][0]["source"] == f"{FILE} {RATIO}"
    path.write_text(f"It is {sourced('3.5x')} as fast.\n")
    assert main(["audit", str(path), str(place / FILE)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: accepted\n  line 1: '3.5x' is supported\n" in out


# The parts


def test_figures_are_found_by_name():
    result = paired_result()
    figure = find_figure(result, f"{SIDES}.peer.decode_ms.median")
    assert (figure.side, figure.metric, figure.statistic) == ("peer", "decode_ms", "median")
    assert find_figure(result, RATIO).pair == ("esker", "peer")
    assert find_figure(result, "raw.machine.memory_bytes").dimension == "B"
    names = {figure.name for figure in all_figures(result)}
    assert {RATIO, f"{SIDES}.peer.decode_ms.mad"} <= names
    for name in ("", "summary", "summary.sides.esker.decode_ms.mean", "raw.argv.0", "raw.case"):
        with pytest.raises(NoFigure):
            find_figure(result, name)


def test_a_name_with_dots_in_it_is_found():
    result = paired_result()
    samples = [{"name": "blk.0.gemv", "type": None, "shape": None, "bytes": 4, "ns": 2}] * 3
    result["raw"]["runs"][0]["samples"] = samples
    result = records.seal(result)
    figure = find_figure(result, f"{SIDES}.esker.blk.0.gemv:ns.median")
    assert (figure.metric, figure.value) == ("blk.0.gemv:ns", 2)


def test_quantities_keep_precision_and_unit():
    found = {q.text: q for q in quantities("1,867 ms, 3.50x, 12 of 2.5 GiB/s, 7")}
    assert set(found) == {"1,867 ms", "3.50x", "12", "2.5 GiB/s", "7"}
    assert found["1,867 ms"].value == 1867 and found["1,867 ms"].scale == 1e-3
    assert found["3.50x"].decimals == 2
    assert found["2.5 GiB/s"].scale == 2**30
    assert found["7"].dimension == ""


def test_a_document_knows_its_lines_and_cells():
    text = "a\n\n| h | i |\n|---|---|\n| 1 | 2 <!-- x --> |\n\n```\nb\n\nc\n```\nd\n"
    document = Document(text)
    assert [document.line(block.start) for block in document.blocks] == [1, 3, 7, 12]
    assert [(cell.column, cell.row) for cell in document.blocks[1].cells] == [("h", ""), ("i", "1")]
    assert [comment.body for comment in document.comments] == ["x"]
    assert len(document.plain) == len(text)
