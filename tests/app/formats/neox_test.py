#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of GPT-NeoX on DeepSpeed. NeoX itself does not install here: its ranks'
forward pass is written down below from its modules (each rank computes with its
own slices, and outputs are added up where NeoX reduces them), and transformers
computes the same logits from what ckpt made of the files.
"""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal

HOMES = [Path(sys.prefix) / "transformers_5.12.1"]
CKPT = None  # set by prepare
L, H, HEADS, ROWS = 3, 32, 4, 64
HEAD = H // HEADS
WORDS = {False: ("dense_h_to_4h", "dense_4h_to_h"), True: ("linear1", "linear2")}


def torch_here():
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    return torch


class Run:
    """A model as each rank holds it: {module number: {name: tensor}}."""

    def __init__(self, tp=2, parallel=True, pct=0.25, bias=True, tied=False,
                 new=False, inner=None, dtype="float32", unlike=False,
                 llama=0, fusion=False, apart=False):
        torch = torch_here()
        self.tp, self.parallel, self.pct, self.tied = tp, parallel, pct, tied
        self.bias, self.new, self.llama, self.fusion = bias, new, llama, fusion
        self.apart = apart  # w1, w2 and w3, of older releases
        self.inner = inner or (48 if llama else 4 * H)
        self.dtype = getattr(torch, dtype)
        self.random = torch.Generator().manual_seed(tp)
        self.ranks = [{} for _ in range(tp)]
        self.own(0, "word_embeddings.weight", ROWS // tp, H)
        for layer in range(2, L + 2):
            self.layer(layer, unlike)
        self.norm(L + 3, "norm", unlike)
        if not tied:
            self.own(L + 4, "final_linear.weight", ROWS // tp, H)

    def draw(self, *shape, scale=0.2):
        torch = torch_here()
        return (scale * torch.randn(shape, generator=self.random)).to(self.dtype)

    def put(self, layer, name, tensors):
        for rank, tensor in zip(self.ranks, tensors):
            rank.setdefault(layer, {})[name] = tensor

    def own(self, layer, name, *shape):
        self.put(layer, name, [self.draw(*shape) for _ in range(self.tp)])

    def alike(self, layer, name, *shape, offset=0.0):
        one = self.draw(*shape) + offset
        self.put(layer, name, [one.clone() for _ in range(self.tp)])

    def norm(self, layer, name, unlike):
        make = self.unlike if unlike else self.alike
        make(layer, name + (".scale" if self.llama else ".weight"), H, offset=1.0)
        if not self.llama:
            make(layer, name + ".bias", H)

    def unlike(self, layer, name, *shape, offset=0.0):
        one = self.draw(*shape) + offset
        self.put(layer, name, [one + self.draw(*shape, scale=0.001)
                               for _ in range(self.tp)])

    def layer(self, at, unlike):
        tp, (up, down) = self.tp, WORDS[self.new]
        rows = (HEADS + 2 * (self.llama or HEADS)) * HEAD
        self.norm(at, "input_layernorm", unlike)
        self.norm(at, "post_attention_layernorm", unlike)
        self.own(at, "attention.query_key_value.weight", rows // tp, H)
        self.own(at, "attention.dense.weight", H, H // tp)
        if self.apart:
            for word in ("w1", "w3"):
                self.own(at, f"mlp.{word}.weight", self.inner // tp, H)
            self.own(at, "mlp.w2.weight", H, self.inner // tp)
        else:
            halves = 2 if self.llama else 1
            self.own(at, f"mlp.{up}.weight", halves * self.inner // tp, H)
            self.own(at, f"mlp.{down}.weight", H, self.inner // tp)
        each = self.own if self.parallel else self.alike
        if self.bias:
            self.own(at, "attention.query_key_value.bias", rows // tp)
            each(at, "attention.dense.bias", H)
        if not self.llama:
            self.own(at, f"mlp.{up}.bias", self.inner // tp)
            each(at, f"mlp.{down}.bias", H)

    # ------------------------------------------------------------- its files
    def config(self):
        first = {"num-layers": L, "hidden-size": H, "num-attention-heads": HEADS,
                 "max-position-embeddings": 64, "seq-length": 64,
                 "pos-emb": "rotary", "rotary-pct": self.pct,
                 "no-weight-tying": not self.tied,
                 "gpt_j_residual": self.parallel,
                 "bias-gelu-fusion": self.fusion,
                 "use_bias_in_attn_linear": self.bias,
                 "attention-config": [[["global"], L]],
                 "model-parallel-size": self.tp}
        if self.llama:
            first |= {"norm": "rmsnorm", "rms_norm_epsilon": 1e-5,
                      "activation": "swiglu", "use_bias_in_mlp": False,
                      "num_kv_heads": self.llama,
                      "intermediate_size": 3 * self.inner}
        elif self.inner != 4 * H:
            first["intermediate-size"] = self.inner
        second = {"train-iters": 10, "vocab-file": "v.json",
                  "optimizer": {"type": "Adam"}, "fp16": {"enabled": True}}
        return first, second

    def save(self, root, layers=True, configs=True, args=True):
        torch = torch_here()
        step = root / "global_step7"
        step.mkdir(parents=True)
        (root / "latest").write_text("global_step7")
        for rank, modules in enumerate(self.ranks):
            state = {"module": None, "optimizer": None, "mp_world_size": self.tp,
                     "dp_world_size": 1, "ds_version": "0.8.2", "iteration": 7}
            if args:
                state["args"] = {
                    "num_layers": L, "hidden_size": H, "num_attention_heads": HEADS,
                    "max_position_embeddings": 64, "padded_vocab_size": ROWS,
                    "make_vocab_size_divisible_by": 16,
                    "tokenizer_type": "HFTokenizer", "model_parallel_size": self.tp}
            if not layers:
                state["module"] = {f"sequential.{at}.{name}": tensor
                                   for at, names in modules.items()
                                   for name, tensor in names.items()}
            torch.save(state, step / f"mp_rank_{rank:02}_model_states.pt")
            for at, names in modules.items() if layers else ():
                torch.save(names, step / f"layer_{at:02}-model_{rank:02}"
                                         "-model_states.pt")
        if configs:
            (step / "configs").mkdir()
            for name, part in zip("ab", self.config()):
                (step / f"configs/{name}.yml").write_text(json.dumps(part))
        return step

    # --------------------------------------------------------- what it computes
    def logits(self, tokens):
        torch = torch_here()
        x = torch.cat([rank[0]["word_embeddings.weight"].double()
                       for rank in self.ranks])[tokens]
        for at in range(2, L + 2):
            modules = [rank[at] for rank in self.ranks]
            attention = [self.attention(m, self.normed(m, "input_layernorm", x))
                         for m in modules]
            if self.parallel:
                # Each rank adds its biases, then outputs are reduced.
                x = x + sum(a + self.biased(m, "attention.dense")
                            + self.mlp(m, self.normed(
                                m, "post_attention_layernorm", x))
                            + self.biased(m, "mlp." + WORDS[self.new][1])
                            for a, m in zip(attention, modules))
            else:
                # Outputs are reduced, then each rank adds its copy.
                x = x + sum(attention) + self.biased(modules[0], "attention.dense")
                x = x + (sum(self.mlp(m, self.normed(
                    m, "post_attention_layernorm", x)) for m in modules)
                    + self.biased(modules[0], "mlp." + WORDS[self.new][1]))
        x = self.normed(self.ranks[0][L + 3], "norm", x)
        head = (0, "word_embeddings") if self.tied else (L + 4, "final_linear")
        return torch.cat([x @ rank[head[0]][head[1] + ".weight"].double().T
                          for rank in self.ranks], -1)

    @staticmethod
    def biased(modules, name):
        bias = modules.get(name + ".bias")
        return 0 if bias is None else bias.double()

    def normed(self, modules, name, x):
        torch = torch_here()
        if self.llama:
            return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
                    * modules[name + ".scale"].double())
        return torch.nn.functional.layer_norm(
            x, (H,), modules[name + ".weight"].double(),
            modules[name + ".bias"].double(), 1e-5)

    def attention(self, modules, x):
        torch = torch_here()
        name = "attention.query_key_value"
        mixed = x @ modules[name + ".weight"].double().T
        mixed = mixed + self.biased(modules, name)
        n, heads = x.shape[0], HEADS // self.tp
        if self.llama and self.llama != HEADS:
            groups = self.llama // self.tp
            q, k, v = mixed.split([heads * HEAD, groups * HEAD, groups * HEAD], -1)
            q = q.view(n, heads, HEAD)
            k, v = (one.view(n, groups, HEAD).repeat_interleave(
                heads // groups, 1) for one in (k, v))
        else:
            q, k, v = mixed.view(n, heads, 3 * HEAD).split(HEAD, -1)
        turned = int(HEAD * self.pct)
        angle = torch.arange(n).double()[:, None] / 10000 ** (
            torch.arange(0, turned, 2).double() / turned)
        cos, sin = (torch.cat([f(angle)] * 2, -1)[:, None]
                    for f in (torch.cos, torch.sin))

        def rotate(y):
            part, rest = y[..., :turned], y[..., turned:]
            a, b = part.chunk(2, -1)
            return torch.cat([part * cos + torch.cat([-b, a], -1) * sin, rest], -1)

        scores = torch.einsum("ihd,jhd->hij", rotate(q), rotate(k)) / HEAD ** 0.5
        hidden = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        chances = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        context = torch.einsum("hij,jhd->ihd", chances, v).reshape(n, heads * HEAD)
        return context @ modules["attention.dense.weight"].double().T

    def mlp(self, modules, x):
        torch = torch_here()
        if self.apart:
            one, two, three = (modules[f"mlp.{word}.weight"].double().T
                               for word in ("w1", "w2", "w3"))
            return (torch.nn.functional.silu(x @ one) * (x @ three)) @ two
        up, down = ("mlp." + word for word in WORDS[self.new])
        y = x @ modules[up + ".weight"].double().T + self.biased(modules, up)
        if self.llama:
            y, gate = y.chunk(2, -1)
            y = torch.nn.functional.silu(gate) * y
        else:
            y = torch.nn.functional.gelu(
                y, approximate="tanh" if self.fusion else "none")
        return y @ modules[down + ".weight"].double().T


def check_logits(run, path):
    torch = torch_here()
    from transformers import AutoModelForCausalLM

    model, said = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, output_loading_info=True)
    check(not any(said[key] for key in ("missing_keys", "unexpected_keys",
                                        "mismatched_keys")), str(said))
    tokens = torch.tensor([5, 17, 3, 60, 2, 2, 41])
    with torch.no_grad():
        got = model.eval()(tokens[None]).logits[0]
    want = run.logits(tokens)
    far = float((got - want).abs().max() / want.abs().max())
    check(far < (2e-3 if run.dtype != torch.float32 else 1e-5),
          f"logits differ by {far:.1e} of the largest")


def tensors(path):
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(path.glob("*.safetensors"))
            for name, tensor in load_file(file).items()}


def test_model(folder, **how):
    """Layers of each rank, or all modules of a rank in one file: the same
    model, with NeoX's own configuration and no word on the command line."""
    layers = how.pop("layers", True)
    run = Run(**how)
    run.save(folder / "run", layers)
    CKPT.ok("verify", "--deep", folder / "run")
    CKPT.ok("convert", folder / "run", folder / "out", "--to", "safetensors")
    check_logits(run, folder / "out")
    CKPT.ok("verify", folder / "run", folder / "out")


