# SPDX-License-Identifier: Apache-2.0
"""The ledger of facts against transformers itself.

Mutation: in a tiny model with every parameter random, a field of the config is
set to another valid value. If that changes the logits, HF -> dialect -> HF
gives the same logits, with config.json kept beside or removed, or exits with 5
and names what the dialect can't say. A silent change is a failure.

    facts_test.py --ckpt CKPT         the part that runs in CI
    facts_test.py --ckpt CKPT --full  every family, field and dialect: prints
                                      the tables of docs/facts.md
      --one-in N --seed S             a random one of N changes
"""

import argparse
import inspect
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
try:
    import facts_encoder_models
    import facts_hybrid_models
    import facts_models
    import facts_vision_models
    import torch
    from facts_models import FAMILIES, config_of, model_of
    from transformers import AutoConfig
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

torch.set_num_threads(1)
DIALECTS = {"mcore": "megatron_torch_dist", "meta": "meta",
            "fairseq2": "fairseq2", "olmo_core": "olmo_core", "vllm": "vllm"}
SEEING = list(facts_vision_models.FAMILIES)
HYBRID = list(facts_hybrid_models.FAMILIES)
ENCODERS = list(facts_encoder_models.FAMILIES)
HAS = {"meta": ["llama", "mistral"],
       "olmo_core": ["llama", "qwen3", "olmo2", "olmo3"],
       "fairseq2": ["llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3"],
       "mcore": [*FAMILIES, *SEEING, *HYBRID, *ENCODERS],
       "vllm": list(FAMILIES)}
# What CI tests: one field of each kind, in the families that differ in it.
CHOSEN = {
    "llama": ["rope_parameters", "hidden_act", "rms_norm_eps"],
    "qwen2": ["use_sliding_window"],
    "mistral": ["sliding_window"],
    "deepseek_v3": ["n_group", "routed_scaling_factor", "norm_topk_prob"],
    "gemma2": ["query_pre_attn_scalar", "layer_types"],
    "gpt_neox": ["use_parallel_residual"],
    "olmo": ["clip_qkv"],
    "olmo3": ["sliding_window"],
    "qwen3_vl": ["text_config.rope_parameters", "vision_config.hidden_act",
                 "vision_config.deepstack_visual_indexes"],
    "t5": ["feed_forward_proj", "relative_attention_max_distance"],
    "llava, llama": ["vision_feature_layer", "projector_hidden_act"],
}


