# SPDX-License-Identifier: MIT
"""A control for tests/simt: attention kernels of MLX, which Apple's compiler accepts and Macs run.

They are taken unmodified from the wheel that MLX publishes (MIT licence, not part of this
repository); a prelude stands in for the one template of theirs that is used.
"""

import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import pytest
import simt

VERSION = "0.32.4"
HEADER = "mlx/include/mlx/backend/metal/kernels/sdpa_vector.h"
PRELUDE = """
#include <metal_stdlib>
using namespace metal;
template <typename T> struct Limits {
  static constexpr constant T finite_min = T(-metal::numeric_limits<T>::max());
};
#include "sdpa_vector.h"
"""
KERNELS = [
    ("one_half_64", "sdpa_vector<half, 64>"),
    ("one_float_128", "sdpa_vector<float, 128>"),
    ("parts_half_64", "sdpa_vector_2pass_1<half, 64>"),
    ("parts_float_128", "sdpa_vector_2pass_1<float, 128>"),
    ("whole_half_64", "sdpa_vector_2pass_2<half, 64>"),
    ("whole_float_128", "sdpa_vector_2pass_2<float, 128>"),
]
# MLX's numbers of the function constants.
HAS_MASK, TRANSPOSED, CAUSAL, BOOL_MASK, FLOAT_MASK, HAS_SINKS, BLOCKS = range(20, 27)


