# SPDX-License-Identifier: MIT
"""Makes tiny random qwen4exp GGUF files of any shape with numpy and the gguf package.

Weights come from PCG64 seeded by [seed, crc32(name in the Hugging Face checkpoint)], so that a
tensor's values depend on nothing but its name, its shape and the seed. The reference logits
data/oracle/{a,b,micro}-hf.npz were computed on checkpoints filled by the same rule; SHAPE_A,
SHAPE_B and SHAPE_MICRO give the GGUF files that llama.cpp's converter makes from those, tensor by
tensor (data/README.md says how that was checked).
Scales are chosen for decided routing and for activations that neither die nor explode.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from .gguf_io import quantize

MASK64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
PLE_SEED = 1234
TABLE_ROWS_MULTIPLE = 128
TABLE_NAME = "per_layer_token_embd.weight"


@dataclass(frozen=True)
class TinyShape:
    """The numbers of a model. The defaults make the smallest one that has every part."""

    seed: int = 33
    hidden: int = 128
    layers: int = 4
    interval: int = 4  # full attention where (i + 1) mod interval = 0
    vocab: int = 512
    context: int = 4096
    # Mixture of experts.
    experts: int = 6
    topk: int = 3
    ff: int = 32
    sff: int = 32  # of the shared expert
    # Gated delta net: key heads, value heads, head size.
    lk: int = 1
    lv: int = 3
    ld: int = 64
    conv: int = 4
    # Full attention.
    heads: int = 4
    kv: int = 2
    hd: int = 64
    rot: int = 32  # dimensions of a head that turn
    sections: tuple = (6, 5, 5, 0)
    theta: float = 1e7
    # Indexer.
    idx_heads: int = 4
    idx_dim: int = 64
    budget: int = 16
    ratio: int = 4
    ratios: tuple | None = None  # per layer, instead of ratio on every full layer
    # Hyper-connections: streams, low rank.
    hc: int = 4
    rank: int = 16
    # PLE.
    ple_layers: tuple = (1,)  # from 0
    ngram: int = 3
    hpn: int = 2  # heads per n-gram
    base: int = 300
    ple_conv: int = 4
    eos: int = 500  # resets the n-gram window

    def is_full(self, layer):
        return (layer + 1) % self.interval == 0

    def compress_ratios(self):
        if self.ratios is not None:
            return list(self.ratios)
        return [self.ratio if self.is_full(i) else 0 for i in range(self.layers)]

    @property
    def table_row(self):
        width, rest = divmod(self.hidden, (self.ngram - 1) * self.hpn)
        assert rest == 0, "hidden is no multiple of the n-gram heads"
        return width

    def but(self, **changes):
        return replace(self, **changes)


SHAPE_MICRO = TinyShape()
# Two value heads per key head, two full layers.
SHAPE_A = TinyShape(
    seed=11, hidden=256, layers=8, experts=16, topk=4, ff=64, sff=64, lk=2, lv=4, ld=64, heads=4,
    kv=2, hd=64, rot=32, rank=32, idx_dim=64, budget=64, hpn=4, base=500,
)  # fmt: skip
# Three value heads per key head (their re-ordering is no involution), shared expert of another
# width.
SHAPE_B = TinyShape(
    seed=22, hidden=256, layers=4, experts=32, topk=10, ff=64, sff=128, lk=2, lv=6, ld=128,
    heads=6, kv=2, hd=128, rot=32, rank=32, idx_dim=128, budget=32, hpn=4, base=500,
)  # fmt: skip


@dataclass(frozen=True)
class FileOptions:
    """How a model is laid out in files."""

    base_type: Type = Type.F32  # of every matrix that `types` does not name
    # Pattern -> type, the first that fits counts; matched against the whole name ("blk.0.ssm_a")
    # and the name without its layer ("ssm_a").
    types: Mapping[str, Type] = field(default_factory=dict)
    fused: bool = False  # ffn_gate_up_exps instead of ffn_gate_exps and ffn_up_exps
    tied: bool = False  # no output.weight
    shards: int = 1
    alignment: int = 32
    shuffle: int | None = None  # seed of the tensors' order
    recurrent_key: bool = True  # older files have no attention.recurrent_layers
    tokenizer: bool = True
    table_file: bool = False  # the n-gram table in a file of its own, <stem>-table.gguf
    edit: Callable[[str, np.ndarray], np.ndarray] | None = None  # changes float32 tensors


PLAIN = FileOptions()


# ---- the n-gram hash -----------------------------------------------------------------------


def _splitmix64(value):
    value = (value + GOLDEN) & MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK64
    return value ^ value >> 31


def ple_multipliers(vocab, ngram):
    """Odd numbers, so small that id * multiplier stays below 2^63 for every id."""
    half = (2**63 - 1) // vocab // 2
    return [
        2 * (_splitmix64((PLE_SEED + GOLDEN * (i + 1)) & MASK64) % half) + 1 for i in range(ngram)
    ]


def ple_head_sizes(base, count):
    """The first `count` primes from base on."""
    sizes, n = [], base
    while len(sizes) < count:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            sizes.append(n)
        n += 1
    return sizes


# ---- weights -------------------------------------------------------------------------------


def _standard_normal(shape, name, dims):
    generator = np.random.Generator(np.random.PCG64([shape.seed, zlib.crc32(name.encode())]))
    return generator.standard_normal(dims, dtype=np.float32)


class _Checkpoint:
    """The Hugging Face side: float32 tensors by their names there."""

    def __init__(self, shape):
        self.shape = shape

    def matrix(self, name, dims, gain, fan_in=None):
        z = _standard_normal(self.shape, name, dims)
        scale = gain / np.sqrt(np.float64(fan_in or dims[-1]))
        return (scale * z.astype(np.float64)).astype(np.float32)

    def scaled(self, name, dims, scale):
        return np.float32(scale) * _standard_normal(self.shape, name, dims)

    def gamma(self, name, n):
        """A zero-centred gamma, made ready to multiply as the converter does."""
        return self.scaled(name, (n,), 0.3) + np.float32(1)

    def decay(self, name, n):
        """ssm_a = -exp(A_log)."""
        seed = [self.shape.seed, zlib.crc32(name.encode())]
        generator = np.random.Generator(np.random.PCG64(seed))
        generator.standard_normal((n,), dtype=np.float32)
        a_log = np.log(generator.uniform(0.05, 4.0, (n,))).astype(np.float32)
        return (-np.exp(a_log.astype(np.float64))).astype(np.float32)


def _tiled(x, key_heads, value_heads, width, axis=0):
    """Value heads from grouped by key head (checkpoint) to tiled (GGUF), blocks of `width`."""
    x = np.moveaxis(x, axis, 0)
    rest = x.shape[1:]
    x = x.reshape(key_heads, value_heads // key_heads, width, *rest).swapaxes(0, 1)
    return np.ascontiguousarray(np.moveaxis(x.reshape(-1, *rest), 0, axis))


def _mixer(c, prefix, out, inject=True):
    s, width = c.shape, c.shape.hc * c.shape.hidden
    yield out + "_norm.weight", c.gamma(prefix + ".hc_norm.weight", width)
    name = prefix + ".input_mix_weight_down.weight"
    yield out + "_down.weight", c.matrix(name, (s.rank, width), 4.0)
    name = prefix + ".input_mix_weight_up.weight"
    yield out + "_up.weight", c.matrix(name, (width, s.rank), 2.0)
    if inject:
        name = prefix + ".block_inject_weight.weight"
        yield out + "_inject.weight", c.matrix(name, (s.hc, width), 3.0)


def _delta_net(c, prefix, blk):
    s, nk, nv, d = c.shape, c.shape.lk, c.shape.lv, c.shape.ld
    keys, channels = 2 * nk * d, (2 * nk + nv) * d

    def heads(x, width):
        return _tiled(x, nk, nv, width)

    def tail(x):  # only the value rows move
        return np.concatenate([x[:keys], heads(x[keys:], d)])

    p = prefix + "linear_attn."
    yield blk + "ssm_a", heads(c.decay(p + "A_log", nv), 1)
    conv = c.scaled(p + "conv1d.weight", (channels, 1, s.conv), 0.5)
    yield blk + "ssm_conv1d.weight", tail(conv[:, 0])
    dt = np.float32(-1.5) + c.scaled(p + "dt_bias", (nv,), 1)
    yield blk + "ssm_dt.bias", heads(dt, 1)
    for hf, name in (("in_proj_a", "ssm_alpha"), ("in_proj_b", "ssm_beta")):
        x = c.matrix(p + hf + ".weight", (nv, s.hidden), 1.2)
        yield blk + name + ".weight", heads(x, 1)
    qkv = c.matrix(p + "in_proj_qkv.weight", (channels, s.hidden), 1.2)
    yield blk + "attn_qkv.weight", tail(qkv)
    gate = c.matrix(p + "in_proj_z.weight", (nv * d, s.hidden), 1.2)
    yield blk + "attn_gate.weight", heads(gate, d)
    yield blk + "ssm_norm.weight", np.float32(1) + c.scaled(p + "norm.weight", (d,), 0.3)
    out = c.matrix(p + "out_proj.weight", (s.hidden, nv * d), 1.2)
    yield blk + "ssm_out.weight", _tiled(out, nk, nv, d, axis=1)


def _attention(c, prefix, blk):
    s, p = c.shape, prefix + "self_attn."
    q = c.matrix(p + "q_proj.weight", (s.heads * 2 * s.hd, s.hidden), 1.5)
    yield blk + "attn_q.weight", q
    yield blk + "attn_k.weight", c.matrix(p + "k_proj.weight", (s.kv * s.hd, s.hidden), 1.5)
    yield blk + "attn_v.weight", c.matrix(p + "v_proj.weight", (s.kv * s.hd, s.hidden), 1.2)
    out = c.matrix(p + "o_proj.weight", (s.hidden, s.heads * s.hd), 1.2)
    yield blk + "attn_output.weight", out
    yield blk + "attn_q_norm.weight", c.gamma(p + "q_norm.weight", s.hd)
    yield blk + "attn_k_norm.weight", c.gamma(p + "k_norm.weight", s.hd)
    rows = s.idx_heads * s.idx_dim
    qk = c.matrix(p + "indexer.index_qk_proj.weight", (rows + s.idx_dim, s.hidden), 1.5)
    yield blk + "indexer.q_proj.weight", qk[:rows]
    yield blk + "indexer.k_proj.weight", qk[rows:]
    yield blk + "indexer.q_norm.weight", c.gamma(p + "indexer.q_layernorm.weight", s.idx_dim)
    yield blk + "indexer.k_norm.weight", c.gamma(p + "indexer.k_layernorm.weight", s.idx_dim)


def _experts(c, prefix, blk, fused):
    s, p = c.shape, prefix + "mlp."
    yield blk + "ffn_gate_inp.weight", c.matrix(p + "gate.weight", (s.experts, s.hidden), 2.5)
    both = c.matrix(p + "experts.gate_up_proj", (s.experts, 2 * s.ff, s.hidden), 1.2)
    if fused:
        yield blk + "ffn_gate_up_exps.weight", both
    else:
        yield blk + "ffn_gate_exps.weight", np.ascontiguousarray(both[:, : s.ff])
        yield blk + "ffn_up_exps.weight", np.ascontiguousarray(both[:, s.ff :])
    down = c.matrix(p + "experts.down_proj", (s.experts, s.hidden, s.ff), 1.2)
    yield blk + "ffn_down_exps.weight", down
    for name, dims in (
        ("gate", (s.sff, s.hidden)),
        ("up", (s.sff, s.hidden)),
        ("down", (s.hidden, s.sff)),
    ):
        x = c.matrix(f"{p}shared_expert.{name}_proj.weight", dims, 1.2)
        yield f"{blk}ffn_{name}_shexp.weight", x
    x = c.matrix(p + "shared_expert_gate.weight", (1, s.hidden), 1.2)
    yield blk + "ffn_gate_inp_shexp.weight", x


def _ple(c, prefix, blk):
    s, p, width = c.shape, prefix + "ple.", c.shape.hc * c.shape.hidden
    yield blk + "ple_key.weight", c.matrix(p + "key_proj.weight", (width, s.hidden), 1.2)
    yield blk + "ple_value.weight", c.matrix(p + "value_proj.weight", (s.hidden, s.hidden), 1.2)
    for name in ("key", "query", "conv"):
        yield f"{blk}ple_norm_{name}.weight", c.gamma(f"{p}norm_{name}.weight", width)
    conv = c.scaled(p + "conv1d.weight", (width, 1, s.ple_conv), 0.5)
    yield blk + "ple_conv1d.weight", np.ascontiguousarray(conv[:, 0])


def _table(c):
    s = c.shape
    rows = sum(ple_head_sizes(s.base, (s.ngram - 1) * s.hpn))
    rows = -(-rows // TABLE_ROWS_MULTIPLE) * TABLE_ROWS_MULTIPLE
    # One table for all PLE layers; it carries the name of the first.
    name = f"model.layers.{s.ple_layers[0]}.ple.ple_embedding.ngram_embedding.weight"
    return c.scaled(name, (rows, s.table_row), 1)


def model_tensors(shape, fused=False, tied=False):
    """Yields (GGUF name, float32 array), shapes slowest first."""
    c = _Checkpoint(shape)
    embedding = c.scaled("model.embed_tokens.weight", (shape.vocab, shape.hidden), 0.7)
    yield "token_embd.weight", embedding
    if not tied:
        yield "output.weight", c.matrix("lm_head.weight", (shape.vocab, shape.hidden), 3.0)
    yield from _mixer(c, "model.hyper_connection_mixer", "output_hc", inject=False)
    if shape.ple_layers:
        yield TABLE_NAME, _table(c)
    for i in range(shape.layers):
        prefix, blk = f"model.layers.{i}.", f"blk.{i}."
        yield from _mixer(c, prefix + "attn_hyper_connection", blk + "hc_attn")
        if shape.is_full(i):
            yield from _attention(c, prefix, blk)
        else:
            yield from _delta_net(c, prefix, blk)
        if i in shape.ple_layers:
            yield from _ple(c, prefix, blk)
        yield from _mixer(c, prefix + "mlp_hyper_connection", blk + "hc_ffn")
        yield from _experts(c, prefix, blk, fused)


# ---- files ---------------------------------------------------------------------------------


def tensor_type(name, dims, options):
    """The type a tensor is stored in: as asked for, else as llama.cpp's converter would."""
    short = name.split(".", 2)[2] if name.startswith("blk.") else name
    for pattern, weight_type in options.types.items():
        if fnmatchcase(name, pattern) or fnmatchcase(short, pattern):
            return weight_type
    if len(dims) == 1 or short.startswith("ffn_gate_inp") or short == "ssm_conv1d.weight":
        return Type.F32
    if dims[-1] % gguf.GGML_QUANT_SIZES[options.base_type][0]:
        return Type.F16
    return options.base_type