def test_merged(folder, tp, dtype):
    """Sums and means are rounded once; the mean of equal norms is that norm."""
    torch = torch_here()
    for unlike in (False, True):
        run = Run(tp=tp, dtype=dtype, unlike=unlike)
        name = f"unlike{unlike}"
        run.save(folder / name)
        CKPT.ok("convert", folder / name, folder / f"{name}.out", "--to",
                "safetensors")
        got = tensors(folder / f"{name}.out")
        for layer in range(L):
            for part in ("input_layernorm.weight", "attention.dense.bias",
                         "mlp.dense_4h_to_h.bias"):
                each = [rank[layer + 2][part].double() for rank in run.ranks]
                whole = sum(each) / (tp if "norm" in part else 1)
                check(torch.equal(got[f"gpt_neox.layers.{layer}.{part}"],
                                  whole.float().to(run.dtype)), part)
                if "norm" in part and not unlike:
                    check(torch.equal(got[f"gpt_neox.layers.{layer}.{part}"],
                                      run.ranks[0][layer + 2][part]), part)


def test_lost(folder, layers):
    """Each file in its turn: verify says incomplete, or what the file was; no
    conversion makes a smaller model of the rest."""
    run = Run(tp=2)
    step = run.save(folder / "run", layers)
    for file in sorted(step.glob("*.pt")):
        held = file.read_bytes()
        file.unlink()
        result = CKPT.run("verify", folder / "run", "--json")
        check(result.code != 0, f"verify without {file.name}: {result}")
        document = json.loads(result.out)
        check_equal(document["verdict"], "incomplete", file.name)
        text = json.dumps(document)
        number = re.search(r"layer_(\d+)|mp_rank_(\d+)", file.name)
        check(str(int(number[1] or number[2])) in text, f"{file.name}: {text}")
        out = folder / "out"
        result = CKPT.run("convert", folder / "run", out, "--to", "safetensors",
                          "--family", "gpt_neox")
        check(result.code != 0 and not out.exists(), f"{file.name}: {result}")
        file.write_bytes(held)
    CKPT.ok("verify", folder / "run")


