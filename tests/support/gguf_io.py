# SPDX-License-Identifier: MIT
"""Reads GGUF files (all shards, every type that the gguf package decodes, and Q2_0) with numpy."""

import re
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

Q2_0_BLOCK_ELEMENTS, Q2_0_BLOCK_BYTES = 64, 18


def _register_q2_0():
    # The package (0.19) refuses a whole file for one tensor of type 42.
    if 42 not in GGMLQuantizationType._value2member_map_:
        member = int.__new__(GGMLQuantizationType, 42)
        member._name_, member._value_ = "Q2_0", 42
        GGMLQuantizationType._value2member_map_[42] = member
    member = GGMLQuantizationType(42)
    GGML_QUANT_SIZES.setdefault(member, (Q2_0_BLOCK_ELEMENTS, Q2_0_BLOCK_BYTES))
    return member


Q2_0 = _register_q2_0()


def dequantize(data, weight_type):
    """float32 rows from the bytes of a tensor."""
    if weight_type != Q2_0:
        return gguf.quants.dequantize(data, weight_type)
    blocks = np.ascontiguousarray(data).view(np.uint8).reshape(-1, Q2_0_BLOCK_BYTES)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    quads = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    values = (quads.reshape(-1, Q2_0_BLOCK_ELEMENTS).astype(np.float32) - 1) * scale
    return values.reshape(*data.shape[:-1], -1)


def quantize(values, weight_type):
    """Bytes of a tensor from float32 rows, for the types the gguf package can make, and Q2_0."""
    if weight_type != Q2_0:
        return gguf.quants.quantize(values, weight_type)
    blocks = values.reshape(-1, Q2_0_BLOCK_ELEMENTS)
    # Nothing clever: the scale that maps the largest magnitude to the top level, 2.
    scale = (np.abs(blocks).max(-1, keepdims=True) / 2).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    levels = np.clip(np.rint(blocks / divisor) + 1, 0, 3).astype(np.uint8).reshape(-1, 16, 4)
    packed = (levels << np.array([0, 2, 4, 6], np.uint8)).sum(-1, dtype=np.uint8)
    out = np.concatenate([scale.view(np.uint8), packed], -1)
    return out.reshape(*values.shape[:-1], -1)


def shard_paths(path, count):
    """All files of a sharded model, from the path of any of them."""
    path = Path(path)
    match = re.fullmatch(r"(.*)-\d{5}-of-\d{5}\.gguf", path.name)
    assert match, f"{path.name} is not named as a shard"
    return [
        path.with_name(f"{match[1]}-{index:05d}-of-{count:05d}.gguf")
        for index in range(1, count + 1)
    ]


def read_metadata(path):
    """Key -> value of one file."""
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}


def read_tensors(path):
    """Name -> (weight type, array as stored, shape slowest first) of one file."""
    return {
        t.name: (t.tensor_type, t.data, tuple(int(n) for n in reversed(t.shape)))
        for t in gguf.GGUFReader(path).tensors
    }


def read_model(path, table=None):
    """Metadata and float32 tensors of a model: its shards and the n-gram table's file, if any."""
    metadata = read_metadata(path)
    count = metadata.get("split.count", 1)
    files = shard_paths(path, count) if count > 1 else [Path(path)]
    weights = {}
    for file in files + ([Path(table)] if table else []):
        for name, (weight_type, data, shape) in read_tensors(file).items():
            weights[name] = np.asarray(dequantize(data, weight_type), np.float32).reshape(shape)
    return metadata, weights
