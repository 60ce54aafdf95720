# SPDX-License-Identifier: MIT
"""The test suite's own tools, checked against the stored references: no engine is involved.

Whatever the oracle and the tiny models are used for elsewhere rests on these.
"""

import numpy as np
import pytest
from support.compare import assert_close, compare, kl_divergence
from support.gguf_io import Q2_0, dequantize, quantize, read_metadata, read_tensors
from support.oracle import Oracle
from support.prompts import PROMPT_NAMES, prompts
from support.tiny_model import (
    SHAPE_B,
    SHAPE_MICRO,
    FileOptions,
    Type,
    _tiled,
    ple_head_sizes,
    ple_multipliers,
    write_model,
)

# Measured: at most 2e-5 over all models, prompts and rows, but for one row of b at 6e-5.
ORACLE_LIMIT = 1e-4


@pytest.mark.parametrize("name", ["micro", "micro-f16", "a", "b", "mq-mix1", "mq-mix2"])
def test_oracle_equals_reference(name, model_path, reference):
    oracle = Oracle(model_path(name))
    for prompt, tokens in prompts().items():
        if prompt != "n130":  # a prefix of n300
            assert_close(reference(name)[prompt], oracle.evaluate(tokens), ORACLE_LIMIT, prompt)


def test_references_hold_every_prompt(reference):
    for name in ("micro", "micro-f16", "a", "b", "mq-mix1", "mq-mix2"):
        shapes = {prompt: logits.shape for prompt, logits in reference(name).items()}
        assert shapes == {prompt: (len(tokens), 512) for prompt, tokens in prompts().items()}
    assert len(PROMPT_NAMES) == 12


@pytest.mark.parametrize("suffix, base_type", [("f32", Type.F32), ("f16", Type.F16)])
def test_tiny_micro_equals_converted_file(suffix, base_type, oracle_dir, tmp_path):
    """The stored files came from llama.cpp's converter."""
    stored = oracle_dir / f"micro-{suffix}.gguf"
    made = write_model(tmp_path / "micro.gguf", SHAPE_MICRO, FileOptions(base_type=base_type))
    want, got = read_tensors(stored), read_tensors(made)
    assert want.keys() == got.keys()
    for name, (weight_type, data, shape) in want.items():
        assert got[name][0] == weight_type and got[name][2] == shape, name
        assert got[name][1].tobytes() == data.tobytes(), name
    want, got = read_metadata(stored), read_metadata(made)
    keys = {key for key in want if key.startswith("qwen4exp.")}
    assert keys == {key for key in got if key.startswith("qwen4exp.")}
    assert {key: want[key] for key in keys} == {key: got[key] for key in keys}


def test_head_order_is_tiled():
    """With nv/nk = 3 the re-ordering is not its own inverse: a wrong direction shows."""
    grouped = np.arange(6 * 2).reshape(6, 2) // 2 // 3  # key head of value head j, two rows each
    tiled = _tiled(grouped.reshape(12), 2, 6, 2).reshape(6, 2)
    assert tiled[:, 0].tolist() == [j % SHAPE_B.lk for j in range(6)]


def test_ple_constants_equal_published_ones():
    """Those of the real model, as its checkpoint and other people's headers have them."""
    assert ple_multipliers(248320, 3) == [23703573157769, 20109073645365, 8052911324071]
    sizes = ple_head_sizes(20_000_000, 16)
    assert (sizes[0], sizes[-1], sum(sizes)) == (20000003, 20000171, 320001446)


def test_layouts_hold_the_same_weights(tmp_path):
    plain = Oracle(write_model(tmp_path / "plain.gguf", SHAPE_MICRO))
    options = FileOptions(
        fused=True, shards=3, alignment=256, shuffle=5, recurrent_key=False, table_file=True
    )
    path = write_model(tmp_path / "other.gguf", SHAPE_MICRO, options)
    other = Oracle(path, table=tmp_path / "other-table.gguf")
    assert path.name == "other-00001-of-00003.gguf"
    tokens = prompts()["eos6"]
    assert np.array_equal(plain.evaluate(tokens), other.evaluate(tokens))


def test_q2_0_keeps_its_levels():
    levels = np.array([-1, 0, 1, 2], np.float32)[np.arange(192).reshape(3, 64) % 4]
    values = levels * np.array([[0.5], [2], [0]], np.float32)
    assert np.array_equal(dequantize(quantize(values, Q2_0), Q2_0), values)


def test_compare_measures_what_it_says():
    a = np.array([[1.0, 2.0, 4.0], [0.0, 3.0, 1.0]])
    b = a + np.array([[5.0], [-3.0]])
    assert np.allclose(kl_divergence(a, b), 0, atol=1e-12)
    b = a[:, ::-1]
    result = compare(a, b)
    assert (result.diff_max, result.diff_max_row, result.top1_equal) == (3.0, 0, 0.5)
    p = np.exp(a[0]) / np.exp(a[0]).sum()
    assert np.isclose(kl_divergence(a, b)[0], (p * np.log(p / p[::-1])).sum())
