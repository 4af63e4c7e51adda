#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each reason that a family refuses with is given by a model that has it.

The reasons are those of the family files: "requires" of a dialect, and the
model types of not_megatrons.json. For each condition the keys of config.json
that it reads are given other values until the reason is what ckpt says; one
that no value brings out fails here, and so does one that writes something.
"""

import itertools
import json
import re

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
FAMILIES = DATA.parent.parent / "models/families"
TARGETS = {"mcore": ["megatron_torch_dist"], "meta": ["meta"],
           "fairseq2": ["fairseq2"], "gguf": ["gguf"],
           "olmo_legacy": ["torch", "--dialect", "olmo_legacy"]}
# Read, and not written: its rules are tried by its own suite.
READ_ONLY = {"neox"}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "n_embd": 32,
         "n_layer": 2, "n_head": 4, "n_positions": 64, "ffn_dim": 48,
         "layer_norm_epsilon": 1e-5, "mamba_num_heads": 8, "mamba_head_dim": 8,
         "n_groups": 4, "ssm_state_size": 6, "hybrid_override_pattern": "M-",
         "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 4,
         "mamba_d_state": 6, "moe_num_experts": 4, "moe_k": 2,
         "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2,
         "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
VALUES = (True, False, None, 16, [0], "all", ["all"])


def write(path, config):
    path.mkdir(exist_ok=True)
    text = json.dumps({"model.norm.weight": {
        "dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}).encode()
    text += b" " * (-len(text) % 8)
    (path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(128))
    (path / "config.json").write_text(json.dumps(config))


def flat(text):
    return " ".join(text.split())


def asked(folder, config, target, reason):
    """Whether this model is refused for that reason."""
    write(folder / "source", config)
    run = CKPT.run("convert", folder / "source", folder / "out", "--no-fsync",
                   "--to", *target)
    if run.code != 5 or flat(reason) not in flat(run.err):
        return False
    check(not (folder / "out").exists(), "something was written")
    return True


def names_of(family, dialect, condition, seen=()):
    """The keys of config.json that a condition reads."""
    keys = set()
    for word in re.findall(r"\$?[a-z_A-Z]\w*", re.sub(r"'[^']*'", "", condition)):
        if word in seen or word in ("true", "false", "null", "has", "is_list"):
            continue
        if not word.startswith("$"):
            keys.add(word)
            continue
        text = variable(family, dialect, word)
        keys |= names_of(family, dialect, text, (*seen, word))
    return keys


def variable(family, dialect, word):
    while family:
        own = family.get("dialects", {}).get(dialect, {}).get("vars", {})
        for table in (own, family.get("vars", {})):
            value = table.get(word)
            if value is not None:
                return value if isinstance(value, str) else value.get("hf", "")
        base = family.get("extends")
        family = base and json.loads((FAMILIES / f"{base}.json").read_text())
    return ""


def required(folder, name, dialect, condition, reason):
    family = json.loads((FAMILIES / f"{name}.json").read_text())
    base = {**SIZES, "model_type": family["hf"]["model_type"][0],
            "architectures": family["hf"]["architectures"]}
    keys = sorted(names_of(family, dialect, condition))
    check(keys, f"{condition} reads nothing")
    tried = itertools.chain(
        ({key: value} for key in keys for value in VALUES),
        (dict(zip(pair, values)) for pair in itertools.combinations(keys, 2)
         for values in itertools.product((True, False), repeat=2)))
    for change in tried:
        config = {k: v for k, v in {**base, **change}.items() if v is not None}
        if asked(folder, config, TARGETS[dialect], reason):
            return
    check(False, f"no value of {', '.join(keys)} is refused for: {reason}")


def unbuilt(folder, model_type, reason):
    """Under its own names it goes to another container and back."""
    check(asked(folder, {**SIZES, "model_type": model_type},
                TARGETS["mcore"], reason), f"{model_type}: {reason}")
    source, there = folder / "source", folder / "there"
    CKPT.ok("convert", source, there, "-q", "--to", "dcp", "--no-fsync")
    CKPT.ok("verify", source, there, "-q")
    CKPT.ok("convert", there, folder / "home", "-q", "--to", "safetensors",
            "--no-fsync")
    check_equal((folder / "home/config.json").read_text(),
                (source / "config.json").read_text(), "config.json")
    check_equal((folder / "home/model.safetensors").read_bytes()[-32:],
                (source / "model.safetensors").read_bytes()[-32:], "bytes")


def by_args(reason):
    """About Megatron's args, not config.json: Falcon's three layers."""
    return "Megatron's args don't say" in reason


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for path in sorted(FAMILIES.glob("*.json")):
        for dialect, section in (json.loads(path.read_text()).get("dialects")
                                 or {}).items():
            for condition, reason in (section or {}).get("requires", []):
                if not by_args(reason) and dialect not in READ_ONLY:
                    suite.add(f"{path.stem} {dialect} {condition}", required,
                              path.stem, dialect, condition, reason)
    table = json.loads((FAMILIES / "not_megatrons.json").read_text())
    for model_type, reason in table.items():
        suite.add(model_type, unbuilt, model_type, reason)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
