# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own models, one of each kind, tiny: what runs_titan_test.py runs.

    runs_titan_models_peer.py DIR PORT

Its own CheckpointManager saves a step of each, DIR/NAME/checkpoint/step-3;
beside it is what its adapter makes of model and moments. Then it waits for a
line, and the same manager loads DIR/NAME/back/step-3 where there is one, into a
model with other values. DIR/others/NAME are steps with the names of the models
that no case is of. Then transformers loads DIR/NAME/hf, and must compute what
torchtitan's model does.
"""

import importlib
import json
import re
import sys
from pathlib import Path

from runs_titan_start import start

DIR, PORT = Path(sys.argv[1]), sys.argv[2]
start(PORT)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torchtitan.models as models  # noqa: E402
import torchtitan.models.deepseek_v3 as deepseek  # noqa: E402
import torchtitan.models.gpt_oss as gpt_oss  # noqa: E402
import torchtitan.models.llama3 as llama3  # noqa: E402
import torchtitan.models.qwen3 as qwen3  # noqa: E402
from peer import program  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.optimizer import (  # noqa: E402
    LRSchedulersContainer, default_adamw)
from torchtitan.models.common import (  # noqa: E402
    ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm)
from torchtitan.models.common.attention import FusedQKVLinear  # noqa: E402

WIDTH, HEADS, KEYS, SIZE, VOCABULARY, INNER, EXPERTS = 16, 4, 2, 4, 53, 24, 3
INIT = {"weight": torch.nn.init.ones_, "bias": torch.nn.init.zeros_}
ROPE = dict(dim=SIZE, max_seq_len=32, theta=10000)


def decoder(cls, layers, **more):
    return cls.Config(
        dim=WIDTH, vocab_size=VOCABULARY, layers=layers,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=WIDTH, param_init=INIT),
        norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=INIT),
        lm_head=Linear.Config(
            in_features=WIDTH, out_features=VOCABULARY, param_init=INIT),
        **more)


def llama(fused, **more):
    return decoder(llama3.Llama3Model, llama3._build_llama3_layers(
        fuse_qkv=fused, n_layers=2, dim=WIDTH, n_heads=HEADS, n_kv_heads=KEYS,
        hidden_dim=INNER, rope=ComplexRoPE.Config(**ROPE),
        attn_backend="flex"), **more)


HEADED = dict(n_layers=2, dim=WIDTH, n_heads=HEADS, n_kv_heads=KEYS,
              head_dim=SIZE, attn_backend="flex",
              rope=CosSinRoPE.Config(**ROPE))


def qwen(fused, **more):
    return decoder(qwen3.Qwen3Model, qwen3._build_qwen3_layers(
        fuse_qkv=fused, hidden_dim=INNER, **HEADED), **more)


def qwen_moe(fused):
    return decoder(qwen3.Qwen3Model, qwen3._build_qwen3_moe_layers(
        fuse_qkv=fused, moe_hidden_dim=INNER, num_experts=EXPERTS, top_k=2,
        moe_comm_backend="standard", **HEADED))


def deepseek_v3(rank, scores, predicted=0):
    numbers = dict(
        n_layers=2, n_dense_layers=1, dim=WIDTH, n_heads=HEADS,
        q_lora_rank=rank, kv_lora_rank=8, qk_nope_head_dim=SIZE,
        qk_rope_head_dim=SIZE, v_head_dim=SIZE, mscale=1.0,
        dense_hidden_dim=INNER, moe_hidden_dim=INNER, num_experts=EXPERTS,
        num_shared_experts=1, router_top_k=2, router_score_func=scores,
        attn_backend="flex", moe_comm_backend="standard",
        non_blocking_capacity_factor=None, rope=ComplexRoPE.Config(**ROPE))
    layers = deepseek._build_dsv3_layers(**numbers)
    more = deepseek._build_mtp_layers(
        layers[-1], dim=WIDTH, num_mtp_layers=predicted)
    return decoder(deepseek.DeepSeekV3Model, layers, mtp_layers=more)


def oss(fused=True):
    # The heads' numbers are the defaults of gpt_oss: 64 of 64.
    build = gpt_oss._make_gptoss_attn_config
    gpt_oss._make_gptoss_attn_config = lambda **given: build(
        n_heads=HEADS, n_kv_heads=KEYS, head_dim=SIZE, **given)
    layers = gpt_oss._build_gptoss_layers(
        fuse_qkv=fused, dim=WIDTH, n_layers=2, hidden_dim=INNER,
        num_experts=EXPERTS, top_k=2, load_balance_coeff=1e-3, moe_comm_backend="standard",
        rope=CosSinRoPE.Config(**ROPE))
    gpt_oss._make_gptoss_attn_config = build
    return decoder(gpt_oss.GptOssModel, layers)


LATENT = dict(
    num_key_value_heads=HEADS, n_routed_experts=EXPERTS, n_shared_experts=1,
    first_k_dense_replace=1, kv_lora_rank=8, qk_nope_head_dim=SIZE,
    qk_rope_head_dim=SIZE, v_head_dim=SIZE, n_group=1, topk_group=1,
    norm_topk_prob=False, routed_scaling_factor=1.0, q_lora_rank=None)
# torchtitan's model, its configuration, what config.json says beside SAID.
CASES = {
    "llama": ("llama3", lambda: llama(True), dict(model_type="llama")),
    "llama_apart_tied": (
        "llama3", lambda: llama(False, enable_weight_tying=True),
        dict(model_type="llama", tie_word_embeddings=True)),
    "qwen3_tied": ("qwen3", lambda: qwen(True, enable_weight_tying=True),
                   dict(model_type="qwen3", tie_word_embeddings=True)),
    "qwen3_apart": ("qwen3", lambda: qwen(False), dict(model_type="qwen3")),
    "qwen3_moe": ("qwen3", lambda: qwen_moe(True),
                  dict(model_type="qwen3_moe", num_experts=EXPERTS,
                       norm_topk_prob=True)),
    "qwen3_moe_biased": (
        "qwen3", lambda: qwen_moe(False),
        dict(model_type="qwen3_moe", num_experts=EXPERTS,
             norm_topk_prob=True)),
    "deepseek_v3": ("deepseek_v3", lambda: deepseek_v3(8, "sigmoid"),
                    dict(LATENT, model_type="deepseek_v3", q_lora_rank=8)),
    "deepseek_v2": ("deepseek_v3", lambda: deepseek_v3(0, "softmax"),
                    dict(LATENT, model_type="deepseek_v2")),
    "deepseek_v3_mtp": ("deepseek_v3", lambda: deepseek_v3(8, "sigmoid", 1),
                        dict(LATENT, model_type="deepseek_v3", q_lora_rank=8,
                             num_nextn_predict_layers=1)),
    "gpt_oss": ("gpt_oss", oss, dict(
        model_type="gpt_oss", num_local_experts=EXPERTS)),
}
# What loads what ckpt writes: with fuse_qkv, the default, or those of APART in
# runs_titan_test.py without.
LOADS = {"qwen3_apart": lambda: qwen(True),
         "qwen3_tied": lambda: qwen(False, enable_weight_tying=True),
         "gpt_oss": lambda: oss(False)}
SAID = dict(
    vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER,
    moe_intermediate_size=INNER, num_hidden_layers=2, head_dim=SIZE,
    num_attention_heads=HEADS, num_key_value_heads=KEYS, num_experts_per_tok=2,
    max_position_embeddings=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
    transformers_version="5.12.1")


class State:
    step = 3

    def state_dict(self):
        return {"step": self.step, "ntokens_seen": 0}

    def load_state_dict(self, state):
        self.step = state["step"]


def manager_of(config, home, folder):
    model = config.build()
    wanted = default_adamw(lr=0.5)
    wanted.implementation = "for-loop"
    optimizers = wanted.build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=20)
    state = State()
    manager = CheckpointManager(
        CheckpointManager.Config(
            enable=True, folder=folder, interval=1,
            exclude_from_loading=["dataloader"]),
        dataloader=None, model_parts=[model], optimizers=optimizers,
        lr_schedulers=schedulers, states={"train_state": state},
        sd_adapter=None, base_folder=str(home))
    return model, optimizers, manager


def moments_of(model, optimizers, key):
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: values[key]
            for one in optimizers for p, values in one.state.items()}


def fill(name, model, optimizers):
    """Parameters and moments of its own for each; optimizer.state exists after
    state_dict()."""
    torch.manual_seed(sum(map(ord, name)))
    optimizers.state_dict()
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn_like(one))
        for label, one in model.named_buffers():
            if label.endswith("expert_bias_E"):
                # Only deepseek_v3 of transformers has it.
                one.copy_(torch.randn_like(one)
                          if "v3" in name or "biased" in name
                          else torch.zeros_like(one))
        for one in optimizers:
            for values in one.state.values():
                values["step"].fill_(3.0)
                for key in ("exp_avg", "exp_avg_sq"):
                    values[key].copy_(torch.rand_like(values[key]))


def by_adapter(adapter, tensors):
    """transformers' names. gpt_oss' adapter knows older names of its experts,
    and leaves out what it does not know: they are put in by the layout that
    transformers' class has, [experts, in, out]."""
    found = adapter.to_hf(dict(tensors))
    if type(adapter).__name__.startswith("GptOss"):
        for name, one in tensors.items():
            layer = name.split(".")[1]
            for titan, hf in (("mlp1_weight_EGD", "gate_up_proj"),
                              ("mlp1_bias_EG", "gate_up_proj_bias"),
                              ("mlp2_weight_EDF", "down_proj"),
                              ("mlp2_bias_ED", "down_proj_bias")):
                if name.endswith("." + titan):
                    found[f"model.layers.{layer}.mlp.experts.{hf}"] = (
                        one.transpose(1, 2) if one.dim() == 3 else one)
    return found


