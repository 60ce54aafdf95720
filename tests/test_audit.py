# SPDX-License-Identifier: MIT
"""The audit: what it accepts, and that every way to be wrong is refused and named."""

import copy
import json
import random
import re
import shutil
import subprocess
import sys

import pytest
from esker.bench import records
from esker.bench.audit import audit_file, audit_result
from esker.cli import main
from support.results import one_run, paired_result

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not there")


@pytest.fixture(scope="module")
def accepted():
    return paired_result()


@pytest.fixture
def spoilt(accepted):
    return copy.deepcopy(accepted)


def reasons(result):
    return "\n".join(audit_result(result).refused)


def resealed(result, spoil):
    """A result that was made wrong, not edited: its hash and its summary are right."""
    result = copy.deepcopy(result)
    spoil(result["raw"])
    return records.seal(result)


def run(raw, index):
    return raw["runs"][index]


def test_a_good_result_is_accepted(accepted):
    verdict = audit_result(accepted)
    assert verdict.refused == [] and verdict.accepted
    assert verdict.notes == ["not made in a checkout: version 0.1.0"]


# Edits


def numbers(value, place=()):
    """Every number of a JSON value: where it lies."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, (*place, index))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield place


def one_digit_changed(value, place):
    """A copy in which the last digit of one number is another, and so is the number."""
    changed = copy.deepcopy(value)
    at = changed
    for key in place[:-1]:
        at = at[key]
    text = repr(at[place[-1]])
    match = re.match(r"(-?[\d.]*)(\d)(.*)", text)
    others = (match[1] + str((int(match[2]) + by) % 10) + match[3] for by in range(1, 10))
    at[place[-1]] = next(other for other in map(json.loads, others) if other != at[place[-1]])
    return changed


def test_one_digit_of_any_figure_of_the_summary_is_refused(accepted):
    places = list(numbers(accepted["summary"]))
    assert len(places) > 100
    for place in places:
        edited = {**accepted, "summary": one_digit_changed(accepted["summary"], place)}
        name = ".".join(map(str, place)).partition(".ratios")[0]
        assert f"summary.{name}" in reasons(edited), name


def test_one_digit_of_any_raw_number_is_refused(accepted):
    raw = accepted["raw"]
    places = list(numbers(raw))
    names = {name for place in places for name in place}
    assert {"prompt_s", "wall_ns", "prompts", "tokens", "output", "bytes_read"} <= names
    for place in places:
        edited = {**accepted, "raw": one_digit_changed(raw, place)}
        assert "its hash is not raw_sha256" in reasons(edited), place


def test_a_prompt_token_that_changed_is_refused_even_under_a_new_seal(accepted):
    def spoil(raw):
        raw["prompts"][0]["tokens"][5] += 1

    assert "prompt 0: its tokens do not have its hash" in reasons(resealed(accepted, spoil))


def test_a_prompt_text_that_changed_is_refused(accepted):
    def spoil(raw):
        raw["prompts"][0]["text"] = "How do"

    assert "prompt 0: its text does not have its hash" in reasons(resealed(accepted, spoil))


def test_figures_typed_into_the_summary_are_refused(spoilt):
    spoilt["summary"]["sides"]["esker"]["decode_best"] = {"median": 99}
    del spoilt["summary"]["sides"]["peer"]["load_s"]
    told = reasons(spoilt)
    assert "summary.sides.esker.decode_best does not follow from the raw runs" in told
    assert "summary.sides.peer.load_s is missing" in told


def test_a_true_is_no_one(spoilt):
    spoilt["summary"]["pairs"]["decode_rate"]["n"] = True
    assert "summary.pairs.decode_rate.n" in reasons(spoilt)


# Form


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("raw", "runs", 0, "phases", "prompt_s"), "2.0", "raw.runs.0.phases.prompt_s: got '2.0'"),
        (("raw", "runs", 0, "phases", "prompt_s"), -1, "raw.runs.0.phases.prompt_s: got '-1'"),
        (("raw", "runs", 0, "phases", "prompt_s"), 1e300, "prompt_s: got '1e+300', want int or"),
        (("raw", "runs", 0, "tokens", 1, "wall_ns"), True, "raw.runs.0.tokens.1.wall_ns"),
        (("raw", "runs", 0, "tokens", 1, "hits"), None, "raw.runs.0.tokens.1.hits"),
        (("raw", "runs"), {}, "raw.runs: want a list"),
        (("raw", "more"), 1, "raw.more is no field of a result"),
        (("raw", "guard"), {}, "raw.guard.limits is missing"),
        (("raw",), [], "raw: want an object"),
        (("version",), 2, "want format esker-result, version 1"),
    ],
)
def test_a_file_of_another_form_is_refused(spoilt, place, value, complaint):
    at = spoilt
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert complaint in reasons(spoilt)


def test_every_field_is_required(accepted):
    def spoil(target, key):
        spoilt = copy.deepcopy(accepted)
        del target(spoilt)[key]
        return reasons(spoilt)

    for key in accepted["raw"]:
        assert f"raw.{key} is missing" in spoil(lambda r: r["raw"], key)
    for key in accepted["raw"]["runs"][0]:
        assert f"raw.runs.0.{key} is missing" in spoil(lambda r: r["raw"]["runs"][0], key)
    for key in accepted:
        assert not audit_result({k: v for k, v in accepted.items() if k != key}).accepted


def test_whatever_stands_anywhere_the_audit_ends_with_a_verdict(accepted):
    def places(value, place=()):
        yield place
        if isinstance(value, (dict, list)):
            keys = value if isinstance(value, dict) else range(len(value))
            for key in keys:
                yield from places(value[key], (*place, key))

    every = [place for place in places(accepted) if place]
    for place in random.Random(7).sample(every, 80):
        for value in (None, -1, 1e308, "x", [], [1], {}, {"a": 1}, True):
            edited = copy.deepcopy(accepted)
            at = edited
            for key in place[:-1]:
                at = at[key]
            same = json.dumps(at[place[-1]]) == json.dumps(value)
            at[place[-1]] = value
            assert audit_result(edited).accepted == same, (place, value)


# Runs that no figure can be made of


def drop_pair(raw):
    raw["runs"] = [r for r in raw["runs"] if r["pair"] != 2]


def drop_one_of_a_pair(raw):
    raw["runs"].pop()


def peers_after_all_others(raw):
    raw["runs"].sort(key=lambda r: r["side"])
    for index, each in enumerate(raw["runs"]):
        each["order"] = index


def other_prompt(raw):
    prompt = records.new_prompt([1, 2, 3], source="another")
    raw["prompts"].append(prompt)
    run(raw, 1)["prompt_sha256"] = prompt["tokens_sha256"]


def set_run(index, **changes):
    def spoil(raw):
        run(raw, index).update(changes)

    return spoil


def set_setting(index, **changes):
    def spoil(raw):
        run(raw, index)["settings"].update(changes)

    return spoil


def set_all(side, **changes):
    def spoil(raw):
        for each in raw["runs"]:
            if each["side"] == side:
                each["settings"].update(changes)

    return spoil


def out_of_memory(*indices):
    def spoil(raw):
        for index in indices:
            run(raw, index).update(exit_status=-9, tokens=[], output=[])
            run(raw, index)["settings"]["memory_cap"] = {"oom_kills": 1}

    return spoil


def stopped(raw):
    guard = {**run(raw, 2)["guard"], "stopped": True, "reason": "9 bytes available, limit 10"}
    run(raw, 2)["guard"] = guard


def backwards(raw):
    tokens = run(raw, 0)["tokens"]
    tokens[2]["wall_ns"], tokens[3]["wall_ns"] = tokens[3]["wall_ns"], tokens[2]["wall_ns"]


def shorter(raw):
    run(raw, 1)["tokens"].pop()
    run(raw, 1)["output"].pop()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (drop_pair, "esker, decode_rate: n = 2, want at least 3 repeats"),
        (drop_one_of_a_pair, "pair 2 is not one run of each side: it has esker"),
        (peers_after_all_others, "pair 0: the sides did not take turns"),
        (set_run(0, pair=1), "pair 0 is not one run of each side: it has peer"),
        (set_run(0, pair=None), "run 0 (esker) belongs to no pair"),
        (other_prompt, "pair 0: the sides read different prompts"),
        (other_prompt, "side peer mixes prompts in one figure"),
        (set_run(0, prompt_sha256="0" * 64), "run 0 (esker) names a prompt that is not in the"),
        (set_run(0, prompt_sha256=None), "run 0 (esker) has tokens and no prompt"),
        (set_run(1, cold=True), "pair 0: one side is cold, the other warm"),
        (set_run(1, cold=True), "side peer mixes cold and warm runs in one figure"),
        (set_all("peer", threads=1), "pair 0: the sides differ in threads: 2 and 1"),
        (set_all("esker", threads=None), "pair 0: how many threads ran is not recorded"),
        (set_setting(1, threads=1), "side peer mixes settings in one figure: threads"),
        (set_all("peer", model_sha256="x"), "pair 0: the sides differ in model_sha256"),
        (set_all("peer", model_sha256="x"), "run 1 (peer) ran another model than the file names"),
        (set_all("esker", memory_cap_bytes=1), "the sides differ in memory_cap_bytes: 1 and null"),
        (stopped, "the guard stopped run 2 (peer): 9 bytes available, limit 10"),
        (set_run(3, exit_status=-9), "run 3 (esker) ended with exit status -9"),
        (set_run(3, exit_status=None), "run 3 (esker) ended with exit status None"),
        (set_setting(3, quick=True), "run 3 (esker) is a quick one"),
        (out_of_memory(1), "side peer: 1 of 3 runs were out of memory"),
        (backwards, "run 0 (esker): its tokens do not follow each other in time"),
        (shorter, "pair 0: the sides generated 5 and 4 tokens"),
        (set_run(0, output=[1]), "run 0 (esker): 5 tokens were timed and 1 generated"),
        (set_run(0, order=5), "the runs do not stand in the order in which they were made"),
        (set_run(5, warmup=True), "run 1 (peer) was made before a warm-up"),
        (lambda raw: run(raw, 0)["phases"].update(prompt_s=9.0), "the prompt took longer than"),
        (lambda raw: run(raw, 0)["phases"].update(first_token_s=2.2), "first_token_s is not when"),
        (lambda raw: run(raw, 0)["phases"].update(load_s=None), "only 2 of 3 runs"),
        (lambda raw: run(raw, 0)["tokens"][1].update(hits=48), "more hits and misses than lookups"),
        (lambda raw: raw.update(varies=["threads"]), "esker and its peer must agree in all"),
        (lambda raw: raw.update(compare=None), "the case is peer and no two sides are compared"),
        (lambda raw: raw.update(compare=["esker", "esker"]), "want two sides"),
        (lambda raw: raw.update(case="speed"), "case: got 'speed'"),
        (lambda raw: raw["runs"].clear(), "there are no runs"),
        (lambda raw: raw.update(model=None, case="decode"), "the file names none"),
        (lambda raw: raw.update(case="prefill", prompts=[]), "names a prompt that is not in"),
    ],
)
def test_what_no_figure_can_be_made_of_is_refused(accepted, spoil, complaint):
    assert complaint in reasons(resealed(accepted, spoil))


def test_a_case_needs_what_it_measures(accepted):
    def spoil(raw):
        raw["case"] = "prefill"
        for each in raw["runs"]:
            each["phases"]["prompt_s"] = None

    assert "side esker has no prompt_rate, which prefill measures" in reasons(
        resealed(accepted, spoil)
    )


def test_sides_that_are_meant_to_differ_may(accepted):
    def spoil(raw):
        raw.update(case="decode", compare=["two", "one"], varies=["threads"])
        for each in raw["runs"]:
            each["side"] = {"esker": "two", "peer": "one"}[each["side"]]
            each["settings"]["threads"] = {"two": 2, "one": 1}[each["side"]]

    verdict = audit_result(resealed(accepted, spoil))
    assert verdict.accepted
    assert "the sides are meant to differ in threads" in verdict.notes


def test_a_side_that_never_fits_is_an_outcome(accepted):
    result = resealed(accepted, out_of_memory(1, 2, 5))
    verdict = audit_result(result)
    assert verdict.refused == []
    assert "side peer has no figures: it was out of memory under its cap" in verdict.notes
    assert result["summary"]["failed"] == {"peer": 3}
    assert set(result["summary"]["sides"]) == {"esker"} and result["summary"]["pairs"] == {}


def test_samples_count_as_repeats(accepted):
    def spoil(raw):
        raw.update(case="disk", compare=None, prompts=[])
        raw["runs"] = [one_run("esker", 0, 1, tokens=[], output=[], prompt_sha256=None)]
        run(raw, 0)["phases"] = dict.fromkeys(run(raw, 0)["phases"])
        run(raw, 0)["memory"] = {"before": None, "during": [], "after": None}
        run(raw, 0)["samples"] = [{"name": "read", "bytes": 9, "ns": ns} for ns in (7, 8, 9)]

    assert audit_result(resealed(accepted, spoil)).accepted

    def spoil_more(raw):
        spoil(raw)
        run(raw, 0)["samples"].pop()

    assert "read:ns: n = 2" in reasons(resealed(accepted, spoil_more))


# Notes


@needs_git
def test_what_a_reader_should_know_is_noted(accepted, tmp_path):
    def spoil(raw):
        raw["software"] = {
            "version": None,
            "native_sha256": None,
            "source": {"commit": "0" * 40, "dirty": True},
        }
        for each in raw["runs"]:
            each["guard"] = None
            each["settings"].update(cache_prior=0.85)
            each["settings"]["profile_text_sha256"] = raw["prompts"][0]["text_sha256"]
            each["memory"]["after"]["swap_out_pages"] = 5
        raw["runs"][2:4] = raw["runs"][3:1:-1]
        for index, each in enumerate(raw["runs"]):
            each["order"] = index

    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    verdict = audit_result(resealed(accepted, spoil), tmp_path)
    assert verdict.accepted
    told = "\n".join(verdict.notes)
    for note in (
        "no hash of the native library",
        "the source tree had changes that are not in commit 000000000000",
        "commit 000000000000 is not in the history of this repository",
        "cache_prior changes results, and what it costs in quality is not measured",
        "no guard watched the machine",
        "hit rates are in-sample",
        "esker always went first",
        "the machine swapped during run 0 (esker)",
    ):
        assert note in told


def git(folder, *words):
    settings = ("user.name=t", "user.email=t@example.com", "commit.gpgsign=false")
    who = [word for setting in (*settings, "core.hooksPath=none") for word in ("-c", setting)]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@needs_git
def test_a_commit_of_this_repository_is_known(accepted, tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "second")
    source = {"commit": commit, "dirty": False}
    result = resealed(accepted, lambda raw: raw["software"].update(source=source))
    assert audit_result(result, tmp_path).notes == []


# The command


@pytest.fixture
def audit(capsys):
    def call(*words):
        status = main(["audit", *map(str, words)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_command_says_what_it_found(audit, accepted, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    records.write_result(good, accepted)
    bad.write_text(good.read_text().replace('"wall_ns": 2200000000', '"wall_ns": 2200000001', 1))
    status, out, _ = audit(good)
    assert status == 0 and out.startswith(f"{good}: accepted\n")
    status, out, _ = audit(good, bad)
    assert status == 1
    assert f"{bad}: refused\n  refused: the raw part is not the one" in out


def test_the_command_gives_json(audit, accepted, tmp_path):
    good = tmp_path / "good.json"
    records.write_result(good, accepted)
    status, out, err = audit(good, tmp_path / "none.json", "--json")
    told = json.loads(out)
    assert (status, err) == (1, "")
    assert told["accepted"] is False
    assert [file["accepted"] for file in told["files"]] == [True, False]
    assert "cannot be read" in told["files"][1]["refused"][0]


def test_the_command_needs_no_native_module(accepted, tmp_path):
    good = tmp_path / "good.json"
    records.write_result(good, accepted)
    code = (
        "import sys; sys.modules['esker._core'] = None; sys.modules['numpy'] = None;"
        f" from esker.cli import main; sys.exit(main(['audit', {str(good)!r}]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_was_read_is_judged_with_its_result(accepted, tmp_path):
    records.write_result(tmp_path / "r.json", accepted)
    verdict, result = audit_file(tmp_path / "r.json")
    assert verdict.accepted and result == accepted
    (tmp_path / "r.json").write_text("{")
    verdict, result = audit_file(tmp_path / "r.json")
    assert not verdict.accepted and result is None