def test_copies(folder):
    """Without gpt-j-residual biases behind rows are copies: one that differs is
    refused, whichever it is, and never summed."""
    run = Run(tp=2, parallel=False)
    run.save(folder / "run")
    CKPT.ok("verify", folder / "run")
    for at, names in run.ranks[1].items():
        for name in names:
            if not name.endswith(("dense.bias", "4h_to_h.bias")):
                continue
            held, names[name] = names[name], names[name] + 1
            shutil.rmtree(folder / "run")
            run.save(folder / "run")
            check(CKPT.run("verify", "--deep", folder / "run").code != 0, name)
            result = CKPT.run("convert", folder / "run", folder / "out", "--to",
                              "safetensors")
            check(result.code in (4, 5) and name in result.err, str(result))
            names[name] = held


def test_shapes(folder):
    """Each tensor of rank 1 with other rows or columns is refused by name."""
    torch = torch_here()
    run = Run(tp=2)
    step = run.save(folder / "run")
    for at, names in list(run.ranks[1].items())[:2]:
        file = step / f"layer_{at:02}-model_01-model_states.pt"
        held = file.read_bytes()
        for name, tensor in names.items():
            cuts = [torch.cat([tensor, tensor])]
            if tensor.dim() == 2:
                cuts = [torch.cat([tensor, tensor], dim) for dim in (0, 1)]
            for cut in cuts:
                torch.save(names | {name: cut}, file)
                result = CKPT.run("convert", folder / "run", folder / "out",
                                  "--to", "safetensors")
                check(result.code in (1, 4, 5) and not (folder / "out").exists(),
                      f"{name} {tuple(cut.shape)}: {result}")
        torch.save({k: v for k, v in list(names.items())[1:]}, file)
        result = CKPT.run("verify", folder / "run")
        check(result.code != 0 and next(iter(names)) in result.out, str(result))
        file.write_bytes(held)


