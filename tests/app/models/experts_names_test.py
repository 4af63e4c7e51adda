#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--experts, by names alone: each way of naming experts, each list of them.

Every element of a hand-made model says whose it is, so that what is kept can be
checked without a peer: an expert's number, or -1 for what all of them share.
What a configuration says about experts by number follows, or the command
refuses and writes nothing. All sizes are multiples of the number of experts, so
that divisible rows are no sign of what they are.
"""

import json
import random
import struct

from support import Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
MANY, WIDTH = 8, 16
SHARED = -1
LAYER = "model.layers.0."


def stacked(*rest, rows=1):
    """[MANY * rows, …]: some rows for each expert."""
    return lambda experts: ((len(experts) * rows, *rest), [
        expert for expert in experts for _ in range(rows * size(rest))])


def last(*before):
    """[…, MANY]: a transposed router."""
    return lambda experts: ((*before, len(experts)),
                            list(experts) * size(before))


def whole(*shape):
    return lambda experts: (shape, [SHARED] * size(shape))


def size(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def each(name, *shape):
    """A tensor for each expert, {} its number."""
    return {name.replace("{}", str(i)): (lambda _, at=i: (
        shape, [at] * size(shape))) for i in range(MANY)}


# What every model has: sizes that look like experts.
REST = {"model.embed_tokens.weight": whole(32, WIDTH),
        LAYER + "input_layernorm.weight": whole(WIDTH),
        LAYER + "self_attn.q_proj.weight": whole(MANY, WIDTH),
        LAYER + "conv1d.weight": whole(MANY, 1, 4)}
# How the experts and the router are named: {name: content}.
NAMINGS = {
    "mixtral": {
        **each(LAYER + "block_sparse_moe.experts.{}.w1.weight", 24, WIDTH),
        **each(LAYER + "block_sparse_moe.experts.{}.w2.weight", WIDTH, 24),
        LAYER + "block_sparse_moe.gate.weight": stacked(WIDTH)},
    "deepseek": {
        **each(LAYER + "mlp.experts.{}.gate_proj.weight", 8, WIDTH),
        **each(LAYER + "mlp.experts.{}.gate_proj.weight_scale_inv", 1, 1),
        LAYER + "mlp.gate.weight": stacked(WIDTH),
        LAYER + "mlp.gate.e_score_correction_bias": stacked(),
        LAYER + "mlp.shared_experts.gate_proj.weight": whole(MANY, WIDTH)},
    "ernie": {
        **each(LAYER + "mlp.experts.{}.down_proj.bias", WIDTH),
        LAYER + "mlp.gate.weight": stacked(WIDTH),
        LAYER + "mlp.moe_statics.e_score_correction_bias": last(1)},
    "gpt_oss, mxfp4": {
        LAYER + "mlp.experts.gate_up_proj_blocks": stacked(32, 2, 16),
        LAYER + "mlp.experts.gate_up_proj_scales": stacked(32, 2),
        LAYER + "mlp.experts.gate_up_proj_bias": stacked(32),
        LAYER + "mlp.router.weight": stacked(WIDTH),
        LAYER + "mlp.router.bias": stacked()},
    "qwen3_next": {
        LAYER + "mlp.experts.gate_up_proj": stacked(16, WIDTH),
        LAYER + "mlp.gate.weight": stacked(WIDTH),
        LAYER + "mlp.shared_expert.up_proj.weight": whole(MANY, WIDTH),
        LAYER + "mlp.shared_expert_gate.weight": whole(1, WIDTH)},
    "granitemoe": {
        LAYER + "block_sparse_moe.input_linear.weight": stacked(48, WIDTH),
        LAYER + "block_sparse_moe.router.layer.weight": stacked(WIDTH)},
    "gemma4": {
        LAYER + "experts.gate_up_proj": stacked(16, WIDTH),
        LAYER + "router.proj.weight": stacked(WIDTH),
        LAYER + "router.scale": whole(WIDTH),
        LAYER + "router.per_expert_scale": stacked()},
    "dbrx": {
        LAYER + "ffn.experts.mlp.w1": stacked(WIDTH, rows=4),
        LAYER + "ffn.router.layer.weight": stacked(WIDTH)},
    "olmo_core": {
        "blocks.0.feed_forward_moe.experts.mlp.w1": stacked(WIDTH, rows=4),
        "blocks.0.feed_forward_moe.router.weight": stacked(rows=WIDTH)},
    "llama4, Meta's": {
        "layers.0.feed_forward.experts.moe_w_in_eD_F": stacked(24, rows=WIDTH),
        "layers.0.feed_forward.router_DE": last(WIDTH)},
    "switch": {
        **each("encoder.block.1.layer.1.mlp.experts.expert_{}.wi.weight", 24,
               WIDTH),
        "encoder.block.1.layer.1.mlp.router.classifier.weight": stacked(WIDTH)},
    "deepspeed": {
        **each(LAYER + "mlp.deepspeed_moe.experts.deepspeed_experts.{}."
               "up.weight", 24, WIDTH),
        LAYER + "mlp.deepspeed_moe.gate.wg.weight": stacked(WIDTH)},
    "jamba": {
        **each(LAYER + "feed_forward.experts.{}.up_proj.weight", 24, WIDTH),
        LAYER + "feed_forward.router.weight": stacked(WIDTH)},
    "lfm2_moe": {
        **each(LAYER + "feed_forward.experts.{}.w1.weight", 24, WIDTH),
        LAYER + "feed_forward.gate.weight": stacked(WIDTH),
        LAYER + "feed_forward.expert_bias": stacked()},
}
# A model where nothing says what belongs to an expert: refused, with this word.
REFUSED = {
    "a norm among stacked experts": (
        {LAYER + "mlp.experts.norm.weight": whole(WIDTH)},
        "has no dimension of 8 experts"),
    "two matrices of all experts": (
        {LAYER + "mlp.experts.weight1": whole(WIDTH, 64)},
        "has no dimension of 8 experts"),
    "a router with experts that do nothing": (
        {LAYER + "mlp.gate.weight": whole(2 * MANY, WIDTH)},
        "has no dimension of 8 experts"),
    "a router's norm": (
        {LAYER + "mlp.gate.norm.weight": whole(WIDTH)},
        "has no dimension of 8 experts"),
    "a bias of another name": (
        {LAYER + "mlp.balance": whole(MANY)}, "as many rows as there are experts"),
    "stacked under another name": (
        {LAYER + "moe.up": whole(MANY, 24, WIDTH)},
        "as many rows as there are experts"),
    "a router of another name": (
        {LAYER + "mlp.gate.weight": None,
         LAYER + "mlp.switch.weight": whole(MANY, WIDTH)},
        "as many rows as there are experts"),
    "a layer without a router": (
        {LAYER.replace("0", "1") + "mlp.experts.up_proj": stacked(24, WIDTH)},
        "no router of these experts"),
}


def write(path, tensors, experts=range(MANY), config=None):
    """A directory of f32 tensors, or of i64 where a name says tid2eid."""
    path.mkdir(parents=True)
    header, data, at = {}, [], 0
    for name, made in tensors.items():
        shape, values = made(list(experts))
        kind, letter = (("I64", "q") if "tid2eid" in name else ("F32", "f"))
        part = struct.pack(f"<{len(values)}{letter}", *values)
        header[name] = {"dtype": kind, "shape": list(shape),
                        "data_offsets": [at, at + len(part)]}
        at += len(part)
        data.append(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data))
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))


def cut(source, out, experts, *more):
    return CKPT.run("convert", source, out, "--to", "safetensors", "--experts",
                    ",".join(map(str, experts)), "--no-fsync", "-q", *more)


def lists(name):
    draw = random.Random(name)
    yield [1, 2, 5]
    yield list(range(MANY))
    yield [MANY - 1, 0]
    for _ in range(2):
        yield draw.sample(range(MANY), draw.randint(1, MANY - 1))


def named(folder, name):
    tensors = {**REST, **NAMINGS[name]}
    source = folder / "source"
    write(source, tensors, config={"num_experts": MANY})
    for at, order in enumerate(lists(name)):
        kept = sorted(order)
        out = folder / f"out{at}"
        cut(source, out, order).want(0)
        want = expected(tensors, kept)
        got = {key: (value.shape, list(struct.unpack(
            f"<{len(value.data) // 4}f", value.data)))
            for key, value in read_safetensors(
                out / "model.safetensors").items()}
        check_equal(sorted(got), sorted(want), f"names of {order}")
        for key, value in want.items():
            check_equal(got[key], value, f"{order}: {key}")
        config = json.loads((out / "config.json").read_text())
        check_equal(config, {"num_experts": len(kept)}, "config.json")


def expected(tensors, kept):
    """{name: (shape, elements)} of what stays."""
    want = {}
    for name, made in tensors.items():
        shape, values = made(kept)
        alone = [key for word in ("experts.{}.", "experts.expert_{}.",
                                  "deepspeed_experts.{}.")
                 for i in range(MANY) if (key := word.format(i)) in name]
        if alone:
            expert = values[0]
            if expert not in kept:
                continue
            name = name.replace(alone[-1], alone[-1].replace(
                str(expert), str(kept.index(expert))))
        want[name] = (tuple(shape), [float(value) for value in values])
    return want


def refused(folder, name):
    changes, word = REFUSED[name]
    tensors = {**REST, **NAMINGS["qwen3_next"], **changes}
    source = folder / "source"
    write(source, {k: v for k, v in tensors.items() if v},
          config={"num_experts": MANY})
    run = cut(source, folder / "out", [0, 3]).want(5)
    check(word in run.err, run.err)
    check(not (folder / "out").exists(), "something was written")


def looked_up(folder):
    """A table of expert numbers can't be cut by rows."""
    source = folder / "source"
    write(source, {**REST, **NAMINGS["deepseek"],
                   LAYER + "mlp.gate.tid2eid": whole(32, 2)},
          config={"n_routed_experts": MANY})
    run = cut(source, folder / "out", [0, 3]).want(5)
    check("by their numbers" in run.err and "tid2eid" in run.err, run.err)


