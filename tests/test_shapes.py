# SPDX-License-Identifier: MIT
"""Models of unusual shapes, types and layouts against the numpy oracle.

Each runs four ways: as one prompt and token by token, with room for all experts and with room for
one token's experts a layer.
"""

import dataclasses

import numpy as np
import pytest
from support.compare import assert_close
from support.gguf_io import Q2_0
from support.oracle import Oracle
from support.prompts import random_tokens
from support.tiny_model import PLAIN, FileOptions, TinyShape, Type, table_path

DIFF_LIMIT = 5e-4  # in logits, or in deviations of the logits if those are more than one
# Choices nearer than this may fall otherwise with another rounding; such an input proves nothing,
# and the case needs another seed.
MARGIN_LEAST = 2e-5

EXPERT_TYPES = ("ffn_gate_exps*", "ffn_up_exps*", "ffn_down_exps*")


def high_experts_win(name, values):
    """Flattens the router's first 256 rows: no expert below 256 is ever picked."""
    if name.endswith("ffn_gate_inp.weight"):
        values[:256] *= np.float32(0.01)
    return values


@dataclasses.dataclass(frozen=True)
class Case:
    shape: TinyShape
    options: FileOptions = PLAIN


def shape(**changes):
    return TinyShape().but(**{"seed": 77, **changes})


# Two layers, narrow: for many experts.
WIDE = {"hidden": 64, "layers": 2, "interval": 2, "topk": 10, "heads": 2, "kv": 1}

CASES = {
    "experts-512-high": Case(
        shape(seed=78, experts=512, **WIDE), FileOptions(edit=high_experts_win)
    ),
    "experts-288": Case(shape(experts=288, **WIDE)),
    "experts-1": Case(shape(experts=1, topk=1)),
    "experts-all-used": Case(shape(experts=6, topk=6)),
    "top-1": Case(shape(experts=8, topk=1)),
    "heads-equal": Case(shape(lk=3, lv=3)),
    "heads-4-12": Case(shape(lk=4, lv=12, ld=32)),
    "linear-128": Case(shape(lk=1, lv=2, ld=128)),
    "attention-no-groups": Case(shape(heads=2, kv=2, hd=32, rot=32)),
    "attention-8-1": Case(shape(heads=8, kv=1, hd=128, rot=16)),
    "dense-attention": Case(shape(ratios=(0, 0, 0, 0))),
    "dense-and-sparse": Case(shape(layers=4, interval=2, ratios=(0, 0, 0, 4))),
    "ratio-2": Case(shape(ratio=2)),
    "ratio-8": Case(shape(ratio=8, budget=32)),
    "budget-one-block": Case(shape(budget=4)),
    "index-1-head": Case(shape(idx_heads=1, idx_dim=128)),
    "all-full": Case(shape(interval=1, layers=2)),
    "no-full": Case(shape(interval=8)),
    "no-ple": Case(shape(ple_layers=())),
    "ple-first-layer": Case(shape(ple_layers=(0,))),
    "ple-full-layer": Case(shape(ple_layers=(3,))),
    "ple-two-layers": Case(shape(ple_layers=(0, 2))),
    "ngram-2": Case(shape(ngram=2, hpn=4)),
    "ngram-4": Case(shape(hidden=192, ngram=4, hpn=2)),
    "streams-2": Case(shape(hc=2)),
    "odd-widths": Case(shape(ff=33, sff=35, rank=17, vocab=517)),
    "fused": Case(shape(), FileOptions(fused=True)),
    "fused-q8": Case(shape(), FileOptions(fused=True, base_type=Type.Q8_0)),
    "tied": Case(shape(), FileOptions(tied=True)),
    "tied-q8": Case(shape(), FileOptions(tied=True, base_type=Type.Q8_0)),
    "table-file": Case(shape(), FileOptions(table_file=True)),
    "table-file-q8": Case(
        shape(), FileOptions(table_file=True, types={"per_layer_token_embd*": Type.Q8_0})
    ),
    "shards": Case(shape(), FileOptions(shards=3, shuffle=1)),
    "shards-table-file": Case(shape(), FileOptions(shards=4, shuffle=3, table_file=True)),
    "alignment-16k": Case(shape(), FileOptions(alignment=16384)),
    "alignment-8": Case(shape(ff=33), FileOptions(alignment=8, shuffle=2)),
    "older-file": Case(shape(), FileOptions(recurrent_key=False)),
}