def test_unsaid(folder):
    """Without configs nothing says what a rank's biases are; --set does."""
    run = Run(tp=2)
    run.save(folder / "run", configs=False)
    result = CKPT.run("inspect", folder / "run")
    check(result.code == 5 and "gpt_j_residual=true" in result.err, str(result))
    whole = Run(tp=2)
    whole.save(folder / "whole")
    CKPT.ok("convert", folder / "whole", folder / "first", "--to", "safetensors")
    CKPT.ok("convert", folder / "run", folder / "out", "--to", "safetensors",
            "--config-from", folder / "first", "--set", "gpt_j_residual=true")
    check_logits(run, folder / "out")


def partitions(run, step, rank, dp):
    """ZeRO 1 by DeepSpeed's rule: f32 masters of all parameters end to end,
    padded, and cut in equal parts. Returns what each parameter has."""
    torch = torch_here()
    # A tied module has a name of its own.
    tied = {"0.word_embeddings.weight": "tied_modules.embed.word_embeddings"
            ".weight"} if run.tied else {}
    names = [(f"{at}.{name}", tensor) for at, modules in run.ranks[rank].items()
             for name, tensor in modules.items()]
    random = torch.Generator().manual_seed(rank)
    states, cut = {"": {}, "exp_avg": {}, "exp_avg_sq": {}}, {}
    for state, of in states.items():
        for name, tensor in names:
            noise = torch.randn(tensor.shape, generator=random)
            # A master rounds to the module's copy.
            of[name] = noise if state else tensor.float()
        flat = torch.cat([one.flatten() for one in of.values()])
        rest = -len(flat) % (2 * dp)
        cut[state] = torch.cat([flat, torch.zeros(rest)]).chunk(dp)
    for d in range(dp):
        torch.save({"optimizer_state_dict": {
            "zero_stage": 1, "partition_count": [dp],
            "single_partition_of_fp32_groups": [cut[""][d].clone()],
            "base_optimizer_state": {
                "state": {0: {"step": torch.tensor(3.0),
                              "exp_avg": cut["exp_avg"][d].clone(),
                              "exp_avg_sq": cut["exp_avg_sq"][d].clone()}},
                "param_groups": [{"lr": 0.1, "params": [0]}]},
            "ds_version": "0.8.2"}},
            step / f"zero_pp_rank_{d}_mp_rank_{rank:02}_optim_states.pt")
    path = step / f"mp_rank_{rank:02}_model_states.pt"
    state = torch.load(path, weights_only=False)
    state["param_shapes"] = [{tied.get(name, name): tensor.shape
                              for name, tensor in names}]
    # What zero_to_fp32 asks for.
    state |= {"buffer_names": [], "module": {}, "shared_params": {}}
    torch.save(state, path)
    return states