def _model_metadata(w, shape, options):
    def key(name):
        return "qwen4exp." + name

    for name, value in (
        ("block_count", shape.layers),
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv),
        ("attention.key_length", shape.hd),
        ("attention.value_length", shape.hd),
        ("rope.dimension_count", shape.rot),
        ("expert_count", shape.experts),
        ("expert_used_count", shape.topk),
        ("expert_feed_forward_length", shape.ff),
        ("expert_shared_feed_forward_length", shape.sff),
        ("ssm.conv_kernel", shape.conv),
        ("ssm.state_size", shape.ld),
        ("ssm.group_count", shape.lk),
        ("ssm.time_step_rank", shape.lv),
        ("ssm.inner_size", shape.lv * shape.ld),
        ("full_attention_interval", shape.interval),
        ("hyper_connection.count", shape.hc),
        ("hyper_connection.low_rank", shape.rank),
        ("attention.indexer.head_count", shape.idx_heads),
        ("attention.indexer.key_length", shape.idx_dim),
        ("attention.indexer.top_k", shape.budget),
    ):
        w.add_uint32(key(name), value)
    w.add_float32(key("rope.freq_base"), shape.theta)
    w.add_float32(key("attention.layer_norm_rms_epsilon"), 1e-6)
    w.add_array(key("rope.dimension_sections"), list(shape.sections))
    w.add_array(key("attention.compress_ratios"), shape.compress_ratios())
    if options.recurrent_key:
        linear = [not shape.is_full(i) for i in range(shape.layers)]
        w.add_array(key("attention.recurrent_layers"), linear)
    if not shape.ple_layers:
        return
    heads = (shape.ngram - 1) * shape.hpn
    sizes = ple_head_sizes(shape.base, heads)
    w.add_array(key("ple.layers"), list(shape.ple_layers))
    for name, value in (
        ("ple.ngram_size", shape.ngram),
        ("ple.heads_per_ngram", shape.hpn),
        ("ple.conv_kernel", shape.ple_conv),
        ("ple.eos_token_id", shape.eos),
        ("embedding_length_per_layer_input", shape.table_row),
    ):
        w.add_uint32(key(name), value)
    for name, values in (
        ("ple.layer_multipliers", ple_multipliers(shape.vocab, shape.ngram)),
        ("ple.head_offsets", [sum(sizes[:i]) for i in range(heads)]),
        ("ple.head_vocab_sizes", sizes),
    ):
        w.add_key_value(
            key(name), values, gguf.GGUFValueType.ARRAY, sub_type=gguf.GGUFValueType.UINT64
        )


