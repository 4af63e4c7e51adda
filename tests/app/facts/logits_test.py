#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model that ckpt wrote, run by the code it was written for: the logits are
those of transformers on the source, within 1e-5 of the largest.

Megatron: GPTModel of megatron-core, with its local modules, built from the
written args under Megatron's own names. Once from all of them, once from what
--use-checkpoint-args reads and the flags in `load_with`.
OLMo-core: its own transformer, built from the written config.json.
Meta: the architecture of its published inference code, rewritten here, and that
code itself (llama-models over fairscale) with one process per file.

Each peer also gets a model with two heads swapped: its logits must differ, or
the comparison would prove nothing.
"""

import contextlib
import importlib.util
import sys
from pathlib import Path

from peer import Peer
from support import DATA, Failure, Skip, Suite, check, check_equal

CKPT = None
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
EXTENSIONS = Path(sys.prefix) / "dataclass_extensions"
NEWER = Path(sys.prefix) / "megatron_core_0.19.2"
LLAMA_MODELS = Path(sys.prefix) / "llama_models"
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 16}
HALF = {"rope_type": "default", "rope_theta": 500.0,
        "partial_rotary_factor": 0.5}

# What GPTModel can be: the family, and changes to its tiny model.
MEGATRON = {
    "llama": ("llama", {}),
    "llama, all heads alike": ("llama", dict(num_key_value_heads=4)),
    "llama, tied": ("llama", dict(tie_word_embeddings=True)),
    "llama, biases": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "llama, wide heads": ("llama", dict(head_dim=16)),
    "llama, epsilon": ("llama", dict(rms_norm_eps=0.1)),
    "llama, theta": ("llama", dict(rope_parameters={
        "rope_type": "default", "rope_theta": 500.0})),
    "llama, llama3": ("llama", dict(rope_parameters=LLAMA3)),
    "llama, linear": ("llama", dict(rope_parameters=LINEAR)),
    "llama, yarn": ("llama", dict(rope_parameters=YARN)),
    "llama, yarn with betas": ("llama", dict(rope_parameters=dict(
        YARN, beta_fast=16.0, mscale=0.7, mscale_all_dim=0.5))),
    "qwen2": ("qwen2", dict(use_sliding_window=False)),
    "qwen2, windows": ("qwen2", dict(use_sliding_window=True)),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", dict(sliding_window=4)),
    "mixtral": ("mixtral", {}),
    "qwen2_moe": ("qwen2_moe", dict(norm_topk_prob=False)),
    "qwen2_moe, normalized": ("qwen2_moe", dict(norm_topk_prob=True)),
    "qwen2_moe, some dense": ("qwen2_moe", dict(decoder_sparse_step=2)),
    "qwen3_moe": ("qwen3_moe", dict(norm_topk_prob=True)),
    "qwen3_moe, not normalized": ("qwen3_moe", dict(norm_topk_prob=False)),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2, scaled": ("deepseek_v2", dict(routed_scaling_factor=3.0)),
    "deepseek_v2, no query rank": ("deepseek_v2", dict(q_lora_rank=None)),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3, no groups": ("deepseek_v3", dict(n_group=1, topk_group=1)),
    "deepseek_v3, yarn": ("deepseek_v3", dict(rope_parameters=dict(
        YARN, mscale=1.0, mscale_all_dim=1.0))),
    "gpt2": ("gpt2", {}),
    "gpt2, gelu": ("gpt2", dict(activation_function="gelu")),
    "gpt_neox": ("gpt_neox", dict(use_parallel_residual=False)),
    "gpt_neox, tanh": ("gpt_neox", dict(hidden_act="gelu_pytorch_tanh",
                                       use_parallel_residual=False)),
    "phi3": ("phi3", {}),
    "phi3, half rotary": ("phi3", dict(rope_parameters=HALF)),
    "phi3, window": ("phi3", dict(sliding_window=4)),
    "starcoder2": ("starcoder2", {}),
    "starcoder2, window": ("starcoder2", dict(sliding_window=4)),
    "olmo": ("olmo", {}),
    "nemotron_nas": ("nemotron_nas", {}),
}
# From families2026_models.py. The norms inside latent attention have their own
# epsilon in transformers (1e-6), but the model's in GPTModel.
MEGATRON_2026 = {name: (name, {}) for name in (
    "arcee", "cwm", "dots1", "ernie4_5", "exaone_moe", "glm", "glm4_moe",
    "gpt_bigcode", "gpt_oss", "helium", "hy_v3", "jais2", "ministral",
    "nemotron", "opt", "persimmon", "seed_oss", "smollm3", "solar_open",
    "stablelm", "youtu")}
MEGATRON_2026["glm4_moe_lite"] = ("glm4_moe_lite", dict(rms_norm_eps=1e-6))
# What has layers of other kinds: delta nets, and attention to what an indexer
# picks, for which megatron-core 0.16 has no model.
DELTA_TYPES = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5_text",
               "qwen3_5_moe": "qwen3_5_moe_text"}
DELTA = {name: (name, {}) for name in DELTA_TYPES}
SPARSE = {name: (name, {}) for name in ("deepseek_v32", "glm_moe_dsa")}
SPARSE["deepseek_v32, yarn"] = ("deepseek_v32", dict(rope_parameters=dict(
    YARN, mscale=1.0, mscale_all_dim=1.0)))
# As published; transformers 5.12 does not read the key.
SPARSE["glm_moe_dsa, pairs"] = ("glm_moe_dsa",
                                dict(indexer_rope_interleave=True))
GPT_MODELS = {**MEGATRON, **MEGATRON_2026, **DELTA, **SPARSE}
# What families write that neither --use-checkpoint-args nor a flag sets, and
# why that is no loss.
UNREAD = {
    "encoder_num_layers": "num_layers",
    "hetereogenous_dist_checkpoint": "how a checkpoint is written",
    "is_hybrid_model": "follows from the pattern",
    "layernorm_epsilon": "norm_epsilon", "moe_grouped_gemm": "a kernel",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "mrope_section": "of models with a tower, which Megatron-Bridge builds",
    "query_pre_attn_scalar": "softmax_scale", "vocab_size": "the tokenizer's",
}
UNREAD.update(dict.fromkeys((
    "attention_k_eq_v", "global_kv_channels", "num_global_query_groups",
    "num_kv_shared_layers", "per_layer_embed_dim", "per_layer_embed_vocab_size",
    "use_bidirectional_attention", "use_double_wide_mlp"),
    "of Gemma 4, which Megatron-Bridge builds"))
OLMO_CORE = {
    "llama": ("llama", {}),
    "llama, llama3": ("llama", dict(rope_parameters=LLAMA3)),
    "llama, linear": ("llama", dict(rope_parameters=LINEAR)),
    "llama, yarn": ("llama", dict(rope_parameters=YARN)),
    "llama, tied": ("llama", dict(tie_word_embeddings=True)),
    "qwen3": ("qwen3", dict(use_sliding_window=False)),
    "olmo2": ("olmo2", {}),
    "olmo2, theta": ("olmo2", dict(rope_parameters={
        "rope_type": "default", "rope_theta": 500.0})),
    "olmo3": ("olmo3", {}),
}
META = {
    "llama": ("llama", {}),
    "llama, llama3": ("llama", dict(rope_parameters=LLAMA3)),
    "llama, theta": ("llama", dict(rope_parameters={
        "rope_type": "default", "rope_theta": 500.0})),
    "llama, epsilon": ("llama", dict(rms_norm_eps=0.1)),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", dict(sliding_window=4)),
}

# What Meta's own code can be: its scaling has fixed numbers, and it splits
# heads over at most as many files as there are key/value heads.
LLAMA_MODEL = {
    "llama": ("llama", {}),
    "llama, all heads alike": ("llama", dict(num_key_value_heads=4)),
    "llama, llama3": ("llama", dict(rope_parameters=dict(LLAMA3, factor=8.0))),
    "llama, theta": ("llama", dict(rope_parameters={
        "rope_type": "default", "rope_theta": 500.0})),
    "llama, epsilon": ("llama", dict(rms_norm_eps=0.1)),
}


def tokens():
    return [[i * 7 % 64 for i in range(24)]]


def model(folder, family, changes, swap):
    """The tiny model's directory and logits; `swap` exchanges two heads'
    queries after the logits are computed."""
    import torch
    if family == "nemotron_nas":
        from nas_models import logits_of, model_of

        made = model_of(**changes)
    elif family in DELTA_TYPES:
        from hybrid_models import config_of, logits_of, model_of

        made = model_of(config_of(DELTA_TYPES[family], **changes))
    elif family in MEGATRON_2026 or family in SPARSE:
        from families2026_models import config_of, logits_of, model_of

        made = model_of(config_of(family, **changes))
    else:
        from facts_models import config_of, logits_of, model_of

        made = model_of(config_of(family, **changes))
    with indexer_in_pairs(changes.get("indexer_rope_interleave")):
        logits = logits_of(made)
    if swap:
        swap_heads(torch, made)
    made.save_pretrained(folder / "source")
    return logits


@contextlib.contextmanager
def indexer_in_pairs(wanted):
    """An indexer's rotary embedding of neighbouring numbers, as that of the
    attention that it picks for."""
    if not wanted:
        yield
        return
    from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as module

    halves = module.apply_rotary_pos_emb
    module.apply_rotary_pos_emb = module.apply_rotary_pos_emb_interleave
    yield
    module.apply_rotary_pos_emb = halves


# Name endings -> the rows of a head there.
QUERIES = {"q_proj.weight": 8, "q_b_proj.weight": 12, "qkv_proj.weight": 8,
           "query_key_value.weight": 24, "c_attn.weight": 8,
           "in_proj_qkvz.weight": 32, "in_proj_qkv.weight": 6,
           "indexer.wk.weight": 4}


def swap_heads(torch, made):
    """Swaps the first two heads of each layer in what makes queries, and
    nowhere else; where there is an indexer, only the halves of its keys: what
    it picks is enough."""
    done = 0
    state = made.state_dict()
    if any(".indexer." in name for name in state):
        state = {n: value for n, value in state.items() if ".indexer." in n}
    for name, value in state.items():
        rows = next((n for end, n in QUERIES.items() if name.endswith(end)), 0)
        if not rows:
            continue
        weight = value.T if name.endswith("c_attn.weight") else value
        with torch.no_grad():
            first = weight[:rows].clone()
            weight[:rows] = weight[rows:2 * rows]
            weight[rows:2 * rows] = first
        done += 1
    check(done, "no queries to swap")


def off(got, want):
    check(got.shape == want.shape, f"{got.shape}, not {want.shape}")
    return float((got - want).abs().max() / want.abs().max())


def hold(got, want, swap, limit=1e-5):
    rows = want.shape[-1]
    check(not got[..., rows:].any(), "rows that pad the vocabulary are not 0")
    distance = off(got[..., :rows], want)
    if swap:
        check(distance > 1e-3, f"two heads changed places, and it does not "
                               f"show: {distance:.2g}")
    else:
        check(distance <= limit, f"logits are off by {distance:.2g}")


def asked(peer, folder, **job):
    """The logits of a peer."""
    import torch

    out = folder / "logits.pt"
    wrong = peer.ask(dict(job, tokens=tokens(), out=str(out)))
    if wrong:
        raise Failure(wrong)
    return torch.load(out)


def args_are_read(folder):
    """Each name that a family writes for Megatron reaches GPTModel: through
    --use-checkpoint-args, a flag or code."""
    import json
    import re

    def written(value):
        if isinstance(value, dict):
            yield from (value.get("write") or {}).get("mcore", ())
            for one in value.values():
                yield from written(one)
        elif isinstance(value, list):
            for one in value:
                yield from written(one)

    families = DATA.parent.parent / "models/families"
    facts = json.loads((families / "facts.json").read_text())
    names = set(written(facts))
    for path in families.glob("*.json"):
        family = json.loads(path.read_text())
        mcore = (family.get("dialects") or {}).get("mcore") or {}
        names.update(mcore.get("config") or ())
    source = Path(__file__).with_name("logits_peer.py").read_text()
    read = set(re.search('READ = """(.*?)"""', source, re.S)[1].split())
    check(len(names) > 60 and len(read) > 30, "names are not found")
    left = {name for name in names - read - {*facts["load_with"]}
            - {*facts["load_in_code"]} if not name.startswith("ckpt_")}
    check_equal(left, set(UNREAD), "names that GPTModel is not told")


def families_are_told():
    """Each family with rules for Megatron is listed once in the table of what
    builds it, with GPTModel for exactly those that this test builds."""
    import json
    from collections import Counter

    families = DATA.parent.parent / "models/families"
    rows = json.loads((families / "facts.json").read_text())["megatron"]
    told = Counter(name for row in rows for name in row["families"])
    has = {}
    for path in families.glob("*.json"):
        family = json.loads(path.read_text())
        if "mcore" in (family.get("dialects") or {}):
            has[family["family"]] = family
    check_equal(sorted(told.elements()), sorted(has), "families of Megatron")
    tried = {family for family, _ in GPT_MODELS.values()}
    said = {name for row in rows for name in row["families"]
            if row["model"] == "GPTModel" and "untried" not in row}
    check_equal(said, tried, "families that GPTModel can be")
    check(all(row.get("lacks") for row in rows if row["model"] in (
        "Megatron-Bridge", "code of your own", "none")), "nothing is lacking")


def test_megatron(folder, family, changes, way, swap):
    if importlib.util.find_spec("megatron") is None:
        raise Skip("megatron-core is not installed")
    if family in SPARSE and not NEWER.is_dir():
        raise Skip("megatron-core 0.19 is not installed")
    want = model(folder, family, changes, swap)
    result = CKPT.ok("convert", folder / "source", folder / "there", "--to",
                     "megatron_torch_dist", "--json", "--no-fsync")
    said = result.json()
    check_equal(said["load_into"], {"program": "GPTModel", "lacks": {}}, "into")
    job = dict(flags=None, code={})
    if way == "flags":
        job = dict(flags=said["load_with"], code=said["load_in_code"])
    peer = GPT_NEWER if family in SPARSE else GPT
    # The delta rule magnifies: with each weight off by one rounding, logits in
    # transformers are off by 5e-5.
    hold(asked(peer, folder, path=str(folder / "there"), **job), want, swap,
         1e-4 if family in DELTA else 1e-5)


def test_megatron_ranks(folder, family, ranks):
    """Written for two ranks; read and run by `ranks`."""
    if not NEWER.is_dir() or importlib.util.find_spec("megatron") is None:
        raise Skip("megatron-core is not installed")
    want = model(folder, family, {}, False)
    CKPT.ok("convert", folder / "source", folder / "there", "-q", "--to",
            "megatron_torch_dist", "--tp", 2, "--no-fsync")
    peer = GPT_NEWER if family in SPARSE else GPT
    hold(asked(peer, folder, path=str(folder / "there"), flags=None, code={},
               ranks=ranks), want, False, 1e-4 if family in DELTA else 1e-5)


def test_olmo_core(folder, family, changes, swap):
    if not EXTENSIONS.is_dir():
        raise Skip("dataclass-extensions is not installed")
    want = model(folder, family, changes, swap)
    CKPT.ok("convert", folder / "source", folder / "there", "-q", "--to",
            "olmo_core", "--no-fsync")
    hold(asked(OLMO, folder, kind="logits", path=str(folder / "there")),
         want, swap)


def test_meta(folder, family, changes, swap):
    import torch
    from meta_model import logits_of_meta

    want = model(folder, family, changes, swap)
    CKPT.ok("convert", folder / "source", folder / "there", "-q", "--to",
            "meta", "--no-fsync")
    hold(logits_of_meta(folder / "there", torch.tensor(tokens())), want, swap)


def test_llama_models(folder, family, changes, ranks, swap):
    if not LLAMA_MODELS.is_dir():
        raise Skip("llama-models and fairscale are not installed")
    want = model(folder, family, changes, swap)
    CKPT.ok("convert", folder / "source", folder / "there", "-q", "--to",
            "meta", "--tp", ranks, "--no-fsync")
    hold(asked(LLAMA, folder, path=str(folder / "there"), ranks=ranks), want,
         swap)


def prepare(suite, ckpt):
    global CKPT, GPT, GPT_NEWER, OLMO, LLAMA
    CKPT = ckpt
    GPT, OLMO = Peer("logits_peer.py"), Peer("olmo_core_peer.py")
    GPT_NEWER = Peer("logits_peer.py", PYTHONPATH=str(NEWER))
    LLAMA = Peer("llama_models_peer.py")
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    suite.always = ("megatron args are read", "megatron families are told",
                    "megatron qwen3_next, 2 ranks", "megatron glm_moe_dsa")
    suite.add("megatron args are read", args_are_read)
    suite.add("megatron families are told", lambda folder: families_are_told())
    for name, (family, changes) in GPT_MODELS.items():
        suite.add(f"megatron {name}", test_megatron, family, changes, "args",
                  False)
        suite.add(f"megatron by flags {name}", test_megatron, family, changes,
                  "flags", False)
        if name == family:
            suite.add(f"megatron {name}, heads swapped", test_megatron, family,
                      changes, "args", True)
    for family in DELTA:
        suite.add(f"megatron {family}, 2 ranks", test_megatron_ranks, family, 2)
    for family in ("deepseek_v32", "glm_moe_dsa"):
        suite.add(f"megatron {family}, from 2 ranks", test_megatron_ranks,
                  family, 1)
    for peer, test, table in (("olmo_core", test_olmo_core, OLMO_CORE),
                              ("meta", test_meta, META)):
        for name, (family, changes) in table.items():
            suite.add(f"{peer} {name}", test, family, changes, False)
            if name == family:
                suite.add(f"{peer} {name}, heads swapped", test, family,
                          changes, True)
    for name, (family, changes) in LLAMA_MODEL.items():
        suite.add(f"meta's own code, {name}, 2 files", test_llama_models,
                  family, changes, 2, False)
    for ranks, swap in ((1, False), (2, True)):
        suite.add(f"meta's own code, llama, {ranks} files, swapped: {swap}",
                  test_llama_models, "llama", {}, ranks, swap)
    suite.add("meta's own code, all heads alike, 4 files", test_llama_models,
              *LLAMA_MODEL["llama, all heads alike"], 4, False)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