def test_zero(folder, tp, dp, tied):
    """Masters and moments: joined as the module is; moments of what each rank
    adds are the mean. At tp 1 as DeepSpeed's own zero_to_fp32 has masters."""
    torch = torch_here()
    run = Run(tp=tp, dtype="float16", tied=tied)
    step = run.save(folder / "run")
    states = [partitions(run, step, rank, dp) for rank in range(tp)]
    CKPT.ok("verify", "--deep", folder / "run")
    CKPT.ok("unshard", folder / "run", folder / "whole.safetensors")
    from safetensors.torch import load_file

    got = load_file(folder / "whole.safetensors")
    for state in ("", "exp_avg", "exp_avg_sq"):
        for name in states[0][state]:
            each = [rank[state][name].double() for rank in states]
            if "norm" in name or name.endswith(("dense.bias", "4h_to_h.bias")):
                whole = sum(each)
                whole = whole / tp if state or "norm" in name else whole
            else:
                rows = name.endswith(("dense.weight", "4h_to_h.weight"))
                whole = torch.cat(each, 1 if rows else 0)
            key = f"{name}.{state}" if state else name
            check(torch.equal(got[key], whole.float()), key)
    CKPT.ok("convert", folder / "run", folder / "out", "--to", "safetensors",
            "--model-only", "--dtype", "f16")
    check_logits(run, folder / "out")
    if tp > 1:
        return
    sys.path.append(str(Path(sys.prefix) / "deepspeed"))
    try:
        from deepspeed.utils.zero_to_fp32 import (
            get_fp32_state_dict_from_zero_checkpoint as own)
    except ImportError as error:
        raise Skip(str(error)) from error
    for name, tensor in own(str(folder / "run")).items():
        check(torch.equal(got[name], tensor), name)