def unsaid(folder):
    """A config.json with no number that could follow; none at all is none."""
    source = folder / "source"
    write(source, {**REST, **NAMINGS["mixtral"]}, config={"n_experts": MANY})
    run = cut(source, folder / "out", [0, 3]).want(5)
    check("no key of config.json" in run.err, run.err)
    (source / "config.json").unlink()
    cut(source, folder / "out", [0, 3]).want(0)


def modules(folder):
    """What quantization_config says about an expert is rewritten for its new
    number."""
    left = [f"{LAYER}mlp.experts.{i}.up_proj" for i in (0, 2, 5, 7)]
    config = {"num_experts": MANY, "quantization_config": {
        "ignore": ["lm_head", *left, r"re:.*experts\.\d+\.down_proj",
                   LAYER + "mlp.gate"],
        "extra_config": {left[2]: {"bits": 8}, left[1]: {"bits": 4}},
        "deep": [{"modules": [left[3]]}]}}
    source = folder / "source"
    write(source, {**REST, **NAMINGS["mixtral"]}, config=config)
    cut(source, folder / "out", [1, 2, 5]).want(0)
    words = json.loads((folder / "out/config.json").read_text())[
        "quantization_config"]
    name = f"{LAYER}mlp.experts.{{}}.up_proj".format
    check_equal(words, {
        "ignore": ["lm_head", name(1), name(2), r"re:.*experts\.\d+\.down_proj",
                   LAYER + "mlp.gate"],
        "extra_config": {name(2): {"bits": 8}, name(1): {"bits": 4}},
        "deep": [{"modules": []}]}, "quantization_config")
    for at, pattern in enumerate((r"re:.*experts\.3\..*", "*.experts.(0|1).*",
                                  r"-:.*\.experts\.[57]\.")):
        source = folder / f"source{at}"
        config["quantization_config"] = {"ignore": [pattern]}
        write(source, {**REST, **NAMINGS["mixtral"]}, config=config)
        run = cut(source, folder / "no", [1, 2, 5]).want(5)
        check("quantization_config" in run.err and "pattern" in run.err,
              run.err)
        check(not (folder / "no").exists(), "something was written")
        cut(source, folder / f"first{at}", [0, 1, 2]).want(0)


