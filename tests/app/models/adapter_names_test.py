#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An adapter by itself: PEFT's names to Megatron-Bridge's (0.3.1) and back.

peft makes the adapter. torch's own reader of distributed checkpoints reads what
is written; Megatron-Core's own factory for gated matrices says where each
rank's rows are in it. Bridge's fused adapters are made here, named and arranged
as by its LoRA.
"""

import json

from adapter_test import LINEAR, make_adapter, make_base, read_model
from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare
RUN = """# Megatron-Bridge's
checkpoint:
  save_optim: true
  save_rng: true
model:
  expert_tensor_parallel_size: null
  num_layers_in_first_pipeline_stage: null
  pipeline_model_parallel_layout:
  - [embedding, decoder]
  - - decoder
    - loss
  pipeline_model_parallel_size: 2
  seq_length: 4096   # as trained
  tensor_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: 2
peft:
  _target_: megatron.bridge.peft.lora.LoRA
  alpha: 16
  dim: 8
  dropout: 0.1
"""
ATTENTION = "decoder.layers.{}.self_attention."
MLP = "decoder.layers.{}.mlp."
PLACES = {
    "self_attn.q_proj": "self_attention.linear_qkv.adapter.adapter_q.",
    "self_attn.k_proj": "self_attention.linear_qkv.adapter.adapter_k.",
    "self_attn.v_proj": "self_attention.linear_qkv.adapter.adapter_v.",
    "self_attn.o_proj": "self_attention.linear_proj.adapter.",
    "mlp.gate_proj": "mlp.linear_fc1.adapter.adapter_gate.",
    "mlp.up_proj": "mlp.linear_fc1.adapter.adapter_up.",
    "mlp.down_proj": "mlp.linear_fc2.adapter."}


def read_dist(folder):
    """Global tensors, read by torch."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(folder)
    index = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(one.size, dtype=one.properties.dtype)
             for name, one in index.items() if hasattr(one, "properties")}
    load(state, storage_reader=reader, no_dist=True)
    return state


def on_ranks(whole, local, tp, rank):
    """A rank's rows of a linear_fc1 tensor, where Megatron-Core has them."""
    try:
        from megatron.core.dist_checkpointing import ShardedTensor
        from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
    except ImportError as error:
        raise Skip(str(error)) from error
    import torch

    own = ShardedTensor.from_rank_offsets("x", local, (0, rank, tp))
    parts = apply_swiglu_sharded_factory(own, ()).build()
    got = []
    for part in parts:
        begin = part.global_offset[0]
        got.append(whole[begin:begin + part.local_shape[0]])
    return torch.cat(got)


def there_and_back(folder):
    import torch

    base = make_base(folder / "base", "llama", "float32")
    adapter = make_adapter(folder / "adapter", base, r=8, lora_alpha=12,
                           lora_dropout=0.05, target_modules=LINEAR)
    want = read_model(adapter)
    for tp in (1, 2, 4):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        said = CKPT.ok("convert", adapter, there, "-v", "--to",
                       "megatron_torch_dist", "--tp", tp, "--config-from", base)
        check("CanonicalLoRA(dim=8, alpha=12, dropout=0.05)" in said.err,
              said.err)
        state = read_dist(there / "release")
        check_equal(len(state), 2 * len(PLACES), "tensors")
        for hf, bridge in PLACES.items():
            for factor, end in (("A", "linear_in"), ("B", "linear_out")):
                whole = state[f"decoder.layers.{bridge}{end}.weight"]
                for layer in range(2):
                    own = want[f"base_model.model.model.layers.{layer}.{hf}"
                               f".lora_{factor}.weight"]
                    got = whole[layer]
                    if "fc1" in bridge and factor == "B":
                        got = torch.cat([
                            on_ranks(got, part, tp, rank) for rank, part
                            in enumerate(own.chunk(tp))])
                    check(torch.equal(got, own), f"tp {tp}: {bridge}{end}")
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--config-from", base)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            check((back / name).read_bytes() == (adapter / name).read_bytes(),
                  f"tp {tp}: {name} is another one")