def as_saved(module, config, model, optimizers):
    """Model and moments under transformers' names."""
    code = importlib.import_module(
        f"torchtitan.models.{module}.state_dict_adapter")
    adapter = next(one for label, one in vars(code).items()
                   if label.endswith("StateDictAdapter")
                   and one.__module__ == code.__name__)(config, None)
    found = by_adapter(adapter, model.state_dict())
    for key in ("exp_avg", "exp_avg_sq"):
        moments = moments_of(model, optimizers, key)
        for label, one in model.named_modules():
            if isinstance(one, FusedQKVLinear):
                one._split_qkv_on_save(one, moments, label + ".", {})
        found.update({f"{name}.{key}": one for name, one in by_adapter(
            adapter, moments).items()})
    steps = moments_of(model, optimizers, "step")
    found["steps"] = torch.stack([one.float() for one in steps.values()])
    found.update({name: one for name, one in model.state_dict().items()
                  if name.endswith("expert_bias_E")})
    return {n: t.detach().clone().contiguous() for n, t in found.items()}


def save(name):
    module, make, said = CASES[name]
    config = make()
    home = DIR / name
    home.mkdir()
    model, optimizers, manager = manager_of(config, home, "checkpoint")
    fill(name, model, optimizers)
    assert manager.save(3), "nothing was saved"
    manager.close()
    # As last_save_model_only leaves it: no optimizer, no trainer's state.
    dcp.save(model.state_dict(), checkpoint_id=str(home / "only"))
    save_file(as_saved(module, config, model, optimizers),
              home / "expected.safetensors")
    (home / "config").mkdir()
    (home / "config/config.json").write_text(json.dumps({**SAID, **said}))