def groups(folder):
    """DeepSeek's router picks groups first: equally many of each stay, or a
    warning says that experts have changed groups."""
    source = folder / "source"
    write(source, {**REST, **NAMINGS["deepseek"]}, config={
        "n_routed_experts": MANY, "n_group": 2, "topk_group": 1,
        "num_experts_per_tok": 2})
    for at, (kept, said) in enumerate((([0, 1, 4, 5], False),
                                       ([1, 3, 6, 7], False),
                                       ([0, 1, 2, 3], True),
                                       ([0, 1, 2, 3, 4, 5], True))):
        run = CKPT.ok("convert", source, folder / f"out{at}", "--to",
                      "safetensors", "--no-fsync", "--experts",
                      ",".join(map(str, kept)))
        check_equal("in another one now" in run.err, said, f"{kept}: {run.err}")


def adapters(folder):
    """An adapter uses the experts' old numbers."""
    source = folder / "source"
    write(source, {**REST, **NAMINGS["mixtral"]}, config={"num_experts": MANY})
    run = CKPT.run("convert", source, folder / "out", "--to", "safetensors",
                   "--experts", "0,3", "--adapter", source).want(2)
    check("whole model" in run.err, run.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name in NAMINGS:
        suite.add(name, named, name)
    for name in REFUSED:
        suite.add(name, refused, name)
    suite.add("experts looked up", looked_up)
    suite.add("no number in config.json", unsaid)
    suite.add("modules of quantization_config", modules)
    suite.add("groups", groups)
    suite.add("adapters", adapters)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