def byte_alphabet():
    """The 256 characters that stand for bytes in GPT-2's byte-level vocabularies, by byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokenizer_tables(shape):
    """(tokens, types, merges): bytes, a few merges, pads, the control tokens from eos on."""
    tokens = sorted(byte_alphabet())
    merges = ["t h", "th e", "i n", "a n", "Ġ the", "Ġ a", "e r", "o n"]
    tokens += [m.replace(" ", "") for m in merges]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    for i in range(len(tokens), shape.vocab):
        special = {0: "<|endoftext|>", 1: "<|im_start|>", 2: "<|im_end|>"}.get(i - shape.eos)
        tokens.append(special or (f"<|pad{i}|>" if i < shape.eos else f"[PAD{i}]"))
        types.append(gguf.TokenType.CONTROL if i <= shape.eos + 2 else gguf.TokenType.UNUSED)
    return tokens, types, merges


def _tokenizer_metadata(w, shape):
    tokens, types, merges = tokenizer_tables(shape)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_eos_token_id(shape.eos + 2)
    w.add_pad_token_id(shape.eos)


def _open_writer(path, options):
    w = gguf.GGUFWriter(path, "qwen4exp")
    if options.alignment != 32:
        w.add_custom_alignment(options.alignment)
    return w


def _close_writer(w, tensors):
    for name, data, weight_type in tensors:
        w.add_tensor(name, data, raw_dtype=weight_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def _encoded(shape, options):
    for name, values in model_tensors(shape, options.fused, options.tied):
        if options.edit is not None:
            values = np.ascontiguousarray(options.edit(name, values), np.float32)
        weight_type = tensor_type(name, values.shape, options)
        data = values if weight_type == Type.F32 else quantize(values, weight_type)
        yield name, data, weight_type


def table_path(path):
    """Where write_model puts the n-gram table when it gets a file of its own."""
    path = Path(path)
    return path.with_name(path.stem + "-table.gguf")


def write_model(path, shape, options=PLAIN):
    """Writes the model; returns the path to open (of the first shard, if there are several)."""
    path = Path(path)
    tensors = list(_encoded(shape, options))
    if options.table_file:
        w = _open_writer(table_path(path), options)
        _close_writer(w, [t for t in tensors if t[0] == TABLE_NAME])
        tensors = [t for t in tensors if t[0] != TABLE_NAME]
    if options.shuffle is not None:
        order = np.random.Generator(np.random.PCG64(options.shuffle)).permutation(len(tensors))
        tensors = [tensors[i] for i in order]
    names = [path]
    if options.shards > 1:
        names = [
            path.with_name(f"{path.stem}-{i + 1:05d}-of-{options.shards:05d}.gguf")
            for i in range(options.shards)
        ]
    for i, name in enumerate(names):
        w = _open_writer(name, options)
        if i == 0:
            w.add_type("model")
            w.add_name("tiny qwen4exp")
            w.add_quantization_version(2)
            _model_metadata(w, shape, options)
            if options.tokenizer:
                _tokenizer_metadata(w, shape)
        if options.shards > 1:
            w.add_uint16("split.no", i)
            w.add_uint16("split.count", options.shards)
            w.add_int32("split.tensors.count", len(tensors))
        first, last = (len(tensors) * n // options.shards for n in (i, i + 1))
        _close_writer(w, tensors[first:last])
    return names[0]
