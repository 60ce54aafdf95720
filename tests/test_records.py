# SPDX-License-Identifier: MIT
"""Result files: what is written is what is read, and every figure is the raw runs' own."""

import json
import struct
import subprocess
import sys

import pytest
from esker.bench import hashes, records
from esker.bench.hashes import model_facts, shard_paths
from esker.bench.summary import sample_key, statistics, summarize
from esker.errors import FormatError, UsageError
from support.results import MODEL, paired_result


def test_a_result_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "r.json"
    written = records.write_result(path, paired_result())
    assert records.read_result(path) == written
    assert written["raw_sha256"] == hashes.sha256_json(written["raw"])
    assert written["summary"] == summarize(written)
    assert [file.name for file in path.parent.iterdir()] == ["r.json"]
    assert list(json.loads(path.read_text()))[:3] == ["format", "version", "raw"]


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "r.json"
    records.write_result(path, paired_result())
    before = path.read_bytes()
    broken = paired_result()
    broken["raw"]["runs"][0]["phases"]["load_s"] = float("nan")
    with pytest.raises(FormatError, match="no JSON"):
        records.write_result(path, broken)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no result file"),
        ("[]", "want format esker-result"),
        ('{"format": "other"}', "want format esker-result"),
        ('{"format": "esker-result", "version": 99}', "version of the result file: got 99"),
        ('{"format": "esker-result", "version": NaN}', "NaN in the file"),
        ('{"format": "esker-result", "version": 1, "version": 1}', "names a key twice"),
        ("[" * 100_000, "no result file"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, text, complaint):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=complaint):
        records.read_result(path)


def test_a_case_must_be_known():
    with pytest.raises(UsageError, match="case"):
        records.new_result("speed", argv=[])


def test_a_new_result_says_where_it_was_made():
    environ = {"ESKER_MODEL": "/home/someone/a.gguf", "HOME": "/home/someone"}
    raw = records.new_result("disk", argv=["bench", "/tmp/x/a.gguf"], environ=environ)["raw"]
    assert raw["environ"] == {"ESKER_MODEL": "a.gguf"}
    assert raw["argv"] == ["bench", "a.gguf"]
    assert raw["machine"]["cores"] >= 1
    assert len(raw["software"]["package_sha256"]) == 64
    assert set(raw["software"]) == {"version", "native_sha256", "package_sha256", "source"}


