# SPDX-License-Identifier: MIT
"""Quantisers through Python: their errors beside those of ggml's reference quantisers, and the
rules of the call.  Exact cases and odd values: native/test_quantize.cpp."""

import gguf
import numpy as np
import pytest
from esker import NumericError, UsageError, _core
from support.gguf_io import Q2_0, dequantize

TYPES = {
    "F32": 0, "F16": 1, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30,
    "Q2_0": 42,
}  # fmt: skip

# Squared error over the weights' own squares, 100 rows of 2560, PCG64(7): ours when measured, and
# what ggml_quantize_chunk without importance matrix (llama-cpp-python 0.3.36) makes of the same
# rows.
#          normal, std 0.02    Laplace, scale 0.02  uniform, -1 to 1     normal + 0.01, std 0.02
ERRORS = {
    "Q8_0": ((.000027, .000029), (.000044, .000045), (.000013, .000014), (.000027, .000028)),
    "Q4_K": ((.005030, .005091), (.006979, .007159), (.002946, .002967), (.004020, .004059)),
    "Q6_K": ((.000277, .000316), (.000416, .000469), (.000155, .000175), (.000271, .000309)),
    "IQ4_NL": ((.00536, .00579), (.00713, .00768), (.00382, .00411), (.00521, .00558)),
    "IQ4_XS": ((.00542, .00588), (.00722, .00780), (.00386, .00418), (.00527, .00567)),
    "Q2_0": ((.12315, .51538), (.15922, .52718), (.09432, .23870), (.08960, .50834)),
}  # fmt: skip
KINDS = ("normal", "laplace", "uniform", "shifted")


def weights(kind, n=2560 * 40):
    rng = np.random.Generator(np.random.PCG64(7))
    if kind == "laplace":
        return rng.laplace(0, 0.02, n).astype(np.float32)
    if kind == "uniform":
        return rng.uniform(-1, 1, n).astype(np.float32)
    x = 0.02 * rng.standard_normal(n, np.float32)
    return x + np.float32(0.01) if kind == "shifted" else x


def relative_error(x, y):
    x, y = x.astype(np.float64), y.astype(np.float64)
    return ((x - y) ** 2).sum() / (x**2).sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ERRORS)
def test_error_is_at_most_what_was_measured_and_below_ggmls(name, kind):
    x = weights(kind)
    data = _core.quantize_weights(TYPES[name], x)
    error = relative_error(x, _core.decode_weights(TYPES[name], data, x.size))
    ours, ggmls = ERRORS[name][KINDS.index(kind)]
    assert error < 1.03 * ours  # other rows than those of the measurement
    assert error < ggmls


@pytest.mark.parametrize("name", TYPES)
def test_blocks_mean_to_the_gguf_package_what_they_mean_to_us(name):
    x = weights("normal", 2560)
    data = np.frombuffer(_core.quantize_weights(TYPES[name], x), np.uint8)
    kind = Q2_0 if name == "Q2_0" else gguf.GGMLQuantizationType[name]
    expected = dequantize(data, kind)
    got = _core.decode_weights(TYPES[name], data.tobytes(), x.size)
    assert np.array_equal(got, expected.reshape(-1))


def test_f16_and_bf16_are_rounded_as_numpy_and_the_gguf_package_do():
    x = weights("normal", 4096)
    assert _core.quantize_weights(1, x) == x.astype(np.float16).tobytes()
    bf16 = gguf.quants.quantize(x, gguf.GGMLQuantizationType.BF16)
    assert _core.quantize_weights(30, x) == bf16.tobytes()
    assert _core.quantize_weights(0, x) == x.tobytes()


def test_the_same_weights_give_the_same_bytes():
    x = weights("laplace", 5120)
    for id_ in TYPES.values():
        assert _core.quantize_weights(id_, x) == _core.quantize_weights(id_, x.copy())


def test_nothing_is_nothing():
    for id_ in TYPES.values():
        assert _core.quantize_weights(id_, np.empty(0, np.float32)) == b""


def test_wrong_calls_are_refused():
    with pytest.raises(UsageError, match="not whole blocks of type IQ4_XS: got 32 weights"):
        _core.quantize_weights(23, np.zeros(32, np.float32))
    with pytest.raises(UsageError, match="no quantiser for this weight type: got IQ3_S"):
        _core.quantize_weights(21, np.zeros(256, np.float32))
    with pytest.raises(UsageError, match="unknown weight type: got 77"):
        _core.quantize_weights(77, np.zeros(32, np.float32))
    x = np.zeros(64, np.float32)
    x[3] = np.inf
    with pytest.raises(NumericError, match="infinity in element 3"):
        _core.quantize_weights(8, x)
    with pytest.raises(TypeError):
        _core.quantize_weights(8, np.zeros((2, 32), np.float32))