# Any type for any tensor: these name the ones that the converter would keep in F32 or F16.
EVERY_TENSOR = {"*ssm_conv1d*": Type.F16, "*ple_conv1d*": Type.BF16, "*ffn_gate_inp*": Type.F16}
WEIGHT_TYPES = {
    "f16": FileOptions(base_type=Type.F16, types={"*norm*": Type.F16, **EVERY_TENSOR}),
    "bf16": FileOptions(base_type=Type.BF16, types={"*ssm_*": Type.BF16, **EVERY_TENSOR}),
    "q8_0": FileOptions(base_type=Type.Q8_0, types=EVERY_TENSOR),
    "q4_0": FileOptions(base_type=Type.Q4_0),
    "q4_1": FileOptions(base_type=Type.Q4_1),
    "q5_0": FileOptions(base_type=Type.Q5_0),
    "q5_1": FileOptions(base_type=Type.Q5_1),
    "q2_0": FileOptions(types=dict.fromkeys(EXPERT_TYPES, Q2_0)),
    "tq1_0": FileOptions(types=dict.fromkeys(EXPERT_TYPES, Type.TQ1_0)),
    "tq2_0": FileOptions(types=dict.fromkeys(EXPERT_TYPES, Type.TQ2_0)),
    # Layers whose records differ in size, gate and up of different types.
    "mixed-records": FileOptions(
        types={
            "blk.0.ffn_gate_exps*": Type.F32,
            "blk.0.ffn_*_exps*": Type.F16,
            "blk.1.ffn_up_exps*": Q2_0,
            "blk.1.ffn_*_exps*": Type.Q4_0,
            "blk.2.ffn_down_exps*": Type.Q8_0,
            "blk.2.ffn_*_exps*": Q2_0,
            "blk.3.ffn_*_exps*": Type.Q5_1,
        }
    ),
}
for _name, _options in WEIGHT_TYPES.items():
    # Rows of 256 suit the ternary types; the others are content with less.
    _narrow, _wide = shape(seed=78, ff=64, sff=64), shape(hidden=256, ff=256, sff=64)
    CASES["type-" + _name] = Case(_wide if "tq" in _name else _narrow, _options)


def case_tokens(case):
    """90 tokens: past every case's budget, with n-gram resets."""
    tokens = random_tokens(90, seed=21)
    for position in (0, 4, 5, 33, 70):
        tokens[position] = case.shape.eos
    return tokens


@pytest.mark.parametrize("name", CASES)
def test_shape_equals_oracle(name, tiny_model):
    import esker

    case = CASES[name]
    path = tiny_model("shape-" + name, case.shape, case.options)
    table = table_path(path.parent / f"shape-{name}.gguf") if case.options.table_file else None
    tokens = case_tokens(case)
    oracle = Oracle(path, table)
    want = oracle.evaluate(tokens)
    assert min(oracle.margins.router, oracle.margins.index) > MARGIN_LEAST, "needs another seed"
    if case.options.edit is high_experts_win:
        assert min(picks.min() for picks in oracle.picks) > 255
    limit = DIFF_LIMIT * max(1.0, want.std())
    sidecar = {"ngram_table": str(table)} if table else {}
    with esker.Model(str(path), **sidecar) as model:
        assert_close(want, model.logits(tokens), limit, "as one prompt")
        assert_close(want, model.logits(tokens, chunk=1), limit, "token by token")
    with esker.Model(str(path), slots=case.shape.topk, **sidecar) as model:
        assert_close(want, model.logits(tokens, chunk=1), limit, "token by token, small arena")
        assert_close(want, model.logits(tokens), limit, "as one prompt, small arena")
