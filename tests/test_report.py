# SPDX-License-Identifier: MIT
"""The HTML report: its numbers are the raw runs', it stands alone, and its charts are where the
data says."""

import copy
import json
import math
import re
from xml.etree import ElementTree

import pytest
from esker.bench.records import new_prompt, new_result, new_run, seal, write_result
from esker.bench.report import render
from esker.bench.svg import Chart, ticks
from esker.cli import main

MODEL = {"name": "toy", "files": [], "bytes": 12_000_000_000, "sha256": "ab" * 32}
GUARD = {
    "limits": {"interval_s": 0.1},
    "samples": 3,
    "available_min_bytes": 5_000_000_000,
    "stopped": False,
    "reason": None,
}


def text_run(run, steps_ms, prompt_s=0.5, **counters):
    """Fills a run whose tokens take the given steps after the first."""
    wall = round(prompt_s * 1e9)
    run["tokens"].append({"wall_ns": wall, **dict.fromkeys(counters, 0)})
    for step in steps_ms:
        wall += round(step * 1e6)
        run["tokens"].append({"wall_ns": wall, **counters})
    run["phases"].update(load_s=0.25, prompt_s=prompt_s, first_token_s=prompt_s)
    run["output"] = list(range(len(run["tokens"])))
    return done(run)


def done(run):
    run["exit_status"], run["guard"] = 0, GUARD
    return run


def settings(**more):
    return {"threads": 2, "context": 256, "memory_cap_bytes": None, **more}


def peer_result():
    prompt = new_prompt(range(10), source="text.txt")
    result = new_result(
        "peer",
        argv=["bench", "peer", "--model", "/home/me/toy.gguf"],
        model=MODEL,
        prompts=[prompt],
        compare=("esker", "peer"),
        peer={"name": "llama.cpp", "package": "llama-cpp-python", "version": "9.8.7"},
    )
    runs = result["raw"]["runs"]
    # Pair by pair 20, 25 and 40 ms against 100: ratios 5, 4 and 2.5.
    for pair, ours in enumerate((20, 25, 40)):
        for side, step in (("esker", ours), ("peer", 100)):
            run = new_run(side, order=len(runs), pair=pair, prompt=prompt, settings=settings())
            runs.append(text_run(run, [step] * 4, 0.5 if side == "esker" else 1.5))
    return seal(result)


def stream_result():
    prompt = new_prompt(range(10), source="text.txt")
    result = new_result("stream", argv=["bench", "stream"], model=MODEL, prompts=[prompt])
    for side, arena, step, wait, hits in (("small", 1, 80, 50, 2), ("large", 4, 40, 5, 9)):
        for _ in range(3):
            runs = result["raw"]["runs"]
            applied = settings(arena_bytes=arena * 10**9)
            run = new_run(side, order=len(runs), prompt=prompt, settings=applied)
            counts = {"lookups": 10, "hits": hits, "wait_ns": wait * 10**6}
            runs.append(text_run(run, [step] * 4, **counts))
    return seal(result)


def ops_result():
    result = new_result("ops", argv=["bench", "ops"], model=MODEL, compare=("kernel", "read"))
    runs = result["raw"]["runs"]
    for pair, ns in enumerate((4000, 5000, 8000)):
        for side, took in (("kernel", ns), ("read", 2000)):
            run = new_run(side, order=len(runs), pair=pair, settings=settings())
            what = {"name": "matvec", "type": "Q6_K", "shape": [64, 256], "bytes": 10**5}
            run["samples"] = [{**what, "ns": took}]
            runs.append(done(run))
    return seal(result)


def disk_result():
    result = new_result("disk", argv=["bench", "disk"])
    for order in range(3):
        run = new_run("disk", order=order, cold=True, settings=settings())
        for size, ns in ((65536, 10**6), (1048576, 2 * 10**6)):
            for depth in (1, 4):
                name = f"read/{size}B/depth{depth}"
                run["samples"].append({"name": name, "bytes": size * depth, "ns": ns})
        result["raw"]["runs"].append(done(run))
    return seal(result)


@pytest.fixture(scope="module")
def results():
    return {
        "peer.json": peer_result(),
        "stream.json": stream_result(),
        "ops.json": ops_result(),
        "disk.json": disk_result(),
    }


@pytest.fixture(scope="module")
def page(results):
    return render(list(results.items()))


def charts(page):
    """label -> the chart, as a tree."""
    trees = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return {tree.get("aria-label"): tree for tree in trees}


def tips(chart):
    return [node.text for node in chart.iter("title")]


def words(chart):
    return [node.text for node in chart.iter("text")]


def test_every_file_is_there_with_its_verdict(page, results):
    for name in results:
        assert name in page
    assert page.count("audit: accepted") == 4, re.findall(r"refused.*", page)