def load(name):
    home = DIR / name
    config = LOADS.get(name, CASES[name][1])()
    model, optimizers, manager = manager_of(config, home, "back")
    fill(name + " before", model, optimizers)
    assert manager.load(), "nothing was loaded"
    manager.close()
    save_file(as_saved(CASES[name][0], config, model, optimizers),
              home / "back.safetensors")


def others():
    """What torchtitan registers and no case is of. These packages ask for what
    reads images, so that names come from the text of their adapters."""
    known = {module for module, _, _ in CASES.values()}
    for name in sorted(models._supported_models - known):
        home = Path(models.__file__).parent
        text = next((home / name).rglob("state_dict_adapter.py")).read_text()
        if "(DeepSeekV3StateDictAdapter)" in text:  # what it is made of
            text += (home / "deepseek_v3/state_dict_adapter.py").read_text()
        names = {one.replace("{}", "0") for one in re.findall(
            r'"[\w.{}]+": "([\w.{}]+)"', text)}
        state = {one: torch.zeros(2) for one in names}
        dcp.save({**state, "train_state": {"step": 3}},
                 checkpoint_id=str(DIR / "others" / name / "checkpoint/step-3"))


def grouped(A, B_t, offs):
    """torch._grouped_mm on a CPU, in the dtype that it is given."""
    out = A.new_zeros(A.shape[0], B_t.shape[-1])
    begin = 0
    for expert, end in enumerate(offs.tolist()):
        out[begin:end] = A[begin:end] @ B_t[expert]
        begin = end
    return out


