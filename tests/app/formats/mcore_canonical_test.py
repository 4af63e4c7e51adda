#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models under Megatron-Core's canonical names become checkpoints of
Megatron's formats.

The truth is expected_mcore.safetensors of the goldens (canonical names, what
Megatron-Bridge made of Hugging Face's weights) and other/mcore_tp2…, the shards
that Megatron-Bridge itself cut. What ckpt writes from the first is read by
torch and, where installed, loaded by megatron-core.
"""

import importlib.util
import json
import re
import subprocess
import sys

import torch
from safetensors.torch import load_file, save_file

from dist_readers import read_dcp, read_zarr
from megatron_legacy_test import load
from peer import Peer
from support import (
    DATA, Failure, Skip, Suite, check, check_equal, from_torch,
    read_safetensors)

# Checked before the readers beside this file create modules of that name.
HAVE_PEER = importlib.util.find_spec("megatron") is not None
CKPT = None
HF = DATA / "hf"
PROGRAM = Peer("megatron_peer.py")

GATED = re.compile(r"linear_fc1\.(weight\d*|bias)$")
VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


def require_peer():
    if not HAVE_PEER:
        raise Skip("megatron-core is not installed")


def source_of(case):
    return HF / case / "expected_mcore.safetensors"


def cases():
    return sorted(p.parent.name for p in HF.glob("*/expected_mcore.safetensors"))


# ------------------------------------------------- what Megatron would write
def padded(tensors, multiple):
    """Zero rows after the vocabulary."""
    out = dict(tensors)
    for name in VOCABULARY:
        if name in out:
            rows = -len(out[name]) % multiple
            out[name] = torch.cat(
                [out[name], out[name].new_zeros(rows, *out[name].shape[1:])])
    return out


def is_mixed(tensors):
    """Layers of more than one kind keep their numbers."""
    layers = {}
    for name in tensors:
        found = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
        if found:
            layers.setdefault(int(found[1]), set()).add(found[2])
    return len({frozenset(names) for names in layers.values()}) > 1


def sharded(tensors):
    """Sharded keys: experts along an axis, then layers along another."""
    experts = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(
            r"(.*\.mlp\.experts)\.(linear_fc[12]\.weight)(\d+)", name)
        key = f"{found[1]}.experts.{found[2]}" if found else name
        key = key.replace(".mtp_model_layer.", ".transformer_layer.")
        experts.setdefault(key, {})[int(found[3]) if found else None] = tensor
    whole = {
        key: parts[None] if None in parts
        else torch.stack([parts[i] for i in range(len(parts))])
        for key, parts in experts.items()}
    if is_mixed(tensors):
        return whole
    layers = {}
    for key, tensor in whole.items():
        found = re.match(r"(decoder\.layers\.)(\d+)\.(.*)", key)
        name = found[1] + found[3] if found else key
        layers.setdefault(name, {})[int(found[2]) if found else None] = tensor
    return {
        name: parts[None] if None in parts
        else torch.stack([parts[i] for i in range(len(parts))])
        for name, parts in layers.items()}


def compare(got, want, what):
    check_equal(set(got), set(want), f"{what}: names")
    for name, tensor in want.items():
        check(got[name] == from_torch(tensor),
              f"{what}: {name} differs ({got[name]}, "
              f"{tensor.dtype} {tuple(tensor.shape)})")


def inner(path, word="release"):
    tracker = path / "latest_checkpointed_iteration.txt"
    check_equal(tracker.read_text(), word, tracker.name)
    return path / word


# -------------------------------------------------------------- distributed
def test_dist(scratch, case, form, tp, options):
    out = scratch / "out"
    CKPT.ok("convert", source_of(case), out, "--to", form, "--tp", tp,
            "--make-vocab-size-divisible-by", 4, *options, "--verify")
    want = sharded(padded(load_file(source_of(case)), 4 * tp))
    release = inner(out)
    got = (read_dcp(release)[0] if form == "megatron_torch_dist"
           else read_zarr(release))
    compare(got, want, form)
    CKPT.ok("verify", out, "--deep")


# ------------------------------------------------------------- ranks' files
def state_of(path):
    return load(path / "model_optim_rng.pt")


def parameters(model):
    return {name: value for name, value in model.items()
            if torch.is_tensor(value)}


def source_for_ranks(scratch, case, options):
    """With args, where directory names don't say enough."""
    return with_args(scratch, case, {}) if "--etp" in options else (
        source_of(case))


def test_like_bridge(scratch, case, shards):
    """Each rank's tensors are those that Megatron-Bridge gave it."""
    sizes = {k: int(n) for k, n in re.findall(r"(etp|tp|ep)(\d+)", shards.name)}
    out = scratch / "out"
    options = [part for k, n in sizes.items() for part in (f"--{k}", n)]
    CKPT.ok("convert", source_for_ranks(scratch, case, options), out, "--to",
            "megatron_legacy", "--make-vocab-size-divisible-by", 1, "--verify",
            *options)
    release = inner(out)
    ranks = sorted(shards.glob("rank_*.safetensors"))
    for number, file in enumerate(ranks):
        name = f"mp_rank_{number % sizes['tp']:02}"
        if sizes.get("ep", 1) > 1:
            name += f"_{number // sizes.get('etp', 1) % sizes['ep']:03}"
        got = parameters(state_of(release / name)["model"])
        compare({k: from_torch(v) for k, v in got.items()}, load_file(file),
                f"{name} of {case}")


def test_back(scratch, case, options):
    """Ranks' files and back: the original tensors, and zero rows."""
    out, back = scratch / "out", scratch / "back.safetensors"
    CKPT.ok("convert", source_for_ranks(scratch, case, options), out, "--to",
            "megatron_legacy", *options, "--verify")
    CKPT.ok("verify", out, "--deep")
    CKPT.ok("unshard", out, back)
    got, want = read_safetensors(back), load_file(source_of(case))
    tied = "output_layer.weight" in got and "output_layer.weight" not in want
    if tied:  # without args it looks like a model that isn't tied
        copy = got.pop("output_layer.weight")
        check(copy == got["embedding.word_embeddings.weight"], "the copy")
    for name in VOCABULARY:
        if name in want:
            extra = got[name].shape[0] - len(want[name])
            check(extra >= 0, f"{name} lost rows")
            want[name] = torch.cat(
                [want[name], want[name].new_zeros(extra, want[name].shape[1])])
    compare(got, want, case)


# Pipelines: options, and the layers that each file's chunks hold. The model
# has four layers.
PIPELINES = (
    (("--pp", 2), [[2], [2]]),
    (("--pp", 2, "--vpp", 2), [[1, 1], [1, 1]]),
    (("--pp-layout", "1,3"), [[1], [3]]),
    (("--pp-layout", "1,2,1"), [[1], [2], [1]]),
    (("--pp", 2, "--vpp", 1, "--pp-layout", "3,1"), [[3], [1]]),
    (("--pp", 1), [[4]]),
)


def four_layers(scratch, case="llama"):
    """The golden's layers twice, each with its number in it."""
    model = load_file(source_of(case))
    out = {}
    for name, tensor in model.items():
        found = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
        if not found:
            out[name] = tensor
            continue
        count = len({n.split(".")[2] for n in model if ".layers." in n})
        for layer in range(int(found[1]), 4, count):
            out[f"decoder.layers.{layer}.{found[2]}"] = tensor + layer
    path = scratch / "model.safetensors"
    save_file(out, path)
    return path, out


def test_pipeline(scratch, options, stages):
    source, want = four_layers(scratch)
    out = scratch / "out"
    CKPT.ok("convert", source, out, "--to", "megatron_legacy", *options,
            "--make-vocab-size-divisible-by", 1)
    release = inner(out)
    order = {}
    for p, chunks in enumerate(stages):
        name = "mp_rank_00" + (f"_{p:03}" if len(stages) > 1 else "")
        state = state_of(release / name)
        models = [state[k] for k in sorted(state) if k.startswith("model")]
        check_equal(len(models), len(chunks), f"chunks of stage {p}")
        for v, (model, layers) in enumerate(zip(models, chunks)):
            found = {int(n.split(".")[2]) for n in model if ".layers." in n}
            check_equal(found, set(range(layers)), f"layers of {p}, {v}")
            order[v, p] = model
    whole, first = {}, 0
    for place in sorted(order):
        model, count = order[place], 0
        for name, tensor in model.items():
            parts = name.split(".")
            if parts[1] == "layers":
                count = max(count, int(parts[2]) + 1)
                parts[2] = str(int(parts[2]) + first)
            whole[".".join(parts)] = tensor
        first += count
    check_equal(set(whole), set(want), "names")
    for name, tensor in want.items():
        check(torch.equal(whole[name], tensor), f"{name} differs")
    for name, place in (("embedding.word_embeddings.weight", min(order)),
                        ("output_layer.weight", max(order))):
        check(name in order[place], f"{name} is not in {place}")


def test_tied(scratch):
    """The last stage has a copy of a tied embedding."""
    out = scratch / "out"
    CKPT.ok("convert", source_of("llama_tied_bf16"), out, "--to",
            "megatron_legacy", "--pp", 2, "--tp", 2)
    for rank in 0, 1:
        first, last = (state_of(inner(out) / f"mp_rank_0{rank}_00{p}")["model"]
                       for p in (0, 1))
        check(torch.equal(first["embedding.word_embeddings.weight"],
                          last["output_layer.weight"]), "the copy")
    out = scratch / "dist"
    CKPT.ok("convert", source_of("llama_tied_bf16"), out, "--to",
            "megatron_torch_dist", "--pp", 2)
    check("output_layer.weight" not in read_dcp(inner(out))[0], "a copy")


# ------------------------------------------------------------ other spellings
LOCAL = {
    "llama": {
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
    "gpt2_f32": {
        "self_attention.linear_qkv.layer_norm_bias": "input_layernorm.bias",
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_bias": "pre_mlp_layernorm.bias",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
    "qwen2_moe_bf16": {
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
    "deepseek_v3_bf16": {
        "self_attention.linear_q_up_proj.layer_norm_weight":
            "self_attention.q_layernorm.weight",
        "self_attention.linear_kv_up_proj.layer_norm_weight":
            "self_attention.kv_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
}


def local_name(name, names):
    found = re.match(r"(decoder\.layers\.\d+\.)(.*)", name)
    if not found:
        return name
    rest = names.get(found[2], found[2])
    rest = re.sub(r"mlp\.experts\.(linear_fc\d\.weight)(\d+)",
                  r"mlp.experts.local_experts.\2.\1", rest)
    return found[1] + rest


def test_local(scratch, case, names):
    out = scratch / "out"
    CKPT.ok("convert", source_of(case), out, "--to", "megatron_legacy",
            "--transformer-impl", "local", "--make-vocab-size-divisible-by", 1)
    got = parameters(state_of(inner(out) / "mp_rank_00")["model"])
    want = {local_name(n, names): t
            for n, t in load_file(source_of(case)).items()}
    compare({k: from_torch(v) for k, v in got.items()}, want, case)


# -------------------------------------------------------------------- args
ARGS = dict(num_layers=2, hidden_size=32, num_attention_heads=8,
            group_query_attention=True, num_query_groups=2, kv_channels=4,
            ffn_hidden_size=36, swiglu=True, add_bias_linear=False,
            untie_embeddings_and_output_weights=True, vocab_size=60,
            normalization="RMSNorm", position_embedding_type="rope",
            max_position_embeddings=64, rotary_base=10000,
            layernorm_epsilon=1e-5)


def with_args(scratch, case="llama", args=None):
    """The model, and beside it what a translation knows about it."""
    path = scratch / "source.pt"
    args = ARGS if args is None else args
    torch.save({**load_file(source_of(case)), "args": args}, path)
    return path


# Megatron writes the same layout for these; only args differ.
JOBS = (
    (("--tp", 2, "--pp", 2, "--dp", 2), dict(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2,
        data_parallel_size=2, world_size=8, padded_vocab_size=256)),
    (("--tp", 4, "--make-vocab-size-divisible-by", 8), dict(
        tensor_model_parallel_size=4, expert_tensor_parallel_size=4,
        padded_vocab_size=64, make_vocab_size_divisible_by=8, world_size=4)),
    (("--vocab-size", 50, "--make-vocab-size-divisible-by", 2), dict(
        vocab_size=50, padded_vocab_size=50)),
    (("--dtype", "bf16"), dict(bf16=True, params_dtype=torch.bfloat16)),
)


def check_args(state, form, changed):
    args = vars(state["args"])
    check_equal(type(state["args"]).__module__, "argparse", "args' class")
    want = {**ARGS, "transformer_impl": "transformer_engine", "iteration": 0,
            "consumed_train_samples": 0, "no_save_optim": True,
            "virtual_pipeline_model_parallel_size": None, **changed}
    for name, value in want.items():
        check_equal(args.get(name, "missing"), value, f"args.{name}")
    check_equal(args["ckpt_format"], form, "args.ckpt_format")
    check_equal(state["checkpoint_version"], 3.0, "checkpoint_version")
    check_equal(state["iteration"], 0, "iteration")


def test_args(scratch, form, options, changed):
    out = scratch / "out"
    CKPT.ok("convert", with_args(scratch), out, "--to", f"megatron_{form}",
            *options)
    release = inner(out)
    if form == "legacy":
        state = state_of(sorted(release.iterdir())[0])
    else:
        state = load(release / "common.pt")
    check_args(state, {"legacy": "torch"}.get(form, form), changed)


def test_stage_args(scratch, form):
    """How a pipeline is cut, as Megatron's args express it."""
    source = scratch / "source.pt"
    _, tensors = four_layers(scratch)
    torch.save({**tensors, "args": {**ARGS, "num_layers": 4}}, source)
    for options, first, last, layout, vpp in (
            ("1,3", 1, None, None, None), ("1,2,1", 1, None, None, None),
            ("2,1,1", 2, None, None, None),
            ("1,1,2", None, 2, None, None),
            ("2,2", None, None, None, None)):
        out = scratch / f"{form}-{options}"
        CKPT.ok("convert", source, out, "--to", f"megatron_{form}",
                "--pp-layout", options)
        release = inner(out)
        args = vars((load(release / "common.pt") if form != "legacy"
                     else state_of(sorted(release.iterdir())[0]))["args"])
        if options == "1,2,1":
            last = 1
            first = 1
        check_equal(
            (args["decoder_first_pipeline_num_layers"],
             args["decoder_last_pipeline_num_layers"],
             args["pipeline_model_parallel_layout"]),
            (first, last, layout), options)


def test_layout_notation(scratch):
    """Stages of any size, in the notation of pipeline_model_parallel_layout,
    as megatron-core reads it."""
    require_peer()
    source, tensors = four_layers(scratch)
    more = {name.replace("layers.3", "layers.4"): tensor
            for name, tensor in tensors.items() if "layers.3." in name}
    torch.save({**tensors, **more, "args": {**ARGS, "num_layers": 5}},
               scratch / "five.pt")
    out = scratch / "out"
    CKPT.ok("convert", scratch / "five.pt", out, "--to", "megatron_legacy",
            "--pp", 2, "--vpp", 2, "--pp-layout", "1,2,1,1")
    args = vars(state_of(inner(out) / "mp_rank_00_001")["args"])
    text = args["pipeline_model_parallel_layout"]
    check_equal(args["virtual_pipeline_model_parallel_size"], 2, "vpp")
    check_equal(layout_by_peer(text, 2),
                [[["embedding", "decoder"], ["decoder"]],
                 [["decoder", "decoder"], ["decoder", "loss"]]], text)
    CKPT.ok("unshard", out, scratch / "back.safetensors", "--model-only")


def layout_by_peer(text, pp):
    program = (
        "import json, sys\n"
        "from megatron.core.transformer.pipeline_parallel_layer_layout import "
        "PipelineParallelLayerLayout as Layout\n"
        "parsed = Layout(sys.argv[1], int(sys.argv[2]))\n"
        "print(json.dumps([[[kind.name for kind in chunk] for chunk in stage]"
        " for stage in parsed.layout]))")
    result = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", program, text, str(pp)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    check_equal(result.returncode, 0, f"megatron-core reads {text}")
    return json.loads(result.stdout.splitlines()[-1])


# ------------------------------------------------------------- megatron-core
MODELS = {
    "llama": dict(layers=2, hidden=32, heads=8, groups=2, kv=4, ffn=36,
                  vocab=64, seq=64, swiglu=True, bias=False, tied=False,
                  pos="rope", norm="RMSNorm", norm_fp32=True),
    "llama_tied_bf16": dict(
        layers=2, hidden=24, heads=6, groups=2, kv=4, ffn=36, vocab=64, seq=64,
        swiglu=True, bias=False, tied=True, pos="rope", norm="RMSNorm"),
    "gpt2_f32": dict(layers=2, hidden=24, heads=4, groups=4, kv=6, ffn=96,
                     vocab=64, seq=20, swiglu=False, bias=True, tied=True,
                     pos="learned_absolute", norm="LayerNorm"),
    "mixtral_f32": dict(layers=2, hidden=24, heads=6, groups=2, kv=4, ffn=16,
                        vocab=64, seq=64, swiglu=True, bias=False, tied=False,
                        pos="rope", norm="RMSNorm", experts=4),
}


def test_peer(scratch, case, options, model, topology, world):
    """megatron-core's GPTModel loads it strictly; each element is the
    golden's."""
    require_peer()
    out = scratch / "out"
    expected = {k: v.bfloat16() for k, v in
                padded(load_file(source_of(case)), 64).items()}
    CKPT.ok("convert", source_of(case), out, "--to", "megatron_torch_dist",
            "--transformer-impl", "local", "--dtype", "bf16",
            "--make-vocab-size-divisible-by", 64 // dict(
                zip(options[::2], options[1::2])).get("--tp", 1), *options)
    keys = {}
    for name, tensor in sharded(expected).items():
        if "experts" in model:  # the local spec's name, layers with experts too
            name = name.replace("pre_mlp_layernorm.weight",
                                "mlp.linear_fc1.layer_norm_weight")
        keys[name] = tensor
    save_file(keys, scratch / "expected.safetensors")
    wrong = PROGRAM.ask(dict(
        kind="gpt", path=str(inner(out)),
        expected=[str(scratch / "expected.safetensors")], topology=topology,
        world=world, model={**model, "norm_fp32": False}))
    if wrong:
        raise Failure(f"megatron-core ({topology}): {wrong}")


# ------------------------------------------------------------- and with them
def test_from_hf(scratch, case, form, options):
    """From a Hugging Face directory, with the args that its config provides, to
    any job and back."""
    out, back = scratch / "out", scratch / "back"
    source = HF / case / "ckpt"
    CKPT.ok("convert", source, out, "--to", form, *options, "--verify")
    release = inner(out)
    state = (state_of(sorted(release.iterdir())[0])
             if form == "megatron_legacy" else load(release / "common.pt"))
    args = vars(state["args"])
    config = json.loads((source / "config.json").read_text())
    sizes = dict(zip(options[::2], options[1::2]))
    for name, value in (
            ("tensor_model_parallel_size", sizes.get("--tp", 1)),
            ("expert_model_parallel_size", sizes.get("--ep", 1)),
            ("expert_tensor_parallel_size",
             sizes.get("--etp", sizes.get("--tp", 1))),
            ("vocab_size", config["vocab_size"])):
        check_equal(args[name], value, f"args.{name}")
    CKPT.ok("convert", out, back, "--to", "safetensors")
    got = {}
    for file in back.glob("*.safetensors"):
        got |= read_safetensors(file)
    for name, tensor in read_safetensors(
            HF / case / "expected.safetensors").items():
        # What prediction layers repeat from the model is stored once here.
        if name not in got and re.search(
                r"(shared_head\.head|embed_tokens)\.weight$", name):
            continue
        check(got.get(name) == tensor, f"{name} differs")


def test_from_hf_by_peer(scratch):
    """megatron-core loads what a Hugging Face directory became."""
    require_peer()
    out = scratch / "out"
    CKPT.ok("convert", HF / "llama/ckpt", out, "--to", "megatron_torch_dist",
            "--tp", 4, "--pp", 2, "--dtype", "bf16",
            "--make-vocab-size-divisible-by", 16)
    save_file(sharded({k: v.bfloat16() for k, v in padded(
        load_file(source_of("llama")), 64).items()}),
        scratch / "expected.safetensors")
    for topology, world in ({"tp": 1}, 1), ({"tp": 2, "pp": 2}, 4):
        wrong = PROGRAM.ask(dict(
            kind="gpt", path=str(inner(out)),
            expected=[str(scratch / "expected.safetensors")],
            topology=topology, world=world,
            model={**MODELS["llama"], "norm_fp32": False}))
        if wrong:
            raise Failure(f"megatron-core ({topology}): {wrong}")


# ------------------------------------------------------------------ refusals
def test_refused(scratch, options, code, words, source=None):
    path = source(scratch) if source else source_of("llama")
    result = CKPT.run("convert", path, scratch / "out", *options).want(code)
    for word in words:
        check(word in result.err, f"{word!r} is not said\n{result}")
    check(not (scratch / "out").exists(), "something was written")


def renamed(scratch):
    tensors = load_file(source_of("llama"))
    tensors["decoder.layers.1.mlp.up.weight"] = tensors.pop(
        "decoder.layers.1.mlp.linear_fc2.weight")
    path = scratch / "odd.safetensors"
    save_file(tensors, path)
    return path


DIST = ("--to", "megatron_torch_dist")
LEGACY = ("--to", "megatron_legacy")
REFUSED = (
    (DIST + ("--vocab-size", 61), 5, ("--vocab-size 61", "60 rows")),
    (DIST + ("--tp", 5), 5, ("divide",)),
    (DIST + ("--pp-layout", "1,2"), 5, ("1,2", "2 layers")),
    (DIST + ("--pp-layout", "1,x"), 2, ("--pp-layout 1,x",)),
    (DIST + ("--pp", 4, "--pp-layout", "1,1"), 2, ("2 numbers",)),
    (DIST + ("--vpp", 2), 2, ("virtual",)),
    (LEGACY + ("--vpp", 2), 5, ("--vpp 2",)),
    (LEGACY + ("--tp", 2, "--etp", 3), 5, ("--etp 3",)),
    (LEGACY + ("--pp-layout", "2,1"), 5, ("2,1", "3 layers")),
    (("--to", "torch", "--vocab-size", 50), 2, ("--vocab-size",)),
    (LEGACY + ("--ep", 2), 5, ("no numbered experts",)),
    (("--to", "megatron_zarr", "--pp-layout", "1,2"), 5, ("2 layers",)),
)


def test_refused_spelling(scratch):
    out = scratch / "out"
    for form in "megatron_legacy", "megatron_torch_dist":
        CKPT.ok("convert", source_of("llama"), scratch / form, "--to", form)
        result = CKPT.run("convert", scratch / form, out, "--to", form,
                          "--transformer-impl", "local").want(2)
        check("--transformer-impl" in result.err, str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in cases():
        tensors = read_safetensors(source_of(case))
        experts = any(".experts.linear" in name for name in tensors)
        layers = {name.split(".")[2] for name in tensors
                  if name.startswith("decoder.layers.")}
        pipeline = ("--pp-layout", ",".join(
            ["1"] + [str(len(layers) - 1)] * (len(layers) > 1)))
        suite.add(f"{case} to torch_dist", test_dist, case,
                  "megatron_torch_dist", 1, pipeline)
        suite.add(f"{case} to torch_dist, tp 2", test_dist, case,
                  "megatron_torch_dist", 2,
                  ("--ep", 2, "--dp", 2) if experts else ())
        suite.add(f"{case} to zarr", test_dist, case, "megatron_zarr", 2, ())
        suite.add(f"{case} to ranks and back", test_back, case, ("--tp", 2))
        suite.add(f"{case} to stages and back", test_back, case,
                  ("--tp", 1, *pipeline))
        if experts:
            for options in (("--tp", 2, "--ep", 2),
                            ("--tp", 2, "--ep", 2, "--etp", 1)):
                suite.add(f"{case} to expert ranks and back {options[4:]}",
                          test_back, case, options)
        for shards in sorted((HF / case / "other").glob("mcore_*")):
            suite.add(f"{case}: like the bridge's {shards.name}",
                      test_like_bridge, case, shards)
    for options, stages in PIPELINES:
        suite.add(f"pipeline {' '.join(map(str, options))}", test_pipeline,
                  options, stages)
    suite.add("tied", test_tied)
    for case, names in LOCAL.items():
        suite.add(f"{case} in local names", test_local, case, names)
    for form in "torch_dist", "zarr", "legacy":
        for options, changed in JOBS:
            if form == "zarr" and "--dtype" in options:
                continue
            suite.add(f"args of {form} {' '.join(map(str, options))}",
                      test_args, form, options, changed)
    for form in "torch_dist", "legacy":
        suite.add(f"uneven stages in args of {form}", test_stage_args, form)
    suite.add("stages in Megatron's notation", test_layout_notation)
    for case, options, topology, world in (
            ("llama", ("--tp", 2, "--pp", 2), {"tp": 1}, 1),
            ("llama", ("--tp", 1), {"tp": 2, "pp": 2}, 4),
            ("llama_tied_bf16", ("--tp", 1, "--pp", 2), {"tp": 1, "pp": 2}, 2),
            ("gpt2_f32", ("--tp", 2), {"tp": 2}, 2),
            ("mixtral_f32", ("--tp", 2, "--dp", 2, "--ep", 2), {"ep": 2}, 2)):
        suite.add(f"megatron-core {case} {' '.join(map(str, options))}",
                  test_peer, case, options, MODELS[case], topology, world)
    for case in cases():
        names = read_safetensors(source_of(case))
        experts = any(".experts.linear" in name for name in names)
        for form in "megatron_torch_dist", "megatron_zarr", "megatron_legacy":
            suite.add(f"{case} of HF to {form} and back", test_from_hf, case,
                      form, ("--tp", 2))
            if experts and form != "megatron_zarr":
                suite.add(f"{case} of HF to expert ranks, {form}",
                          test_from_hf, case, form,
                          ("--tp", 2, "--ep", 2, "--etp", 1, "--dp", 1))
    suite.add("megatron-core: llama of HF", test_from_hf_by_peer)
    suite.add("refused: names of Megatron's own", test_refused_spelling)
    for options, code, words in REFUSED:
        suite.add(f"refused: {' '.join(map(str, options))}", test_refused,
                  options, code, words)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