def test_peer_ratios_are_pair_by_pair(page):
    chart = charts(page)["speed by the peer's"]
    assert tips(chart) == ["5 x", "4 x", "2.5 x", "3 x", "3 x", "3 x"]
    assert "4.00 x" in words(chart) and "3.00 x" in words(chart)
    assert "decode, peer" in words(chart)


def test_tables_hold_the_medians(page):
    for figure in ("25 ms (5)", "100 ms (0)", "4 x (2.5 to 5)", "40 tokens/s (10)"):
        assert f"<td>{figure}</td>" in page
    assert "llama-cpp-python 9.8.7" in page and "12 GB" in page


def test_stalls_are_the_counters(page):
    chart = charts(page)["stall against cache size"]
    assert tips(chart) == ["small: 80 ms", "large: 40 ms", "small: 50 ms", "large: 5 ms"]
    assert "20 % hits" in words(chart) and "90 % hits" in words(chart)
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in chart.iter("circle")]
    assert circles[0][0] < circles[1][0] and circles[0][1] < circles[1][1]  # more memory, less time


def test_shares_are_kernel_by_read(page):
    chart = charts(page)["share of the read bandwidth"]
    assert tips(chart) == ["40.0 %"]
    assert "40 %, 20 GB/s" in words(chart)


def test_disk_has_a_line_for_each_depth(page):
    chart = charts(page)["disk"]
    assert len(list(chart.iter("polyline"))) == 2
    assert tips(chart) == ["66 MB/s", "524 MB/s", "262 MB/s", "2097 MB/s"]


def test_every_token_is_drawn(page):
    chart = charts(page)["time of each token"]
    assert [len(line.get("points").split()) for line in chart.iter("polyline")] in ([4, 4],)


def test_the_page_stands_alone(page):
    assert "{{" not in page
    for outside in ("<script", "http:", "https:", "src=", "url(", "<link", "@import", "/home/me"):
        assert outside not in page
    assert len(charts(page)) >= 5


def test_figures_come_from_the_raw_runs(results):
    wrong = copy.deepcopy(results["peer.json"])
    wrong["summary"]["sides"]["esker"]["decode_ms"]["median"] = 1.5
    page = render([("wrong.json", wrong)])
    assert "25 ms (5)" in page and "1.5 ms" not in page
    assert "audit: refused" in page


def test_names_cannot_break_the_page(results):
    result = copy.deepcopy(results["peer.json"])
    result["raw"]["model"]["name"] = "<b>&"
    page = render([("<i>.json", seal(result))])
    assert "&lt;b&gt;&amp;" in page and "<b>&" not in page and "<i>.json" not in page


def test_a_killed_side_is_told(results):
    result = copy.deepcopy(results["peer.json"])
    for run in result["raw"]["runs"]:
        if run["side"] == "peer":
            run.update(exit_status=-9, tokens=[], output=[])
            run["phases"].update(prompt_s=None, first_token_s=None)
            run["settings"]["memory_cap"] = {"oom_kills": 1}
            run["settings"]["ended"] = "out of memory under the cap"
    page = render([("killed.json", seal(result))])
    assert "peer: 3 of 3 runs ended early: out of memory under the cap" in page


def test_cold_runs_that_were_not_are_told(results):
    result = copy.deepcopy(results["peer.json"])
    for run in result["raw"]["runs"]:
        run["cold"] = True
        run["settings"]["file_cached_bytes"] = 0
    assert "of the file in the page cache" not in render([("a.json", seal(result))])
    result["raw"]["runs"][2]["settings"]["file_cached_bytes"] = 600_000_000
    assert "up to 5.0 % of the file in the page cache" in render([("a.json", seal(result))])


def test_the_command_writes_it(results, tmp_path, capsys):
    path = tmp_path / "ops.json"
    write_result(path, results["ops.json"])
    out = tmp_path / "page.html"
    assert main(["bench", "report", str(path), "-o", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    assert "matvec/Q6_K/64x256" in out.read_text(encoding="utf-8")
    assert main(["bench", "report", str(tmp_path / "none.json"), "-o", str(out)]) == 1
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "log", "want"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (0, 0.21, False, [0, 0.05, 0.1, 0.15, 0.2]),
        (3, 3, False, [3]),
        (0.4, 12, True, [0.5, 1, 2, 5, 10]),
        (1, 1e6, True, [1, 10, 100, 1000, 1e4, 1e5, 1e6]),
    ],
)
def test_ticks_are_round(low, high, log, want):
    assert ticks(low, high, log) == pytest.approx(want)


def test_places_in_a_chart():
    chart = Chart("c", (0, 10), (0, 4))
    assert chart.x(5) == pytest.approx((chart.x(0) + chart.x(10)) / 2)
    assert chart.y(4) < chart.y(0)
    log = Chart("c", (1, 100), log_x=True)
    assert log.x(10) == pytest.approx((log.x(1) + log.x(100)) / 2)
    assert math.isfinite(log.x(0))
    rows = Chart("c", (0, 1), rows=["a", "b"])
    assert rows.y(0) < rows.y(1)