def run(ckpt, *arguments):
    done = subprocess.run([ckpt, *arguments], capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def distance(a, b):
    if a.shape != b.shape or not torch.isfinite(a).all():
        return float("inf")
    return float((a - b).abs().max() / b.abs().max())


def models_of(family):
    """The module that makes tiny models of the family."""
    if family in HYBRID:
        return facts_hybrid_models
    if family in ENCODERS:
        return facts_encoder_models
    return facts_vision_models if family in SEEING else facts_models


def take_config(directory):
    for root, _, files in os.walk(directory):
        for name in files:
            if name in ("config.json", "generation_config.json"):
                os.remove(os.path.join(root, name))


def ways(ckpt, source, dialect, family, home, want):
    """{kept: 'equal', 'refused: …' or 'SILENT …'}."""
    there, back = os.path.join(home, "there"), os.path.join(home, "back")
    shutil.rmtree(there, ignore_errors=True)
    # What the type always has is allowed: the rest must be reported.
    unsaid = models_of(family).UNSAID.get(family, ())
    allowed = [word for fact in unsaid if dialect == "mcore"
               for word in ("--allow-unsaid", fact)]
    # Names that can't become transformers' stay, with a warning, unless they
    # are asked for.
    named = (["--dialect", "hf"] if family in SEEING + HYBRID + ENCODERS
             else ["--family", family])
    status, error = run(ckpt, "convert", source, there, "--to",
                        DIALECTS[dialect], "--no-fsync", *allowed)
    if status:
        return dict.fromkeys((True, False), refusal(status, error))
    results = {}
    # OLMo-core's own file is a config.json too, the only one there; vLLM's
    # shards say nothing themselves.
    alone = dialect not in ("olmo_core", "vllm")
    for kept in (True, False)[:1 + alone]:
        if not kept:
            take_config(there)
        shutil.rmtree(back, ignore_errors=True)
        status, error = run(ckpt, "convert", there, back, "--to",
                            "safetensors", "--no-fsync", *named)
        results[kept] = refusal(status, error) if status else likeness(
            models_of(family), back, want)
        # What was accepted on the way there must come back.
        if kept and results[kept].startswith("refused"):
            results[kept] = "FAILED: no way home: " + results[kept]
    return results


def refusal(status, error):
    line = next((l for l in error.splitlines() if "error:" in l), "")
    if status != 5:
        return f"FAILED {status}: {line}"
    return "refused: " + line.split("error: ", 1)[1]


def likeness(models, back, want):
    try:
        off = distance(models.logits_at(back), want)
    except Exception as problem:  # it does not open
        return f"SILENT: does not open: {problem}"
    return "equal" if off < 1e-5 else f"SILENT: {off:.2g}"


def check(ckpt, family, fields, home, dialects, among=lambda: True):
    """(field, value, dialect, kept, result) of each mutation that matters."""
    models = models_of(family)
    plain = models.config_of(family)
    base = models.logits_of(models.model_of(plain))
    rows = []
    source = os.path.join(home, "source")
    for field in fields:
        values = models.values_for(plain, field)
        for value in values:
            if not among():
                continue
            try:
                model = models.model_of(
                    models.config_of(family, **{field: value}))
                logits = models.logits_of(model)
                shutil.rmtree(source, ignore_errors=True)
                model.save_pretrained(source)
                want = models.logits_at(source)
            except Exception:  # the class has no such model
                continue
            if not torch.isfinite(logits).all():
                continue
            # What the class doesn't read must not be read here: one dialect
            # each is enough.
            unread = distance(logits, base) < 1e-6
            for dialect in dialects[:1] if unread else dialects:
                if family not in HAS[dialect]:
                    continue
                for kept, result in ways(ckpt, source, dialect, family, home,
                                         want).items():
                    rows.append((field, value, dialect, kept, result))
    return rows


def show(family, rows):
    for field, value, dialect, kept, result in rows:
        text = str(value)
        text = text if len(text) < 60 else text[:57] + "..."
        print(f"{family:12} {field:24} {text:60} {dialect:9} "
              f"{'kept' if kept else 'alone':5} {result[:160]}", flush=True)


def table_row(family, fields, rows):
    """As in docs/facts.md: equal / refused / another model, by dialect."""
    cells = []
    for dialect in DIALECTS:
        results = [r[4] for r in rows if r[2] == dialect]
        bad = sum(r.startswith(("SILENT", "FAILED")) for r in results)
        equal = results.count("equal")
        cells.append(f"{equal} / {len(results) - equal - bad} / {bad}"
                     if results else "-")
    return f"| {family} | {len(fields)} | " + " | ".join(cells) + " |"


def check_defaults():
    """hf_defaults.json is what the installed classes have."""
    sys.path.insert(0, os.path.join(HERE, "..", "..", "generators"))
    import hf_defaults

    path = os.path.join(HERE, "..", "..", "..", "models", "families",
                        "hf_defaults.json")
    with open(path) as file:
        assert json.load(file) == hf_defaults.defaults(), \
            "hf_defaults.json is not what tests/generators/hf_defaults.py says"


def check_retyped():
    """models/family.cc has each model type that AutoConfig takes for another by
    a key."""
    looks = re.findall(
        r'config_dict\["model_type"\] == "(\w+)" and "(\w+)" in config_dict:'
        r'.*?config_dict\["model_type"\] = "(\w+)"',
        inspect.getsource(AutoConfig.from_pretrained), re.DOTALL)
    with open(os.path.join(HERE, "..", "..", "..", "models", "family.cc")) as file:
        table = re.search(r"kRetyped\[\] = {(.*?)};", file.read(), re.DOTALL)
    ours = re.findall(r'{"(\w+)", "(\w+)", "(\w+)"}', table[1])
    assert looks and ours == looks, (ours, looks)


SCALED = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0}
# Keys of config.json that say one thing in two places, or where the class does
# not look; absent: those that are taken out first.
ROPE_KEYS = [
    ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 500.0}}}),
    ("gpt_oss", {"original_max_position_embeddings": 16}),
    ("olmo", {"rope_parameters": {"rope_type": "linear", "factor": 4.0,
                                  "partial_rotary_factor": 0.5},
              "partial_rotary_factor": 1.0}),
    ("glm", {"partial_rotary_factor": None, "rope_parameters": None}),
    ("glm4_moe", {"partial_rotary_factor": None, "rope_parameters": None,
                  "rope_scaling": dict(
                      SCALED, original_max_position_embeddings=16)}),
    ("deepseek_v3", {"rope_parameters": dict(
        SCALED, original_max_position_embeddings=16,
        partial_rotary_factor=0.5)}),
]