@pytest.mark.skipif(sys.platform == "darwin", reason="it reads the machine's memory there")
def test_the_native_module_is_not_loaded_for_it():
    code = (
        "import sys; import esker.bench.records, esker.bench.audit, esker.bench.claims;"
        " esker.bench.records.new_result('disk', argv=[]);"
        " sys.exit('esker._core' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_rate_is_of_the_steps_between_tokens():
    """The first token's step belongs to the prompt; so do its counters."""
    run = records.new_run("esker", order=0)
    run["tokens"] = [
        {"wall_ns": 9_000_000_000, "wait_ns": 7_000_000, "lookups": 1000, "hits": 0},
        {"wall_ns": 9_100_000_000, "wait_ns": 1_000_000, "lookups": 10, "hits": 10},
        {"wall_ns": 9_400_000_000, "wait_ns": 3_000_000, "lookups": 10, "hits": 5},
        {"wall_ns": 9_500_000_000, "wait_ns": 2_000_000, "lookups": 20, "hits": 10},
    ]
    result = records.new_result("decode", argv=[])
    result["raw"]["runs"] = [run]
    figures = summarize(result)["sides"]["esker"]
    assert figures["decode_rate"]["median"] == pytest.approx(6.0)
    assert figures["decode_ms"]["median"] == pytest.approx(1000 / 6)
    assert figures["step_ms_median"]["median"] == pytest.approx(100)
    assert figures["step_ms_max"]["median"] == pytest.approx(300)
    assert figures["decode_wait_ms"]["median"] == pytest.approx(2)
    assert figures["decode_lookups"]["median"] == pytest.approx(40 / 3)
    assert figures["decode_hit_rate"]["median"] == 25 / 40
    assert "prompt_rate" not in figures


def test_phases_are_apart_and_the_prompt_has_its_own_rate():
    prompt = records.new_prompt([5, 6, 7, 8], source="made up")
    run = records.new_run("esker", order=0, prompt=prompt)
    run["phases"] = {"load_s": 3.0, "arena_fill_s": 1.0, "prompt_s": 2.0, "first_token_s": 2.5}
    result = records.new_result("prefill", argv=[], prompts=[prompt])
    result["raw"]["runs"] = [run]
    figures = summarize(result)["sides"]["esker"]
    assert figures["prompt_rate"]["median"] == 2.0
    assert figures["load_s"]["median"] == 3.0
    assert "decode_rate" not in figures


def test_statistics_are_robust():
    figure = statistics([5, 1, 100, 3])
    assert figure == {"n": 4, "median": 4, "mad": 2, "min": 1, "max": 100}
    assert statistics([7])["mad"] == 0


def test_ratios_are_taken_pair_by_pair():
    """Medians of ratios, not the ratio of medians: drift of the machine falls out."""
    result = paired_result(steps_ms={"esker": [10, 20, 40], "peer": [30, 60, 240]})
    ratio = summarize(result)["pairs"]["decode_rate"]
    assert ratio["of"] == "esker/peer"
    assert ratio["ratios"] == pytest.approx([3, 3, 6])
    assert ratio["median"] == pytest.approx(3) and ratio["n"] == 3
    assert "decode_lookups" not in summarize(result)["pairs"]  # neither way is better


def test_a_warm_up_is_in_no_figure():
    result = paired_result()
    before = summarize(result)
    extra = json.loads(json.dumps(result["raw"]["runs"][0]))
    extra.update(warmup=True, pair=None)
    result["raw"]["runs"].insert(0, extra)
    after = summarize(result)
    assert (after["sides"], after["pairs"]) == (before["sides"], before["pairs"])


def test_samples_make_figures_of_their_own():
    result = records.new_result("ops", argv=[])
    run = records.new_run("esker", order=0)
    run["samples"] = [
        {"name": "gemv", "type": "Q4_K", "shape": [2560, 640], "bytes": 1000, "ns": ns}
        for ns in (100, 300, 200)
    ]
    run["samples"].append({"name": "a norm", "type": None, "shape": None, "bytes": None, "ns": 5})
    result["raw"]["runs"] = [run]
    figures = summarize(result)["sides"]["esker"]
    assert figures["gemv/Q4_K/2560x640:ns"]["median"] == 200
    assert figures["gemv/Q4_K/2560x640:ns"]["n"] == 3
    assert figures["gemv/Q4_K/2560x640:rate"]["median"] == 1000 / (200 / 1e9)
    assert figures["gemv/Q4_K/2560x640:rate"]["unit"] == "B/s"
    assert sample_key(run["samples"][-1]) == "a_norm"
    assert "a_norm:rate" not in figures


def test_memory_makes_figures():
    result = paired_result()
    figures = summarize(result)["sides"]["esker"]
    assert figures["rss_peak_bytes"]["median"] == 3000
    assert figures["available_min_bytes"]["median"] == 8000
    assert figures["process_major_faults"]["median"] == 4


def test_a_model_is_named_by_its_header_and_a_sample(demo_path, tmp_path):
    facts = model_facts(demo_path)
    assert facts["bytes"] == demo_path.stat().st_size
    assert facts["files"][0]["file"] == demo_path.name
    data = bytearray(demo_path.read_bytes())
    other = tmp_path / "other-name.gguf"
    other.write_bytes(data)
    assert model_facts(other)["sha256"] == facts["sha256"]  # a name is not the model
    data[-1] ^= 1
    other.write_bytes(data)
    changed = model_facts(other)["files"][0]
    assert changed["header_sha256"] == facts["files"][0]["header_sha256"]
    assert changed["sample_sha256"] != facts["files"][0]["sample_sha256"]
    data[-1] ^= 1
    data[facts["files"][0]["header_bytes"] - 1] ^= 1
    other.write_bytes(data)
    assert model_facts(other)["files"][0]["header_sha256"] != facts["files"][0]["header_sha256"]


def test_the_header_ends_where_gguf_says(demo_path):
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(demo_path)
    last = reader.tensors[-1].field
    end = last.offset + sum(part.nbytes for part in last.parts)
    assert model_facts(demo_path)["files"][0]["header_bytes"] == end


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"GGML" + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1000),
        b"GGUF" + struct.pack("<IQQ", 3, 5, 0),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 99),
    ],
)
def test_what_is_no_gguf_is_refused(tmp_path, data):
    path = tmp_path / "a.gguf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="no GGUF header"):
        model_facts(path)


def test_all_shards_are_the_model():
    assert shard_paths("a.gguf") == ["a.gguf"]
    assert shard_paths("d/a-00001-of-00002.gguf") == [
        "d/a-00001-of-00002.gguf",
        "d/a-00002-of-00002.gguf",
    ]


def test_tokens_have_one_hash():
    assert hashes.sha256_tokens([1, 23]) != hashes.sha256_tokens([12, 3])
    assert hashes.sha256_tokens([]) == hashes.sha256_text("")
    assert MODEL["sha256"] == "m" * 64