def fetch():
    """The header's folder, kept with the libraries."""
    folder = simt.cache_dir() / f"mlx-metal-{VERSION}"
    if not (folder / "sdpa_vector.h").exists():
        with tempfile.TemporaryDirectory(dir=simt.cache_dir()) as wheels:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                f"mlx-metal=={VERSION}",
                "--no-deps",
                "-d",
                wheels,
            ]
            command += ["--platform", "macosx_14_0_arm64", "--only-binary=:all:", "--retries", "1"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                said = done.stdout + done.stderr
                if (
                    "No module named pip" in said
                    or "from versions: none" in said
                    or "connection" in said
                ):
                    pytest.skip(
                        f"pip reaches no index that has mlx-metal: {said.strip().splitlines()[-1]}"
                    )
                pytest.fail(said)
            (wheel,) = os.listdir(wheels)
            with zipfile.ZipFile(os.path.join(wheels, wheel)) as archive:
                simt.write_whole(folder / "sdpa_vector.h", archive.read(HEADER).decode())
    return folder


@pytest.fixture(scope="module")
def mlx(tmp_path_factory):
    folder = fetch()
    path = tmp_path_factory.mktemp("mlx") / "sdpa.metal"
    lines = [f'template [[host_name("{n}")]] [[kernel]] decltype({f}) {f};' for n, f in KERNELS]
    path.write_text(PRELUDE + "\n".join(lines) + "\n")
    return simt.Device(path, [folder])


def attention(q, k, v, scale, causal=False, mask=None, sinks=None):
    """softmax(scale q k^T) v in float64. q [H, T, D], k and v [KV, N, D], mask [H, T, N]."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    group = len(q) // len(k)
    scores = scale * np.einsum("htd,hnd->htn", q, np.repeat(k, group, axis=0))
    n_token, n_key = scores.shape[1:]
    if causal:
        scores[:, np.arange(n_key)[None] > n_key - n_token + np.arange(n_token)[:, None]] = -np.inf
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=2, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks.astype(np.float64)[:, None, None])
    weights = np.exp(scores - top)
    total = weights.sum(axis=2, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks.astype(np.float64)[:, None, None] - top)
    return np.einsum("htn,hnd->htd", weights / total, np.repeat(v, group, axis=0))


def number(value, kind=np.int32):
    return np.array([value], kind)


def inputs(kind, d, n_key, n_token=3, n_head=4, n_kv=2):
    rng = np.random.default_rng(n_key)
    shapes = ((n_head, n_token, d), (n_kv, n_key, d), (n_kv, n_key, d))
    return [rng.standard_normal(s).astype(kind) for s in shapes]


def constants(**chosen):
    values = {
        HAS_MASK: 0,
        TRANSPOSED: 0,
        CAUSAL: 0,
        BOOL_MASK: 0,
        FLOAT_MASK: 0,
        HAS_SINKS: 0,
        BLOCKS: 0,
    }
    return values | {globals()[name]: value for name, value in chosen.items()}


def check(out, want, kind):
    error = np.linalg.norm(out.astype(np.float64) - want) / np.linalg.norm(want)
    assert error <= (5e-4 if kind == np.float16 else 1e-6), error  # a half has 11 bits


VARIANTS = [(np.float16, 64), (np.float32, 128)]


@pytest.mark.parametrize("kind, d", VARIANTS)
@pytest.mark.parametrize("case", ["all", "causal", "mask", "sinks"])
@pytest.mark.parametrize("order", simt.ORDERS)
def test_attention_in_one_pass(mlx, kind, d, case, order):
    n_key, scale = 77, 1 / 8
    q, k, v = inputs(kind, d, n_key)
    n_head, n_token = q.shape[:2]
    mask = np.random.default_rng(5).random((n_head, n_token, n_key)) < 0.6
    sinks = np.linspace(-1, 2, n_head).astype(kind)
    out = np.full(q.shape, np.nan, kind)
    size = number(n_key * d, np.uint64), number(d, np.uint64)
    buffers = [q, k, v, out, number(2), number(n_key), *size, *size, number(scale, np.float32)]
    buffers += [
        mask,
        None,
        number(1),
        number(n_key),
        number(n_token * n_key),
        sinks,
        number(n_head),
    ]
    chosen = {
        "all": {},
        "causal": {"CAUSAL": 1},
        "mask": {"HAS_MASK": 1, "BOOL_MASK": 1},
        "sinks": {"HAS_SINKS": 1},
    }
    name = f"one_{'half' if kind == np.float16 else 'float'}_{d}"
    settings = {
        "groups": (n_head, n_token),
        "threads": (1024,),
        "constants": constants(**chosen[case]),
    }
    mlx.run(name, None, buffers, order=order, **settings)
    given = {"causal": {"causal": True}, "mask": {"mask": mask}, "sinks": {"sinks": sinks}}.get(
        case, {}
    )
    check(out, attention(q, k, v, scale, **given), kind)


@pytest.mark.parametrize("kind, d", VARIANTS)
@pytest.mark.parametrize("order", simt.ORDERS)
def test_attention_in_two_passes(mlx, kind, d, order):
    n_key, scale, blocks = 391, 1 / 8, 32
    q, k, v = inputs(kind, d, n_key)
    n_head, n_token = q.shape[:2]
    partials = np.full((n_head, n_token, blocks, d), np.nan, kind)
    sums, tops = (np.full((n_head, n_token, blocks), np.nan, np.float32) for _ in range(2))
    out = np.full(q.shape, np.nan, kind)
    size = number(n_key * d, np.uint64), number(d, np.uint64)
    buffers = [
        q,
        k,
        v,
        partials,
        sums,
        tops,
        None,
        number(n_key),
        *size,
        *size,
        number(scale, np.float32),
    ]
    tail = f"{'half' if kind == np.float16 else 'float'}_{d}"
    chosen = constants(CAUSAL=1, BLOCKS=blocks)
    grid = {"groups": (2, 1, blocks), "threads": (32, n_head // 2, n_token)}
    mlx.run(f"parts_{tail}", None, buffers, constants=chosen, order=order, **grid)
    buffers = [partials, sums, tops, out, number(blocks)]
    mlx.run(
        f"whole_{tail}",
        None,
        buffers,
        groups=(n_head, n_token),
        threads=(1024,),
        constants=chosen,
        order=order,
    )
    check(out, attention(q, k, v, scale, causal=True), kind)