def check_rope_keys(ckpt, home):
    """Which of two places counts is transformers' to say."""
    source = os.path.join(home, "rope")
    for family, keys in ROPE_KEYS:
        shutil.rmtree(source, ignore_errors=True)
        model_of(config_of(family)).save_pretrained(source)
        path = os.path.join(source, "config.json")
        with open(path) as file:
            config = json.load(file)
        config.update(keys)
        with open(path, "w") as file:
            json.dump(config, file)
        want = facts_models.logits_at(source)
        for kept, result in ways(ckpt, source, "mcore", family, home,
                                 want).items():
            assert result == "equal" or result.startswith("refused"), \
                (family, keys, kept, result)


def check_strict(ckpt, home):
    """An unknown key is named, and refused by --strict-config."""
    source, there = os.path.join(home, "strict"), os.path.join(home, "there")
    model_of(config_of("llama")).save_pretrained(source)
    path = os.path.join(source, "config.json")
    with open(path) as file:
        config = json.load(file)
    config["frobnicate"] = 2
    with open(path, "w") as file:
        json.dump(config, file)
    command = ["convert", source, there, "--to", "megatron_torch_dist"]
    status, error = run(ckpt, *command, "--strict-config")
    assert status == 5 and "frobnicate" in error, error
    status, error = run(ckpt, *command)
    assert status == 0 and "frobnicate" in error, error
    shutil.rmtree(there)


def check_unknown_elsewhere(ckpt, home):
    """The same for Megatron's args and OLMo-core's file."""
    source, there = os.path.join(home, "known"), os.path.join(home, "olmo")
    model_of(config_of("llama")).save_pretrained(source)
    status, error = run(ckpt, "convert", source, there, "--to", "olmo_core")
    assert status == 0, error
    path, back = os.path.join(there, "config.json"), os.path.join(home, "back")
    with open(path) as file:
        config = json.load(file)
    config["model"]["block"]["frobnicate"] = 2
    with open(path, "w") as file:
        json.dump(config, file)
    command = ["convert", there, back, "--to", "safetensors"]
    status, error = run(ckpt, *command, "--strict-config")
    assert status == 5 and "block.frobnicate" in error, error
    status, error = run(ckpt, *command)
    assert status == 0 and "block.frobnicate" in error, error
    shutil.rmtree(there)
    shutil.rmtree(back)
    status, error = run(ckpt, "convert", source, there, "--to",
                        "megatron_torch_dist")
    common = os.path.join(there, "release", "common.pt")
    state = torch.load(common, weights_only=False)
    state["args"].frobnicate, state["args"].seed = 2, 3
    torch.save(state, common)
    status, error = run(ckpt, *command[:1], there, *command[2:])
    assert status == 0 and "not known" in error, error
    assert "computes: frobnicate" in error, error
    shutil.rmtree(there)
    shutil.rmtree(back)


def check_damaged(ckpt, home):
    """A value that makes no sense is refused, with its key."""
    source, there = os.path.join(home, "bad"), os.path.join(home, "there")
    model_of(config_of("gemma2")).save_pretrained(source)
    path = os.path.join(source, "config.json")
    with open(path) as file:
        config = json.load(file)
    config["layer_types"] = ["full_attention"]
    with open(path, "w") as file:
        json.dump(config, file)
    status, error = run(ckpt, "convert", source, there, "--to",
                        "megatron_torch_dist")
    assert status == 5 and "layer_types" in error and "window" in error, error