def differ(name, ours, theirs):
    far = (ours - theirs).abs().max() / theirs.abs().max()
    assert far < 1e-5, f"{name}: {far} from transformers"


def compare(name):
    """Logits; of gpt_oss, whose attention needs a GPU, what the experts give."""
    from transformers import AutoModelForCausalLM

    theirs, info = AutoModelForCausalLM.from_pretrained(
        DIR / name / "hf", output_loading_info=True, dtype=torch.float32,
        attn_implementation="eager")
    # Layers that predict further tokens are in files alone.
    left = {one for one in info["unexpected_keys"]
            if not one.startswith("model.layers.2.")}
    assert not left and not info["missing_keys"], f"{name}: {info}"
    ours = CASES[name][1]().build()
    state = ours.state_dict()
    dcp.load(state, checkpoint_id=str(DIR / name / "only"))
    ours.load_state_dict(state)
    for one in (*ours.modules(), *theirs.modules()):
        for key in ("eps", "variance_epsilon"):
            if hasattr(one, key):
                setattr(one, key, 1e-6)
        if type(one).__name__.endswith("RoPE"):
            one.init_states(buffer_device=torch.device("cpu"))
    ours.eval()
    theirs.eval()
    torch.manual_seed(7)
    with torch.no_grad():
        if name == "gpt_oss":
            x = torch.randn(1, 9, WIDTH)
            for mine, other in zip(ours.layers.values(), theirs.model.layers):
                differ(name, mine.moe(x), other.mlp(x)[0].reshape(x.shape))
            return
        tokens = torch.randint(0, VOCABULARY, (1, 9))
        found = ours(tokens)
        found = found[0] if isinstance(found, (tuple, list)) else found
        differ(name, found, theirs(tokens).logits)


def compare_all():
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.moe import GroupedExperts

    for module in (llama3, qwen3, deepseek):
        module.get_attention_config = (
            lambda backend: ScaledDotProductAttention.Config())
    # Both in f32: torchtitan's experts round to bf16.
    GroupedExperts._grouped_mm = lambda self, A, B_t, offs: grouped(
        A, B_t, offs)
    torch.Tensor.bfloat16 = lambda self: self
    for name in CASES:
        if name != "qwen3_moe_biased":
            compare(name)


def main():
    dist.init_process_group("gloo", rank=0, world_size=1)
    for case in CASES:
        save(case)
    others()
    print("saved", flush=True)
    sys.stdin.readline()
    for case in CASES:
        if (DIR / case / "back/step-3").is_dir():
            load(case)
    compare_all()
    dist.destroy_process_group()


program(main)
