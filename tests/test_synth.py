# SPDX-License-Identifier: MIT
"""Synthetic models: they load, they run, they agree with the oracle, routing is what was asked for,
and files of any size are written in constant memory and leave nothing behind when they fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import esker
import gguf
import numpy as np
import pytest
from esker import ReadError, UsageError, _core
from esker.gguf_writer import WEIGHT_TYPES
from esker.synth import PRESETS, Shape, synthesize, token_stream
from esker.synth.blocks import Pool, generator, random_blocks
from esker.synth.roles import ROLES, TypeRules
from esker.synth.tensors import Plan
from support.compare import assert_close
from support.gguf_io import read_metadata, read_tensors, shard_paths
from support.measure import run_measured
from support.oracle import Oracle
from support.tiny_model import ple_head_sizes, ple_multipliers

TINY = PRESETS["tiny"].shape
# Rows of 256 everywhere but in the table and the mixers' up: any type fits experts and projections.
MICRO = TINY.but(
    layers=2, interval=2, experts=4, experts_used=2, expert_width=256, shared_width=256,
    value_heads=4, low_rank=256,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def small_pools():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "BYTES", 1 << 18)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("synth") / "tiny.gguf"
    preset = PRESETS["tiny"]
    synthesize(path, preset.shape, types=preset.rules, zipf=preset.zipf, sticky=preset.sticky)
    return path


# The models


def test_tiny_preset_from_the_command_line_to_text(esker_, tmp_path):
    path = tmp_path / "m.gguf"
    status, out, err = esker_("synth", "--preset", "tiny", path, "--json")
    result = json.loads(out)
    assert status == 0 and result["paths"] == [str(path)]
    assert result["bytes"] == path.stat().st_size == pytest.approx(3.7e6, rel=0.1)
    assert result["bytes_per_second"] > 0 and "note: ssm_out: IQ4_NL instead of IQ4_XS" in err
    assert os.listdir(tmp_path) == ["m.gguf"]
    metadata = read_metadata(path)
    assert metadata["general.name"] == "tiny"
    assert metadata["esker.synth.seed"] == 1
    assert metadata["esker.synth.command"] == f"esker synth --preset tiny {path} --json"
    status, out, err = esker_("run", "Hello", "--model", path, "-n", "8", "--temperature", "0")
    assert status == 0, err
    assert len(out.split()) >= 4  # pseudo-words
    status, out, _ = esker_("info", path)
    assert status == 0 and "unused tensors: none" in out


def test_logits_are_the_oracles_and_lively(open_model, tiny):
    tokens = token_stream(24, 3, n_vocab=496)
    expected = Oracle(tiny).evaluate(tokens)
    got = open_model(tiny).logits(tokens.tolist())
    assert_close(expected, got, 1e-3)
    assert 1 < got.std() < 5
    assert len(set(got.argmax(-1))) > len(tokens) // 3


@pytest.mark.parametrize("layers", [2, 16])
def test_depth_changes_no_magnitudes(tmp_path, layers):
    path = tmp_path / "deep.gguf"
    shape = TINY.but(layers=layers, experts=8, expert_width=32, ngram_heads=2)
    synthesize(path, shape, types=["dense,experts,mixers=F16"])
    with esker.Model(path) as model:
        logits = model.logits(token_stream(24, 4, n_vocab=496).tolist())
    assert 1.5 < logits.std() < 4


@pytest.mark.parametrize(
    "changes",
    [
        {"ngram": 0},
        {"index_ratio": 0},
        {"interval": 100},
        {"interval": 1},
        {"experts": 1, "experts_used": 1},
        {"experts_used": 16},
        {"streams": 2, "low_rank": 8},
        {"ngram": 2, "ngram_layer": 3, "ngram_heads": 16, "hidden": 512},
        {"layers": 1, "ngram_layer": 0, "vocab": 288, "conv": 2, "kv_heads": 4},
    ],
)
def test_unusual_shapes_run(tmp_path, changes):
    path = tmp_path / "m.gguf"
    synthesize(path, TINY.but(**{"layers": 4, **changes}), zipf=0.5, sticky=0.5)
    with esker.Model(path) as model:
        logits = model.logits([1, 2, 3, 200, 5, 6])
    assert np.isfinite(logits).all() and logits.std() > 0.5


def test_text_goes_in_and_out(open_model, tiny):
    tokenizer = open_model(tiny).tokenizer
    text = "Hello, the 3 Straßen\n\tin \U0001f600"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.stop_tokens == {496, 498} and tokenizer.eos == 498
    tokens = [tokenizer.decode([i]) for i in range(264, 496)]
    assert len(set(tokens)) == len(tokens)
    assert all(re.fullmatch(" ([bdfgklmnprstvz][aeiou]){2,}", token) for token in tokens)
    assert open_model(tiny).chat_template is not None


def test_metadata_are_those_of_the_converter(tiny, oracle_dir):
    ours, theirs = read_metadata(tiny), read_metadata(oracle_dir / "micro-f32.gguf")
    extra = {key for key in ours if key.startswith("esker.synth.")}
    assert set(theirs) - set(ours) <= {"general.size_label", "general.file_type"}
    bos = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token"}
    assert set(ours) - extra - set(theirs) <= bos
    types = {name: len(value) for name, value in ours.items() if isinstance(value, list)}
    assert types["qwen4exp.attention.compress_ratios"] == TINY.layers
    ours_names = set(read_tensors(tiny))
    assert ours_names == set(read_tensors(oracle_dir / "micro-f32.gguf"))


def test_ngram_constants_follow_the_rule():
    assert TINY.head_sizes == ple_head_sizes(500, 8)
    assert TINY.multipliers == ple_multipliers(512, 3)
    real = Shape()
    assert real.multipliers == [23703573157769, 20109073645365, 8052911324071]
    assert real.head_sizes[0] == 20000003 and real.head_sizes[-1] == 20000171
    assert sum(real.head_sizes) == 320001446 and real.table_rows == 320001536
    assert real.rope_sections == [11, 11, 10, 0] and TINY.rope_sections == [6, 5, 5, 0]


# Types


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_random_blocks_have_the_wanted_deviation(name):
    kind = WEIGHT_TYPES[name]
    for std in (0.003, 0.05, 1.0):
        n = max(1, 200_000 // kind.block_elements)
        blocks = random_blocks(kind, n, std, generator(5))
        assert blocks.shape == (n, kind.block_bytes) and blocks.dtype == np.uint8
        weights = _core.decode_weights(kind.id, blocks.tobytes(), n * kind.block_elements)
        assert np.isfinite(weights).all()
        assert weights.std() == pytest.approx(std, rel=0.03)
        assert abs(weights.mean()) < 0.11 * std  # Q4_0 and Q5_0 have one level more below zero


def test_weight_types_are_those_of_the_header(data_dir):
    header = (data_dir.parent.parent / "csrc" / "abi" / "weight_types.h").read_text()
    ids = dict(re.findall(r"k(\w+) = (\d+),", header))
    rows = re.findall(r'\{WeightType::k(\w+), "(\w+)", (\d+), (\d+)\}', header)
    assert {row[1]: (int(ids[row[0]]), row[1], int(row[2]), int(row[3])) for row in rows} == {
        name: tuple(kind) for name, kind in WEIGHT_TYPES.items()
    }


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_every_type_runs_in_every_role(tmp_path, name):
    path = tmp_path / "m.gguf"
    synthesize(path, MICRO, types=[f"experts,dense,mixers,table={name}"])
    got = {name: kind.name for name, (kind, _, _) in read_tensors(path).items()}
    fits = MICRO.table_width % WEIGHT_TYPES[name].block_elements == 0
    for tensor, kind in got.items():
        if "_exps" in tensor or "attn_qkv" in tensor or "hc_ffn_up" in tensor:
            assert kind == name, tensor
        if "per_layer" in tensor and fits:
            assert kind == name
    with esker.Model(path) as model:
        logits = model.logits([5, 6, 7])
    assert np.isfinite(logits).all() and logits.std() > 0.5


def test_rules_choose_by_role_layer_and_order():
    rules = TypeRules(
        ["experts=IQ2_S", "down=Q2_0", "gate,up@0-1=IQ3_S", "attn_qkv@2+4-5=Q6_K", "router=bf16"]
    )
    chosen = {
        (name, layer): rules.choose(name, layer, (2560, 640)).name
        for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "attn_qkv", "ffn_gate_inp")
        for layer in range(6)
    }
    assert [chosen["ffn_gate_exps", i] for i in range(3)] == ["IQ3_S", "IQ3_S", "IQ2_S"]
    assert chosen["ffn_up_exps", 1] == "IQ3_S" and chosen["ffn_down_exps", 0] == "Q2_0"
    layers = [i for i in range(6) if chosen["attn_qkv", i] == "Q6_K"]
    assert layers == [2, 4, 5] and chosen["attn_qkv", 0] == "IQ4_XS"
    assert chosen["ffn_gate_inp", 3] == "BF16"
    assert rules.choose("hc_attn_norm", 0, (2560,)).name == "F32"
    assert rules.notes == []


@pytest.mark.parametrize(
    ("asked", "row", "got"),
    [
        ("IQ2_S", 640, "IQ4_NL"), ("IQ4_XS", 320, "IQ4_NL"), ("Q2_0", 96, "Q4_0"),
        ("Q2_K", 320, "Q4_0"), ("Q4_K", 640, "Q5_0"), ("Q5_K", 640, "Q5_1"), ("Q6_K", 640, "Q8_0"),
        ("Q8_0", 4, "F16"), ("IQ3_S", 4, "F16"), ("NVFP4", 32, "F16"),
    ],
)  # fmt: skip
def test_types_that_do_not_fit_are_replaced_as_llama_quantize_does(asked, row, got):
    rules = TypeRules([f"ffn_down_shexp={asked}"])
    assert rules.choose("ffn_down_shexp", 0, (row, 256)).name == got
    want = f"ffn_down_shexp: {got} instead of {asked}, whose blocks do not divide rows of {row}"
    assert rules.notes == [want]


def test_roles_name_every_tensor_but_the_plain_ones():
    plan = Plan(PRESETS["tiny"].shape, TypeRules([f"{role}=F16" for role in ROLES]), 32)
    plain = {fill.short for fill in plan if fill.tensor.type.name == "F32"}
    assert all("norm" in name or name.startswith("ssm_") for name in plain - {"ffn_gate_inp_shexp"})


# The presets of the real model, against the published counts and sums


def by_tensor(name):
    counts, sizes = {}, {}
    for fill in Plan(PRESETS[name].shape, TypeRules(PRESETS[name].rules), 64):
        types = counts.setdefault(fill.short, {})
        types[fill.tensor.type.name] = types.get(fill.tensor.type.name, 0) + 1
        sizes[fill.short] = sizes.get(fill.short, 0) + fill.tensor.bytes
    return counts, sizes


@pytest.mark.parametrize("name", ["k512-iq2_xs", "k256-q2_0"])
def test_real_presets_have_the_published_types(name):
    counts, sizes = by_tensor(name)
    assert sum(sum(types.values()) for types in counts.values()) == 1224
    assert counts["attn_qkv"] == {"IQ4_XS": 35, "IQ3_S": 1}
    assert counts["attn_gate"] == {"IQ4_XS": 22, "IQ3_S": 11, "Q6_K": 3}
    assert counts["ssm_out"] == {"IQ4_XS": 29, "IQ3_S": 6, "Q6_K": 1}
    assert counts["attn_q"] == {"IQ4_XS": 11, "IQ3_S": 1}
    assert counts["attn_output"] == {"IQ4_XS": 10, "IQ3_S": 1, "Q6_K": 1}
    both = [counts["ffn_gate_shexp"], counts["ffn_up_shexp"]]
    sums = {kind: sum(types[kind] for types in both) for kind in both[0]}
    assert sums == {"IQ4_XS": 57, "IQ3_S": 23, "Q6_K": 16}
    assert set(counts["ffn_down_shexp"]) == {"IQ4_NL", "Q8_0", "Q2_0"}
    shared = sum(sizes[f"ffn_{part}_shexp"] for part in ("gate", "up", "down"))
    assert shared / 1e6 == pytest.approx(134.98, abs=0.005)
    rest = ("indexer.q_proj", "indexer.k_proj", "attn_k", "attn_v", "ssm_alpha", "ssm_beta")
    assert sum(sizes[short] for short in rest) / 1e6 == pytest.approx(76.63, abs=0.005)
    assert sizes["output"] / 1e6 == pytest.approx(337.72, abs=0.005)
    assert counts["ffn_gate_inp"] == {"BF16": 48} and counts["ple_key"] == {"BF16": 1}
    assert counts["hc_ffn_down"] == {"Q8_0": 48}
    experts = {"IQ3_S": 2, "IQ2_S": 34, "IQ2_XXS": 12}
    if name.startswith("k256"):
        experts = {"Q2_0": 48}
    assert counts["ffn_gate_exps"] == counts["ffn_up_exps"] == experts
    assert counts["ffn_down_exps"] == {"Q2_0": 48}


def test_a_header_alone_says_where_everything_would_lie(esker_, tmp_path):
    words = ("synth", "--preset", "tiny")
    assert esker_(*words, tmp_path / "whole.gguf")[0] == 0
    assert esker_(*words, tmp_path / "head.gguf", "--header-only")[0] == 0
    os.truncate(tmp_path / "head.gguf", 4_000_000)  # the gguf package wants the data to be there
    whole, head = (read_metadata(tmp_path / f"{name}.gguf") for name in ("whole", "head"))
    assert head.pop("esker.header_only") is True
    del whole["esker.synth.command"], head["esker.synth.command"]
    assert whole == head
    infos = [
        [(t.name, t.tensor_type, t.shape.tolist(), t.data_offset - reader.data_offset)
         for t in reader.tensors]
        for reader in map(gguf.GGUFReader, (tmp_path / "whole.gguf", tmp_path / "head.gguf"))
    ]  # fmt: skip
    assert infos[0] == infos[1]


def test_the_header_of_the_real_model_is_written_at_once(esker_, tmp_path):
    path = tmp_path / "real.gguf"
    begin = time.monotonic()
    status, out, _ = esker_("synth", "--preset", "k512-iq2_xs", path, "--header-only", "--json")
    assert status == 0 and time.monotonic() - begin < 10
    assert json.loads(out)["bytes"] == path.stat().st_size < 10_000_000


# Files


def test_the_same_seed_gives_the_same_bytes_and_another_another_model(tmp_path):
    files = []
    for seed in (7, 7, 8):
        path = tmp_path / f"{len(files)}.gguf"
        synthesize(path, MICRO, seed=seed, zipf=1, sticky=0.5)
        files.append(path.read_bytes())
    assert files[0] == files[1] != files[2]


def test_shards_hold_what_one_file_holds(tmp_path, tiny):
    preset = PRESETS["tiny"]
    result = synthesize(
        tmp_path / "parts.gguf", preset.shape, zipf=preset.zipf, sticky=preset.sticky,
        shard_bytes=1_000_000,
    )  # fmt: skip
    count = len(result.paths)
    assert count >= 4
    paths = shard_paths(tmp_path / f"parts-00001-of-{count:05d}.gguf", count)
    assert result.paths == list(map(str, paths))
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)
    assert all(path.stat().st_size < 1_200_000 for path in paths)
    tensors = {}
    for path in paths:
        tensors.update(read_tensors(path))
    single = read_tensors(tiny)
    assert list(tensors) == list(single)
    assert all(np.array_equal(tensors[name][1], single[name][1]) for name in single)
    with esker.Model(paths[0]) as parts, esker.Model(tiny) as whole:
        assert np.array_equal(parts.logits([1, 2, 3]), whole.logits([1, 2, 3]))


def test_memory_does_not_grow_with_the_file(tmp_path):
    code = (
        "import sys; from esker.synth import Shape, synthesize\n"
        "shape = Shape(layers=2, vocab=8192, experts=96, ngram_base=50_000)\n"
        "result = synthesize(sys.argv[1], shape)\n"
        "print(result.bytes)"
    )
    path = tmp_path / "big.gguf"
    written, peak = run_measured(sys.executable, "-c", code, str(path))
    path.unlink()
    assert int(written) > 300e6
    assert peak < 200e6  # 120 MB when measured: numpy, and 16 MiB for each type of an expert


def test_files_are_kept_unless_forced(esker_, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_text("precious")
    status, out, err = esker_("synth", "--preset", "tiny", path)
    assert (status, out) == (1, "") and "the file exists" in err and "hint: --force" in err
    assert path.read_text() == "precious"
    assert esker_("synth", "--preset", "tiny", path, "--force")[0] == 0
    assert path.read_bytes()[:4] == b"GGUF"
    assert "is a folder" in esker_("synth", "--preset", "tiny", tmp_path, "--force")[2]


def test_a_disk_that_is_too_small_is_noticed_before(esker_, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    status, _, err = esker_("synth", "--preset", "tiny", tmp_path / "m.gguf")
    assert status == 1 and "the disk is too small: got '1,000 bytes free', want 3," in err
    assert os.listdir(tmp_path) == []
    status, _, err = esker_("synth", "--preset", "tiny", tmp_path / "no" / "m.gguf")
    assert status == 1 and "esker: error: " in err and "hint: " in err


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(ReadError, match="cannot write: No space left on device"):
        synthesize(tmp_path / "m.gguf", MICRO, shard_bytes=500_000)
    assert os.listdir(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path):
    words = ("synth", tmp_path / "m.gguf", "--layers", "4", "--vocab", "32768", "--ngram", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "esker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 20
    while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert out == b"" and b"Traceback" not in err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--preset", "huge"), "--preset: got 'huge', want one of tiny, real-12"),
        (("--layers", "many"), "--layers: got 'many', want a whole number"),
        (("--layers", "0"), "--layers: got 0, want 1 to 4096"),
        (("--experts-used", "600"), "--experts-used: got 600, want at most --experts"),
        (("--kv-heads", "5"), "--kv-heads: got 5, want a divisor of --heads, 24"),
        (("--ngram-heads", "7"), "--ngram-heads: got 7, want a number that makes 14 divide"),
        (("--rotary", "300"), "--rotary: got 300, want an even number up to --head-width"),
        (("--zipf", "-1"), "--zipf: got '-1', want a number from 0 to 4"),
        (("--sticky", "nan"), "--sticky: got 'nan', want a number from 0 to 1"),
        (("--seed", "-3"), "--seed: got '-3', want 0 to"),
        (("--shard-size", "4XB"), "shard_size: got '4XB', want a size such as"),
        (("--type", "experts"), "--type: got 'experts', want ROLE[,ROLE][@LAYERS]=TYPE"),
        (("--type", "heads=Q8_0"), "role of --type: got 'heads', want one of gate, up"),
        (("--type", "gate=Q9"), "weight type: got 'Q9', want one of F32"),
        (("--type", "gate@x=Q8_0"), "layers of --type: got 'x', want 3, 0-1 or 0-1+5"),
    ],
)
def test_wrong_usage_is_status_2(esker_, tmp_path, words, message):
    status, out, err = esker_("synth", tmp_path / "m.gguf", *words)
    assert (status, out) == (2, "") and message in err
    assert os.listdir(tmp_path) == []


def test_types_that_cannot_hold_exact_values_are_refused(tmp_path):
    with pytest.raises(UsageError, match="type of blk.0.ffn_gate_inp.weight: got 'IQ2_S'"):
        synthesize(tmp_path / "m.gguf", MICRO, types=["router=IQ2_S"])
    with pytest.raises(UsageError, match="hint: --zipf 0 --sticky 0"):
        synthesize(tmp_path / "m.gguf", MICRO, types=["embedding=Q2_K"], zipf=1)
    assert os.listdir(tmp_path) == []
