# SPDX-License-Identifier: MIT
"""The scalar decoders, bit for bit against gguf.quants.dequantize, for every weight type.

Bytes are random, with the fields that hold scales set on purpose: zero of both signs, subnormal,
the largest finite half, infinity, NaN.  NaNs must stand at the same places; their bits may differ.
"""

import pathlib
import re
import subprocess
import sys
import zlib

import gguf
import gguf.quants
import numpy as np
import pytest
from esker.parity.weights import (
    FINITE_HALVES,
    TYPES,
    decode,
    random_blocks,
    set_halves,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
Q2_0 = 42  # not in the package

OTHER_HALVES = (0x7C00, 0xFC00, 0x7E00, 0xFE01)


def expected(name, blocks):
    type_id = TYPES[name][0]
    with np.errstate(all="ignore"):
        if type_id != Q2_0:
            if name in ("MXFP4", "NVFP4") and not hasattr(gguf.quants, name):
                pytest.skip(f"this gguf package has no {name}")
            qtype = gguf.GGMLQuantizationType(type_id)
            return gguf.quants.dequantize(blocks, qtype).astype(np.float32, copy=False).ravel()
        d = blocks[:, :2].copy().view("<f2").astype(np.float32)
        q = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
        return (d * (q.reshape(len(blocks), 64).astype(np.float32) - 1)).ravel()


def assert_same(name, blocks):
    got, want = decode(name, blocks), expected(name, blocks)
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan)
    differs = (got.view(np.uint32) != want.view(np.uint32)) & ~is_nan
    if differs.any():
        i = int(np.argmax(differs))
        pytest.fail(
            f"{name}, weight {i} ({differs.sum()} in all): got {got[i]!r}, want {want[i]!r}"
        )


@pytest.mark.parametrize("name", TYPES)
def test_random_bytes(name):
    elements = TYPES[name][1]
    assert_same(name, random_blocks(name, max(300, 60000 // elements)))


@pytest.mark.parametrize("name", TYPES)
def test_extreme_scales(name):
    halves = FINITE_HALVES + OTHER_HALVES
    blocks = set_halves(name, random_blocks(name, 2 * len(halves) ** 2, seed=1), halves)
    assert_same(name, blocks)


@pytest.mark.parametrize("name", TYPES)
def test_finite_scales_give_finite_weights(name):
    if name in ("F32", "BF16", "MXFP4"):
        pytest.skip("32-bit exponents: any bits may be infinite")
    blocks = set_halves(name, random_blocks(name, 288, seed=2), FINITE_HALVES)
    assert np.isfinite(decode(name, blocks)).all()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("fill", [0x00, 0x55, 0xAA, 0xFF])
def test_uniform_bytes(name, fill):
    blocks = np.full((len(FINITE_HALVES) ** 2, TYPES[name][2]), fill, np.uint8)
    assert_same(name, set_halves(name, blocks, FINITE_HALVES))


@pytest.mark.parametrize("name", TYPES)
def test_every_value_of_every_byte(name):
    """One byte of a block of scale 1 takes all its values; the others are random."""
    _, _, block_bytes, _ = TYPES[name]
    base = set_halves(name, random_blocks(name, 1, seed=3), (0x3C00,))
    blocks = np.repeat(base, 256 * block_bytes, axis=0).reshape(block_bytes, 256, block_bytes)
    for i in range(block_bytes):
        blocks[i, :, i] = np.arange(256)
    assert_same(name, blocks.reshape(-1, block_bytes))


@pytest.mark.parametrize(
    ("name", "grid_bits"),
    [("IQ2_XS", 9), ("IQ2_S", 10), ("IQ3_S", 9), ("IQ1_S", 11), ("IQ1_M", 11)],
)
def test_every_grid_row(name, grid_bits):
    """Random bytes of these types reach every row of their grid; the numbers say how surely."""
    blocks = set_halves(name, random_blocks(name, 2048, seed=4), (0x3C00,))
    entries = 2048 * (64 if name == "IQ3_S" else 32)
    assert entries * 2.0**-grid_bits > 30  # a row is missed with probability e^-30
    assert_same(name, blocks)


def test_all_halves_and_bfloat16():
    every = np.arange(65536, dtype="<u2").view(np.uint8).reshape(-1, 2)
    assert_same("F16", every)
    assert_same("BF16", every)


def test_table_of_types_is_the_header():
    text = (ROOT / "csrc/abi/weight_types.h").read_text(encoding="utf-8")
    ids = {name: int(i) for name, i in re.findall(r"^  k(\w+) = (\d+),", text, re.MULTILINE)}
    rows = re.findall(r'\{WeightType::k(\w+), "(\w+)", (\d+), (\d+)\}', text)
    assert [a for a, _, _, _ in rows] == [b for _, b, _, _ in rows]
    assert {n: (ids[n], int(e), int(b)) for n, _, e, b in rows} == {
        n: t[:3] for n, t in TYPES.items()
    }
    for name, (type_id, elements, block_bytes, _) in TYPES.items():
        if type_id != Q2_0 and name in gguf.GGMLQuantizationType.__members__:
            qtype = gguf.GGMLQuantizationType(type_id)
            assert qtype.name == name
            assert gguf.GGML_QUANT_SIZES[qtype] == (elements, block_bytes)


# Table: its shape and the CRC-32 of its bytes. A new gguf package must not change what files mean.
CODEBOOKS = {
    "kGridIq2Xxs": ((256, 8), 0x9924FF02),
    "kGridIq2Xs": ((512, 8), 0xFA1E1BFD),
    "kGridIq2S": ((1024, 8), 0x25AE5BF1),
    "kGridIq3Xxs": ((256, 4), 0x07BA9ED0),
    "kGridIq3S": ((512, 4), 0xF576E4F3),
    "kGridIq1": ((2048, 8), 0xB85E6CCF),
    "kSigns": ((128,), 0xFFAB7940),
    "kIq4Values": ((16,), 0xBBE1A3FC),
    "kE2m1Doubled": ((16,), 0x08E8DE1E),
}


def run_generator(output):
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/gen_codebooks.py"), *output],
        capture_output=True,
        text=True,
        check=False,
    )


def test_codebooks_are_pinned(tmp_path):
    first, second = tmp_path / "new" / "a.inc", tmp_path / "b.inc"
    for output in (first, second):
        result = run_generator([str(output)])
        assert result.returncode == 0, result.stderr
    assert first.read_bytes() == second.read_bytes()
    found = {}
    for kind, name, extents, body in re.findall(
        r"constexpr (u?int8)_t (\w+)((?:\[\d+\])+) = \{(.*?)\n\};", first.read_text(), re.DOTALL
    ):
        shape = tuple(int(n) for n in re.findall(r"\d+", extents))
        table = np.array([int(v) for v in re.findall(r"-?\d+", body)], kind).reshape(shape)
        found[name] = (shape, zlib.crc32(table.tobytes()))
    assert found == CODEBOOKS


def test_generator_says_what_the_package_lacks(tmp_path, monkeypatch):
    """Against a package without grids, and without its own output argument."""
    fake = tmp_path / "gguf"
    fake.mkdir()
    (fake / "__init__.py").write_text("")
    (fake / "quants.py").write_text("class IQ2_XXS: grid = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = run_generator([str(tmp_path / "a.inc")])
    assert result.returncode == 1
    assert result.stderr == (
        "[codebooks] no grid of IQ2_XXS: got none, want 256 rows of 8\n"
        "hint: pip install 'gguf>=0.17' in the environment that builds esker\n"
    )
    assert not (tmp_path / "a.inc").exists()
    assert run_generator([]).returncode == 2