def check_epsilon_of_fairseq2(ckpt, home):
    """An epsilon that fairseq2's code doesn't have is refused; a smaller one is
    reported, and refused by --strict-config."""
    source, there = os.path.join(home, "eps"), os.path.join(home, "there")
    model_of(config_of("llama", rms_norm_eps=1e-6)).save_pretrained(source)
    command = ["convert", source, there, "--to", "fairseq2"]
    status, error = run(ckpt, *command, "--strict-config")
    assert status == 5 and "norm_epsilon" in error, error
    status, error = run(ckpt, *command)
    assert status == 0, error
    assert "norm_epsilon is 1e-06" in error and "1e-05" in error, error
    shutil.rmtree(there)
    config_of("llama", rms_norm_eps=1e-3).save_pretrained(source)
    status, error = run(ckpt, *command)
    assert status == 5 and "norm_epsilon" in error and "eps=" in error, error
    status, error = run(ckpt, *command, "--set", "eps=0.00001")
    assert status == 0, error
    shutil.rmtree(there)


def check_disagreement(ckpt, home):
    """Args and the config.json beside them describe one model, or are
    refused."""
    source, there = os.path.join(home, "one"), os.path.join(home, "args")
    model_of(config_of("llama")).save_pretrained(source)
    status, error = run(ckpt, "convert", source, there, "--to",
                        "megatron_torch_dist")
    assert status == 0, error
    other = os.path.join(home, "other")
    config_of("llama", rms_norm_eps=0.25).save_pretrained(other)
    status, error = run(ckpt, "convert", there, os.path.join(home, "back"),
                        "--to", "safetensors", "--config-from", other)
    assert status == 5 and "0.25" in error and "norm_epsilon" in error, error
    shutil.rmtree(there)


def check_verify(ckpt, home):
    """Equal tensors with another epsilon aren't one model."""
    a, b = os.path.join(home, "a"), os.path.join(home, "b")
    model = model_of(config_of("llama"))
    model.save_pretrained(a)
    model.config.rms_norm_eps = 0.25
    model.save_pretrained(b)
    done = subprocess.run([ckpt, "verify", a, b, "--json"],
                          capture_output=True, text=True)
    problems = json.loads(done.stdout)["problems"]
    assert done.returncode == 1, done.stdout
    assert [(p["kind"], p["name"], p["a"], p["b"]) for p in problems] == \
        [("fact", "norm_epsilon", 1e-5, 0.25)], problems


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("names", nargs="*",
                        help="families, and dialects: all if there are none")
    parser.add_argument("--one-in", type=int, default=1, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    dice = random.Random(given.seed)
    everything = [*FAMILIES, *SEEING, *HYBRID, *ENCODERS]
    families = [n for n in given.names if n in everything]
    dialects = [n for n in given.names if n in DIALECTS] or list(DIALECTS)
    bad, table = 0, []
    with tempfile.TemporaryDirectory() as home:
        if not given.names:
            check_defaults()
            check_retyped()
            check_strict(given.ckpt, home)
            check_unknown_elsewhere(given.ckpt, home)
            check_damaged(given.ckpt, home)
            check_epsilon_of_fairseq2(given.ckpt, home)
            check_disagreement(given.ckpt, home)
            check_verify(given.ckpt, home)
            check_rope_keys(given.ckpt, home)
        for family in families or (everything if given.full else CHOSEN):
            fields = models_of(family).fields_of(
                family) if given.full else CHOSEN[family]
            rows = check(given.ckpt, family, fields, home, dialects,
                         lambda: dice.randrange(given.one_in) == 0)
            show(family, rows)
            assert rows or given.one_in > 1, family
            bad += sum(r[4].startswith(("SILENT", "FAILED")) for r in rows)
            table.append(table_row(family, fields, rows))
    print("| family | fields | " + " | ".join(DIALECTS) + " |")
    print("\n".join(table))
    print("silent changes:", bad)
    assert bad == 0


if __name__ == "__main__":
    main()