REFUSED = {"pos-emb": "alibi", "gpt-j-tied": True, "use_qk_layernorm": True,
           "norm": "scalenorm", "activation": "mish", "moe-num-experts": 4,
           "sliding-window-width": 8, "use_bias_in_mlp": False,
           "attention-config": [[["local"], L]]}


def test_refused(folder):
    """Parts that no model of transformers has."""
    run = Run(tp=1)
    step = run.save(folder / "run")
    first = run.config()[0]
    for key, value in REFUSED.items():
        (step / "configs/a.yml").write_text(json.dumps(first | {key: value}))
        result = CKPT.run("convert", folder / "run", folder / "out", "--to",
                          "safetensors", "--dialect", "hf")
        check(result.code == 5 and not (folder / "out").exists(),
              f"{key}: {result}")
        said = result.err.replace("_", "-")
        check(key.replace("_", "-") in said, f"{key}: {result}")
    (step / "configs/a.yml").write_text(json.dumps(first))
    (step / "configs/c.yml").write_text(json.dumps({"num_layers": 9}))
    result = CKPT.run("convert", folder / "run", folder / "out", "--to",
                      "safetensors", "--dialect", "hf")
    check(result.code in (4, 5) and "num_layers" in result.err, str(result))


def models():
    for tp, parallel, pct, bias in itertools.product(
            (1, 2, 4), (True, False), (0.25, 1.0), (True, False)):
        yield {"tp": tp, "parallel": parallel, "pct": pct, "bias": bias,
               "layers": (tp + parallel + bias) % 2 == 0,
               "new": pct == 1.0 and tp != 4}
    for more in ({"tied": True}, {"tied": True, "layers": False},
                 {"inner": 64}, {"fusion": True}, {"dtype": "float16"},
                 {"dtype": "bfloat16", "tp": 4}):
        yield more
    # Llama's parts: as many keys as queries, and fewer; both namings of its MLP.
    for tp, groups, apart in itertools.product((1, 2), (2, HEADS),
                                               (False, True)):
        yield {"tp": tp, "llama": groups, "apart": apart, "parallel": False,
               "pct": 1.0, "bias": False, "new": True, "layers": tp == 2,
               "tied": groups == 2 and apart}


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path[1:1] = [str(home) for home in HOMES]
    for how in models():
        suite.add("a model: " + ", ".join(f"{k} {v}" for k, v in how.items()),
                  lambda folder, how=how: test_model(folder, **how))
    for tp, dtype in itertools.product((2, 4), ("float32", "float16",
                                                "bfloat16")):
        suite.add(f"merged at {tp} in {dtype}", test_merged, tp, dtype)
    for layers in (True, False):
        suite.add(f"lost files, {layers=}", test_lost, layers)
    for tp, dp, tied in ((1, 2, False), (2, 3, False), (4, 1, False),
                         (2, 2, True)):
        suite.add(f"ZeRO at tp {tp}, dp {dp}, {tied=}", test_zero, tp, dp,
                  tied)
    suite.add("copies that differ", test_copies)
    suite.add("shapes of rank 1", test_shapes)
    suite.add("nothing says what biases are", test_unsaid)
    suite.add("parts that are refused", test_refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
