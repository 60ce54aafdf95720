# SPDX-License-Identifier: MIT
"""The qwen4exp text model in numpy: what the logits of a GGUF file should be.

Serves shapes for which no reference logits are stored; test_support.py checks it against those
that are. Reads nothing but the file and shares no code with the library. Every token's row is
computed for the whole prompt at once, in double precision unless told otherwise.
It also reports how decided its discrete choices were (routing, block selection): where two
candidates lie nearer than rounding, another correct implementation may choose the other one, and
a test on such an input would prove nothing.
"""

from dataclasses import dataclass

import numpy as np

from .gguf_io import read_model


def sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(x, 0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def l2_normalised(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + x.dtype.type(1e-6))


def causal_convolution(x, weight, dilation=1):
    """Depthwise over time. x: [T, channels]; weight: [channels, taps], the last tap is now."""
    taps = weight.shape[1]
    out = np.zeros_like(x)
    for tap in range(taps):
        back = dilation * (taps - 1 - tap)
        if back < len(x):
            out[back:] += x[: len(x) - back] * weight[:, tap]
    return out


@dataclass
class Margins:
    """The least distance between the last candidate taken and the first one left, over all rows."""

    router: float = np.inf  # in router logits
    index: float = np.inf  # in block scores, exact ties (of zeros) left out


class Oracle:
    """One model. evaluate() starts a sequence afresh every time."""

    def __init__(self, path, table=None, dtype=np.float64):
        metadata, weights = read_model(path, table)
        self.metadata = metadata
        self.dtype = dtype
        self.weights = {name: w.astype(dtype) for name, w in weights.items()}
        self.margins = Margins()
        self.picks = []  # of the last evaluate(): per layer, experts [T, K], best first
        self.n_layer = self.key("block_count")
        self.eps = dtype(self.key("attention.layer_norm_rms_epsilon"))
        interval = self.key("full_attention_interval")
        self.linear = metadata.get(
            "qwen4exp.attention.recurrent_layers",
            [(i + 1) % interval != 0 for i in range(self.n_layer)],
        )
        self.ple_layers = metadata.get("qwen4exp.ple.layers", [])

    def key(self, name):
        return self.metadata["qwen4exp." + name]

    def rms(self, x, gamma):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * gamma

    def rms_streams(self, x, name):
        """x: [T, C, D], every stream normed by itself."""
        return self.rms(x, self.weights[name].reshape(x.shape[1:]))

    def project(self, x, name):
        return x @ self.weights[name].T

    def rotate(self, x, positions):
        """x: [T, heads, size]; the first dimensions turn, in pairs (j, j + n/2)."""
        n = self.key("rope.dimension_count")
        frequencies = float(self.key("rope.freq_base")) ** (-2.0 * np.arange(n // 2) / n)
        angles = np.outer(positions, frequencies)[:, None]
        cos, sin = np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)
        a, b = x[..., : n // 2], x[..., n // 2 : n]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n:]], -1)

    # ---- the parts -------------------------------------------------------------------------

    def mix(self, streams, prefix, inject=True):
        """Streams [T, C, D] -> the sub-layer's input [T, D], and the weights [T, C]."""
        n_token, count = streams.shape[:2]
        normed = self.rms_streams(streams, prefix + "_norm.weight")
        flat = normed.reshape(n_token, -1)
        low = silu(self.project(flat, prefix + "_down.weight") / count)
        gate = sigmoid(self.project(low, prefix + "_up.weight")).reshape(streams.shape)
        x = (gate * normed).mean(1)
        if not inject:
            return x, None
        return x, 2 * sigmoid(self.project(flat, prefix + "_inject.weight") / count)

    def delta_net(self, x, blk):
        n_token, d = len(x), self.key("ssm.state_size")
        nk, nv = self.key("ssm.group_count"), self.key("ssm.time_step_rank")
        u = self.project(x, blk + "attn_qkv.weight")
        c = silu(causal_convolution(u, self.weights[blk + "ssm_conv1d.weight"]))
        q, k, v = np.split(c, [nk * d, 2 * nk * d], -1)
        key_head = np.arange(nv) % nk
        q = (l2_normalised(q.reshape(n_token, nk, d)) / self.dtype(np.sqrt(d)))[:, key_head]
        k = l2_normalised(k.reshape(n_token, nk, d))[:, key_head]
        v = v.reshape(n_token, nv, d)
        beta = sigmoid(self.project(x, blk + "ssm_beta.weight"))
        alpha = self.project(x, blk + "ssm_alpha.weight")
        step = softplus(alpha + self.weights[blk + "ssm_dt.bias"])
        decay = np.exp(self.weights[blk + "ssm_a"] * step)
        state = np.zeros((nv, d, d), self.dtype)
        out = np.empty_like(v)
        for t in range(n_token):
            state *= decay[t][:, None, None]
            read = np.matmul(k[t][:, None], state)[:, 0]
            state += k[t][:, :, None] * (beta[t][:, None] * (v[t] - read))[:, None]
            out[t] = np.matmul(q[t][:, None], state)[:, 0]
        z = self.project(x, blk + "attn_gate.weight").reshape(n_token, nv, d)
        out = self.rms(out, self.weights[blk + "ssm_norm.weight"]) * sigmoid(z)
        return self.project(out.reshape(n_token, -1), blk + "ssm_out.weight")

    def visible(self, x, blk, ratio):
        """Which tokens each query may attend to, [T, T]."""
        n_token = len(x)
        positions = np.arange(n_token)
        causal = positions[None] <= positions[:, None]
        keep = self.key("attention.indexer.top_k") // ratio if ratio else 0
        n_block = n_token // ratio if ratio else 0
        if n_block <= keep:
            return causal
        heads = self.key("attention.indexer.head_count")
        size = self.key("attention.indexer.key_length")
        q = self.project(x, blk + "indexer.q_proj.weight").reshape(n_token, heads, size)
        q = self.rotate(self.rms(q, self.weights[blk + "indexer.q_norm.weight"]), positions)
        raw = self.project(x, blk + "indexer.k_proj.weight")
        mean = raw[: n_block * ratio].reshape(n_block, ratio, size).mean(1)
        normed = self.rms(mean, self.weights[blk + "indexer.k_norm.weight"])
        k = self.rotate(normed[:, None], ratio * np.arange(n_block))[:, 0]
        scores = np.maximum(q @ k.T, 0).sum(1)
        for t in range(n_token):
            full = (t + 1) // ratio
            if full <= keep:
                continue
            order = np.argsort(-scores[t, :full], kind="stable")
            last, first_out = scores[t, order[keep - 1]], scores[t, order[keep]]
            if last != first_out:
                self.margins.index = min(self.margins.index, float(last - first_out))
            for block in order[keep:]:
                causal[t, block * ratio : (block + 1) * ratio] = False
        return causal

    def attention(self, x, blk, ratio):
        n_token, positions = len(x), np.arange(len(x))
        heads, kv = self.key("attention.head_count"), self.key("attention.head_count_kv")
        size = self.key("attention.key_length")
        qg = self.project(x, blk + "attn_q.weight").reshape(n_token, heads, 2, size)
        q = self.rotate(self.rms(qg[:, :, 0], self.weights[blk + "attn_q_norm.weight"]), positions)
        k = self.project(x, blk + "attn_k.weight").reshape(n_token, kv, size)
        k = self.rotate(self.rms(k, self.weights[blk + "attn_k_norm.weight"]), positions)
        v = self.project(x, blk + "attn_v.weight").reshape(n_token, kv, size)
        hidden = ~self.visible(x, blk, ratio)
        out = np.empty_like(q)
        for h in range(heads):
            source = h * kv // heads
            scores = q[:, h] @ k[:, source].T / self.dtype(np.sqrt(size))
            scores[hidden] = -np.inf
            out[:, h] = softmax(scores) @ v[:, source]
        out = out * sigmoid(qg[:, :, 1])
        return self.project(out.reshape(n_token, -1), blk + "attn_output.weight")

    def expert_matrices(self, blk):
        fused = self.weights.get(blk + "ffn_gate_up_exps.weight")
        if fused is not None:
            gate, up = np.split(fused, 2, axis=1)
        else:
            gate = self.weights[blk + "ffn_gate_exps.weight"]
            up = self.weights[blk + "ffn_up_exps.weight"]
        return gate, up, self.weights[blk + "ffn_down_exps.weight"]

    def experts(self, x, blk):
        used = self.key("expert_used_count")
        scores = self.project(x, blk + "ffn_gate_inp.weight")
        order = np.argsort(-scores, -1, kind="stable")
        ranked = np.take_along_axis(scores, order, -1)
        if used < scores.shape[1]:
            gap = float((ranked[:, used - 1] - ranked[:, used]).min())
            self.margins.router = min(self.margins.router, gap)
        picks, mix = order[:, :used], softmax(ranked[:, :used])
        self.picks.append(picks)
        gate, up, down = self.expert_matrices(blk)
        out = np.zeros_like(x)
        for expert in np.unique(picks):
            rows, ranks = np.nonzero(picks == expert)
            y = silu(x[rows] @ gate[expert].T) * (x[rows] @ up[expert].T)
            out[rows] += mix[rows, ranks][:, None] * (y @ down[expert].T)
        y = silu(self.project(x, blk + "ffn_gate_shexp.weight"))
        y = y * self.project(x, blk + "ffn_up_shexp.weight")
        share = sigmoid(x @ self.weights[blk + "ffn_gate_inp_shexp.weight"].reshape(-1))
        return out + share[:, None] * self.project(y, blk + "ffn_down_shexp.weight")

    # ---- the n-gram embedding --------------------------------------------------------------

    def ngram_rows(self, tokens):
        """Rows of the table, [T, heads]."""
        size, heads = self.key("ple.ngram_size"), self.key("ple.heads_per_ngram")
        eos = self.key("ple.eos_token_id")
        rows = []
        for t, token in enumerate(tokens):
            context, cut = [token], False
            for back in range(1, size):
                cut = cut or t < back or tokens[t - back] == eos
                context.append(eos if cut else tokens[t - back])
            products = [c * m for c, m in zip(context, self.key("ple.layer_multipliers"))]
            row, mixed = [], products[0]
            for n in range(1, size):
                mixed ^= products[n]
                for h in range((n - 1) * heads, n * heads):
                    size_h = self.key("ple.head_vocab_sizes")[h]
                    row.append(mixed % size_h + self.key("ple.head_offsets")[h])
            rows.append(row)
        return np.array(rows, np.int64)

    def ngram_layer(self, streams, tokens, blk):
        n_token, width = len(streams), streams.shape[2]
        e = self.weights["per_layer_token_embd.weight"][self.ngram_rows(tokens)]
        e = e.reshape(n_token, -1)
        k = self.project(e, blk + "ple_key.weight").reshape(streams.shape)
        k = self.rms_streams(k, blk + "ple_norm_key.weight")
        q = self.rms_streams(streams, blk + "ple_norm_query.weight")
        s = (k * q).sum(-1) / self.dtype(np.sqrt(width))
        gate = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), self.dtype(1e-6))))
        v = gate[..., None] * self.project(e, blk + "ple_value.weight")[:, None]
        n = self.rms_streams(v, blk + "ple_norm_conv.weight").reshape(n_token, -1)
        weight = self.weights[blk + "ple_conv1d.weight"]
        y = causal_convolution(n, weight, dilation=self.key("ple.ngram_size"))
        return streams + v + silu(y).reshape(streams.shape)

    # ---- the pass --------------------------------------------------------------------------

    def evaluate(self, tokens):
        """Logits [T, vocab] of a sequence from its start."""
        tokens = [int(t) for t in tokens]
        self.picks = []
        embedding = self.weights["token_embd.weight"]
        count = self.key("hyper_connection.count")
        streams = np.repeat(embedding[tokens][:, None], count, 1)
        ratios = self.key("attention.compress_ratios")
        for i in range(self.n_layer):
            blk = f"blk.{i}."
            if i in self.ple_layers:
                streams = self.ngram_layer(streams, tokens, blk)
            x, share = self.mix(streams, blk + "hc_attn")
            y = self.delta_net(x, blk) if self.linear[i] else self.attention(x, blk, ratios[i])
            streams = streams + share[..., None] * y[:, None]
            x, share = self.mix(streams, blk + "hc_ffn")
            streams = streams + share[..., None] * self.experts(x, blk)[:, None]
        x, _ = self.mix(streams, "output_hc", inject=False)
        return x @ self.weights.get("output.weight", embedding).T