def fused(folder):
    """Bridge's LoRA: one linear_in for q, k and v, one for gate and up."""
    import torch
    from safetensors.torch import save_file

    base = make_base(folder / "base", "llama", "float32")
    torch.manual_seed(5)
    heads, groups, head, wide = 4, 2, 16, 160
    state, want = {}, {}
    for layer in range(2):
        q, k, v = (torch.randn(n * head, 8) for n in (heads, groups, groups))
        gate, up = torch.randn(wide, 8), torch.randn(wide, 8)
        first, second = torch.randn(8, 64), torch.randn(8, 64)
        a, m = ATTENTION.format(layer), MLP.format(layer)
        state[a + "linear_qkv.adapter.linear_in.weight"] = first
        state[a + "linear_qkv.adapter.linear_out.weight"] = torch.cat(
            [torch.cat([q.chunk(groups)[g], k.chunk(groups)[g],
                        v.chunk(groups)[g]]) for g in range(groups)])
        state[m + "linear_fc1.adapter.linear_in.weight"] = second
        state[m + "linear_fc1.adapter.linear_out.weight"] = torch.cat(
            [gate, up])
        for name, one, rows in (
                ("self_attn.q_proj", first, q), ("self_attn.k_proj", first, k),
                ("self_attn.v_proj", first, v), ("mlp.gate_proj", second, gate),
                ("mlp.up_proj", second, up)):
            name = f"base_model.model.model.layers.{layer}.{name}.lora_"
            want[name + "A.weight"] = one
            want[name + "B.weight"] = rows
    source = folder / "bridge"
    source.mkdir()
    save_file(state, source / "model.safetensors")
    (source / "run_config.yaml").write_text(RUN)
    CKPT.ok("convert", source, folder / "out", "-q", "--to", "safetensors",
            "--dialect", "hf", "--config-from", base)
    got = read_model(folder / "out")
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(torch.equal(got[name], tensor), name)
    config = json.loads((folder / "out/adapter_config.json").read_text())
    check_equal((config["r"], config["lora_alpha"], config["lora_dropout"],
                 config["target_modules"]),
                (8, 16, 0.1, ["gate_proj", "k_proj", "q_proj", "up_proj",
                              "v_proj"]), "adapter_config.json")
    shown = json.loads(CKPT.ok("inspect", folder / "out", "--json").out)
    check_equal((shown["adapter"]["type"], shown["adapter"]["rank"],
                 shown["adapter"]["alpha"]), ("LORA", 8, 16), "inspect --json")
    CKPT.ok("convert", base, folder / "merged", "-q", "--to", "safetensors",
            "--adapter", folder / "out")


def run_config(tp, pp=2):
    text = RUN.replace("tensor_model_parallel_size: 1",
                       f"tensor_model_parallel_size: {tp}")
    if pp == 2:
        return text
    begin = text.index("  pipeline_model_parallel_layout:")
    end = text.index("  pipeline_model_parallel_size")
    return (text[:begin] + "  pipeline_model_parallel_layout: null\n"
            + text[end:].replace("parallel_size: 2", f"parallel_size: {pp}", 1)
            .replace("virtual_pipeline_model_parallel_size: 2",
                     "virtual_pipeline_model_parallel_size: null"))


def check_run_config(folder, tp, pp, what):
    """The target's ranks, no training state, and everything else as it was."""
    want = run_config(tp, pp).replace("save_optim: true", "save_optim: false")
    want = want.replace("save_rng: true", "save_rng: false")
    check_equal((folder / "run_config.yaml").read_text(), want, what)


def set_ranks(source, there, tp):
    """As Bridge leaves it: ranks in run_config.yaml, no args in common.pt."""
    import shutil

    import torch

    shutil.copytree(source, there)
    common = there / "release/common.pt"
    state = torch.load(common, weights_only=False)
    del state["args"]
    torch.save(state, common)
    (there / "release/run_config.yaml").write_text(
        run_config(tp, 1))


def check_rows(folder, tp, want, what):
    """Each rank's rows of gate and up, as Megatron-Core takes them."""
    import torch

    state = read_dist(folder / "release")
    for hf in ("mlp.gate_proj", "mlp.up_proj"):
        whole = state[f"decoder.layers.{PLACES[hf]}linear_out.weight"]
        for layer in range(2):
            own = want[f"base_model.model.model.layers.{layer}.{hf}"
                       ".lora_B.weight"]
            got = torch.cat([on_ranks(whole[layer], part, tp, rank)
                             for rank, part in enumerate(own.chunk(tp))])
            check(torch.equal(got, own), f"{what}: {hf} of layer {layer}")


