# SPDX-License-Identifier: Apache-2.0
"""The architecture of Meta's published inference code, and of Mistral's with
its names, from params.json and consolidated.*.pth alone.

    x = tok_embeddings(tokens)
    x += wo(attention(rotate(wq(n)), rotate(wk(n)), wv(n))), n = norm(x)
    x += w2(silu(w1(n)) * w3(n)),                            n = norm(x)
    logits = output(norm(x))

A head's elements 2i and 2i + 1 are the parts of a complex number, which is
rotated by position * theta^(-2i / head size).
"""

import json
import math

import torch


def turns(params, size, length):
    """cos and sin of each pair's rotation at each position."""
    rates = [params.get("rope_theta", 10000.0) ** (-2 * i / size)
             for i in range(size // 2)]
    if params.get("use_scaled_rope"):
        rates = [scaled(params, rate) for rate in rates]
    angles = torch.outer(torch.arange(length, dtype=torch.float64),
                         torch.tensor(rates, dtype=torch.float64))
    return angles.cos().float(), angles.sin().float()


def scaled(params, rate):
    """Slow rotations, less than one turn in training's 8192 positions, are
    slowed by the factor; fast ones stay; those between are blended."""
    low, high = 1, params.get("rope_high_freq_factor", 4)
    factor = params.get("rope_scaling_factor", 8)
    seen = 8192 * rate / (2 * math.pi)
    blend = min(max((seen - low) / (high - low), 0), 1)
    return rate * (blend + (1 - blend) / factor)


def rotate(x, cos, sin):
    """x: heads, positions, size."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos),
                       -1).flatten(-2)


def norm(x, weight, params):
    mean = x.square().mean(-1, keepdim=True)
    return x * torch.rsqrt(mean + params.get("norm_eps", 1e-5)) * weight


def attention(x, state, at, params, turned):
    heads = params["n_heads"]
    groups = params.get("n_kv_heads") or heads

    def of(name, count):
        rows = x @ state[f"{at}.{name}.weight"].T
        return rows.view(len(x), count, -1).transpose(0, 1)

    q, k, v = of("wq", heads), of("wk", groups), of("wv", groups)
    q, k = rotate(q, *turned), rotate(k, *turned)
    k, v = (part.repeat_interleave(heads // groups, 0) for part in (k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    back = torch.arange(len(x))[:, None] - torch.arange(len(x))
    hidden = back < 0
    if params.get("sliding_window"):
        hidden |= back >= params["sliding_window"]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1) @ state[f"{at}.wo.weight"].T


def feed_forward(x, state, at):
    w1, w2, w3 = (state[f"{at}.w{i}.weight"].T for i in (1, 2, 3))
    return (torch.nn.functional.silu(x @ w1) * (x @ w3)) @ w2


def logits_of_meta(folder, tokens):
    params = json.loads((folder / "params.json").read_text())
    [path] = folder.glob("consolidated.*.pth")
    state = torch.load(path, weights_only=True)
    size = len(state["layers.0.attention.wq.weight"]) // params["n_heads"]
    turned = turns(params, size, tokens.shape[1])
    rows = []
    for line in tokens:
        x = state["tok_embeddings.weight"][line]
        for i in range(params["n_layers"]):
            at = f"layers.{i}"
            x = x + attention(
                norm(x, state[at + ".attention_norm.weight"], params), state,
                at + ".attention", params, turned)
            x = x + feed_forward(
                norm(x, state[at + ".ffn_norm.weight"], params), state,
                at + ".feed_forward")
        rows.append(norm(x, state["norm.weight"], params)
                    @ state["output.weight"].T)
    return torch.stack(rows)