def other_ranks(folder):
    """Rows of gate and up follow tp, whatever states how many ranks they are
    for."""
    base = make_base(folder / "base", "llama", "float32")
    adapter = make_adapter(folder / "adapter", base, r=8, lora_alpha=16,
                           target_modules=LINEAR)
    want = read_model(adapter)
    weights = (adapter / "adapter_model.safetensors").read_bytes()
    for tp in (1, 2, 4):
        args, bridge = folder / f"args{tp}", folder / f"bridge{tp}"
        CKPT.ok("convert", adapter, args, "-q", "--to", "megatron_torch_dist",
                "--tp", tp, "--config-from", base)
        set_ranks(args, bridge, tp)
        for to in (1, 2, 4):
            for source in (args, bridge):
                for command in (("reshard",),
                                ("convert", "--to", "megatron_torch_dist")):
                    what = f"{command[0]} {source.name} to {to}"
                    out = folder / what.replace(" ", "_")
                    CKPT.ok(command[0], source, out, "-q", *command[1:],
                            "--tp", to)
                    check_rows(out, to, want, what)
                    if source == bridge:
                        check_run_config(out / "release", to, 1, what)
                    if command[0] == "convert":
                        continue
                    back = folder / f"{out.name}_back"
                    CKPT.ok("convert", out, back, "-q", "--to", "safetensors",
                            "--config-from", base)
                    check((back / "adapter_model.safetensors").read_bytes()
                          == weights, what)
        zarr = folder / f"zarr{tp}"
        CKPT.ok("convert", args, zarr, "-q", "--to", "megatron_zarr", "--tp",
                4 // tp)
        CKPT.ok("convert", zarr, folder / f"home{tp}", "-q", "--to",
                "safetensors", "--config-from", base)
        check((folder / f"home{tp}/adapter_model.safetensors").read_bytes()
              == weights, f"zarr of {tp}")
        run = CKPT.run("convert", args, folder / "no", "--to",
                       "megatron_legacy", "--tp", 2).want(5)
        check("ranks' files" in run.err, run.err)
    # No ranks are asked for: run_config.yaml gives them.
    (bridge / "release/run_config.yaml").write_text(run_config(4))
    out = folder / "same"
    CKPT.ok("reshard", bridge, out, "-q")
    check_run_config(out / "release", 4, 2, "same ranks")
    check_rows(out, 4, want, "same ranks")
    CKPT.ok("reshard", bridge, folder / "less", "-q", "--tp", 2, "--pp", 1)
    check_run_config(folder / "less/release", 2, 1, "fewer ranks")
    check_rows(folder / "less", 2, want, "fewer ranks")
    # What can't be edited is refused.
    (bridge / "release/run_config.yaml").write_text(
        run_config(4).replace("size: 4", "size: !!int 4"))
    run = CKPT.run("reshard", bridge, folder / "no", "--tp", 2).want(5)
    check("can't be changed in place" in run.err, run.err)
    (bridge / "release/run_config.yaml").unlink()
    for more in ((), ("--tp", 2)):
        run = CKPT.run("reshard", bridge, folder / "no", *more).want(5)
        check("neither args nor run_config.yaml" in run.err, run.err)
    run = CKPT.run("reshard", args, folder / "no", "--tp", 32).want(5)
    check("linear_fc1" in run.err or "divide" in run.err, run.err)
    check(not (folder / "no").exists(), "something was written")


def moments(folder):
    """Adam's states of an adapter follow its rows to other ranks."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(11)
    state = {}
    for layer in range(2):
        for part in ("adapter_gate", "adapter_up"):
            name = (MLP.format(layer) +
                    f"linear_fc1.adapter.{part}.linear_out.weight")
            state[name] = torch.randn(32, 8)
            for word, times in (("fp32_param", 1), ("exp_avg", 2),
                                ("exp_avg_sq", 4)):
                state[f"optimizer.state.{word}.{name}"] = state[name] * times
    source = folder / "source"
    source.mkdir()
    save_file(state, source / "model.safetensors")
    (source / "run_config.yaml").write_text(run_config(2))
    out = folder / "out"
    CKPT.ok("convert", source, out, "-q", "--to", "megatron_torch_dist",
            "--tp", 4)
    [index] = out.rglob(".metadata")
    got = read_dist(index.parent)
    weights = [name for name in got if not name.startswith("optimizer.")]
    check(weights, "no weights")
    for name in weights:
        for layer in range(2):
            own = state[name.replace("layers.", f"layers.{layer}.")]
            # Whole again: rows in the order for one rank.
            before = torch.cat([on_ranks(own, part, 2, rank) for rank, part
                                in enumerate(own.chunk(2))])
            after = torch.cat([on_ranks(got[name][layer], part, 4, rank)
                               for rank, part in enumerate(own.chunk(4))])
            check(torch.equal(before, after), f"{name}: other rows")
        for word, times in (("fp32_param", 1), ("exp_avg", 2),
                            ("exp_avg_sq", 4)):
            check(torch.equal(got[f"optimizer.state.{word}.{name}"],
                              got[name] * times), f"{word} of {name}")
    check("save_optim: true" in
          (index.parent / "run_config.yaml").read_text(), "save_optim")


def refusals(folder):
    base = make_base(folder / "base", "llama", "float32")
    rows = (
        ("q and v", {"target_modules": ["q_proj", "v_proj"]}, "all its parts"),
        ("rsLoRA", {"use_rslora": True}, "use_rslora"),
        ("DoRA", {"use_dora": True}, "DoRA"),
        ("ranks", {"rank_pattern": {"o_proj": 4}}, "one of each"),
        ("alphas", {"alpha_pattern": {"o_proj": 4}}, "one of each"),
        ("whole", {"modules_to_save": ["lm_head"]}, "no place for this"))
    for name, options, said in rows:
        adapter = make_adapter(folder / name, base, **{
            "r": 8, "target_modules": LINEAR, **options})
        run = CKPT.run("convert", adapter, folder / "no", "--to",
                       "megatron_torch_dist", "--config-from", base).want(5)
        check(said in run.err, f"{name}: {run.err}")
        check(not (folder / "no").exists(), "something was written")
    run = CKPT.run("convert", adapter, folder / "no", "--to",
                   "megatron_torch_dist").want(5)
    check("--config-from BASE" in run.err, run.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("there and back", there_and_back)
    suite.add("fused adapters", fused)
    suite.add("other ranks", other_ranks)
    suite.add("moments", moments)
    suite.add("refusals", refusals)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
