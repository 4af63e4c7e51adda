#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Facts through several formats in a row, and with other options in the same
command: --layers, --vocab-size, --adapter.

Chains: a tiny transformers model with rare sizes and values (heads that no two
ranks share, prime vocabularies, other rotary embeddings, windows, epsilons)
goes through two or three formats, one of them Megatron's, and back. config.json
is kept beside, or removed wherever a dialect has its own configuration.
`verify` says same after each step, and the logits are those of transformers on
the same model, cut or merged by transformers and PEFT where the command does
so; or a step ends with 5. Formats and options are drawn by seed.

    facts_chains_test.py --ckpt CKPT         the part that runs in CI
    facts_chains_test.py --ckpt CKPT --full  twenty chains of each family
"""

import json
import random
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal

CKPT = None
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
HF = ("--to", "safetensors")
MEGATRON = ("megatron_torch_dist", "megatron_zarr", "megatron_legacy")
OTHERS = ("fairseq2", "olmo_core", "olmo_core_v1", "meta", "vllm", "modelopt",
          "dcp", "torch", "megatron_torch_dist", "megatron_legacy",
          "safetensors")
# Those with rules for experts, or without rules.
OF_MIXTURES = ("vllm", "modelopt", "dcp", "torch", "megatron_torch_dist",
               "megatron_legacy", "safetensors")
# These have no configuration of their own, or theirs is named config.json, too.
ITS_OWN = ("olmo_core", "olmo_core_v1", "vllm", "dcp", "torch", "modelopt",
           "safetensors")
ANY_NAMES = ("dcp", "torch", "vllm", "modelopt")
# What CI tests.
CHOSEN = ("llama", "qwen2", "mistral", "gemma2", "olmo3", "deepseek_v3",
          "gpt_bigcode", "glm4_moe")
EXPERTS = ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "glm4_moe",
           "llama4_text")
LORA = ("llama", "qwen2", "qwen3", "mistral", "gemma", "olmo", "starcoder2")
SIZES = ("hidden_size", "num_attention_heads", "vocab_size",
         "intermediate_size", "num_hidden_layers", "max_position_embeddings",
         "n_positions", "n_embd", "n_head", "n_layer", "vocab_size")


def seldom(draw, family):
    """Changes to the tiny model of the family."""
    import facts_models as models

    own, changes = models.FAMILIES[family], {}
    if "n_embd" not in own:
        heads = draw.choice([2, 3, 4, 6])
        changes["num_attention_heads"] = heads
        if "q_lora_rank" in own:
            changes["num_key_value_heads"] = heads
        elif "num_key_value_heads" not in own:
            changes["num_key_value_heads"] = draw.choice(
                [n for n in (1, 2, 3, 6) if heads % n == 0])
        if "head_dim" in own and "q_lora_rank" not in own:
            changes["head_dim"] = draw.choice([4, 8, 10, 16])
        if "q_lora_rank" not in own:
            changes["hidden_size"] = heads * draw.choice([4, 8, 12])
        changes["vocab_size"] = draw.choice([64, 65, 67, 70, 127])
        changes["intermediate_size"] = draw.choice([20, 48, 52])
        changes["num_hidden_layers"] = max(
            own.get("num_hidden_layers", 2), draw.choice([2, 3, 4, 5]))
        changes = {k: v for k, v in changes.items()
                   if own.get(k, 0) is not None}
    config = models.config_of(family, **changes)
    fields = [f for f in models.fields_of(family) if f not in SIZES]
    for field in draw.sample(fields, draw.choice([0, 1, 2])):
        if values := models.values_of(config, field):
            changes[field] = draw.choice(values)
    return changes


def cut(model, keep):
    """The model with only these layers."""
    import torch

    for path in ("model.layers", "transformer.h", "gpt_neox.layers",
                 "model.decoder.layers"):
        *place, name = path.split(".")
        at = model
        for part in place:
            at = getattr(at, part, None)
        if layers := getattr(at, name, None):
            setattr(at, name, torch.nn.ModuleList([layers[i] for i in keep]))
    config = model.config
    for key in ("num_hidden_layers", "n_layer"):
        if key in vars(config):
            setattr(config, key, len(keep))
    for key in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        if isinstance(getattr(config, key, None), list):
            setattr(config, key, [getattr(config, key)[i] for i in keep])
    return model


COUNTS = ("num_local_experts", "num_experts", "n_routed_experts",
          "moe_num_experts")
PICKED = ("num_experts_per_tok", "moe_k", "moe_topk")


def text_of(config):
    return getattr(config, "text_config", None) or config


def counts_of(config):
    return [key for key in COUNTS if text_of(config).to_dict().get(key)]


def with_experts(models, family, changes, many):
    """The configuration with so many experts."""
    config = models.config_of(family, **changes)
    part = "text_config." if text_of(config) is not config else ""
    return models.config_of(family, **changes, **{
        part + key: many for key in counts_of(config)})


def few_experts(models, big, small, kept):
    """The model of the configuration `small` with the kept experts of `big`."""
    import torch

    have, small = big.state_dict(), models.model_of(small)
    made = {}
    for name, value in small.state_dict().items():
        tensor = have[name]
        for dim, (before, after) in enumerate(zip(tensor.shape, value.shape)):
            if before != after:
                tensor = tensor.index_select(dim, torch.tensor(kept))
        made[name] = tensor
    small.load_state_dict(made)
    return small


def loaded(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32).eval()


def with_lora(source, folder):
    """An adapter in `folder`, and the logits of PEFT's merged model."""
    import peft
    import torch
    from facts_models import logits_of

    model = peft.get_peft_model(loaded(source), peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=6,
        target_modules=["q_proj", "v_proj"]))
    made = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora" in name:
                value.copy_(torch.randn(value.shape, generator=made) * 0.2)
    model.save_pretrained(folder)
    return logits_of(model.merge_and_unload().eval())


def may_be_kept(config, kept):
    """True if the router has enough to pick from, and its groups, too."""
    config = text_of(config)
    picked = max((getattr(config, k, None) or 1) for k in PICKED)
    groups = getattr(config, "n_group", None) or 1
    if picked > len(kept):
        return False
    if groups == 1:
        return True
    each, rest = divmod(len(kept), groups)
    return not rest and each > 1 and picked <= each * config.topk_group


def take_config(folder):
    for name in ("config.json", "generation_config.json"):
        for path in folder.rglob(name):
            path.unlink()


def step(draw, to, before, unsaid):
    """Options for one conversion."""
    options = ["--to", to]
    if to.startswith("megatron"):
        # From Megatron to Megatron nothing has to be said.
        options += [] if before.startswith("megatron") else unsaid
        if draw.random() < 0.5:
            options += ["--tp", draw.choice([1, 2])]
        if draw.random() < 0.3:
            options += ["--pp", 2]
    if to in ("vllm", "meta", "fairseq2") and draw.random() < 0.5:
        options += ["--tp", 2]
    if to == "modelopt":
        options += ["--pp", draw.choice([1, 2])]
    if before in ANY_NAMES and to in ("dcp", "safetensors", "torch"):
        options += ["--dialect", "hf"]
    return options


def extra(draw, source, folder, family, layers, rows):
    """Options for one of the steps, and the logits that result, or None."""
    from facts_models import logits_of

    kind = draw.random()
    if kind < 0.2 and layers > 2:
        keep = list(range(draw.choice([1, 2, layers - 1])))
        return (["--layers", ",".join(map(str, keep))],
                logits_of(cut(loaded(source), keep)))
    if kind < 0.35:
        return ["--vocab-size", rows + draw.choice([1, 3, 5])], None
    if kind < 0.5 and family in LORA:
        return (["--adapter", folder / "adapter"],
                with_lora(source, folder / "adapter"))
    return [], None


def chain(folder, family, number):
    import facts_models as models
    import torch

    draw = random.Random(f"{family} {number}")
    source = folder / "source"
    try:
        changes = seldom(draw, family)
        model = models.model_of(models.config_of(family, **changes))
        model.save_pretrained(source)
        want = models.logits_at(source)
    except Exception as error:  # the class has no such model
        raise Skip(str(error)[:100]) from error
    if not torch.isfinite(want).all():
        raise Skip("its logits are not finite")
    config = model.config
    given, other = extra(draw, source, folder, family,
                         config.num_hidden_layers, config.vocab_size)
    want = want if other is None else other
    unsaid = [word for fact in models.UNSAID.get(family, ())
              for word in ("--allow-unsaid", fact)]
    formats = [draw.choice(MEGATRON), draw.choice(OTHERS)]
    draw.shuffle(formats)
    if draw.random() < 0.25:
        formats.insert(1, draw.choice(OTHERS))
    at_step = 0 if "--adapter" in given else draw.randrange(len(formats))
    alone, at, said = draw.random() < 0.5, source, [str(changes)]
    for i, to in enumerate([*formats, "safetensors"]):
        there = folder / str(i)
        options = step(draw, to, formats[i - 1] if i else "safetensors", unsaid)
        options += given if i == at_step else []
        result = CKPT.run("convert", at, there, "--no-fsync", *options)
        said.append(f"{' '.join(map(str, options))}: {result.code}")
        # It can't be said there, or the names stay and take no option.
        if result.code == 5 or (result.code == 2 and
                                "not being converted" in result.err):
            check(not there.exists(), "something was written")
            return
        check(result.code == 0, "\n".join([*said, result.err]))
        if i != at_step or not given:
            same = CKPT.run("verify", at, there)
            check(same.code == 0, "\n".join([*said, same.out, same.err]))
        if alone and to not in ITS_OWN:
            take_config(there)
        at = there
    got = models.logits_at(at)
    if "--vocab-size" in given:
        check_equal(got.shape[-1], given[-1], "rows")
        check(not got[..., want.shape[-1]:].any(), "new rows are not zeros")
        got = got[..., :want.shape[-1]]
    off = float((got - want).abs().max() / want.abs().max())
    check(off < 1e-5, "\n".join([*said, f"logits are off by {off:.2g}"]))


def experts_chain(folder, family, number):
    """--experts in one of the steps: transformers' model of these experts."""
    draw = random.Random(f"experts {family} {number}")
    models, source = models_of(family), folder / "source"
    plain = models.config_of(family)
    fields = [f for f in models.fields_of(family)
              if f.rpartition(".")[2] not in (*SIZES, *COUNTS)]
    changes = {}
    for field in draw.sample(fields, draw.choice([0, 1, 2])):
        if values := models.values_for(plain, field):
            changes[field] = draw.choice(values)
    many = draw.choice([6, 10, 12, 14])
    kept = sorted(draw.sample(range(many), draw.randrange(1, many)))
    try:
        if draw.random() < 0.75:  # of equal groups, as many of each
            made = text_of(models.config_of(family, **changes))
            groups = getattr(made, "n_group", None) or 2
            many, each = groups * 5, draw.choice([2, 3, 4])
            one = sorted(draw.sample(range(5), each))
            kept = [group * 5 + i for group in range(groups) for i in one]
        big = models.model_of(with_experts(models, family, changes, many))
        big.save_pretrained(source)
        models.logits_at(source)
    except Exception as error:  # the class has no such model
        raise Skip(str(error)[:100]) from error
    may = may_be_kept(big.config, kept)
    if may:
        small = few_experts(models, big, with_experts(
            models, family, changes, len(kept)), kept)
        small.save_pretrained(folder / "small")
        want = models.logits_at(folder / "small")
    unsaid = [word for fact in models.UNSAID.get(family, ())
              for word in ("--allow-unsaid", fact)]
    formats = [draw.choice(MEGATRON), draw.choice(OF_MIXTURES)]
    draw.shuffle(formats)
    if draw.random() < 0.25:
        formats.insert(1, draw.choice(OF_MIXTURES))
    at_step = draw.randrange(len(formats) + 1)
    alone, at, said = draw.random() < 0.5, source, [str(changes)]
    for i, to in enumerate([*formats, "safetensors"]):
        there = folder / str(i)
        options = step(draw, to, formats[i - 1] if i else "safetensors", unsaid)
        if i == at_step:
            options += ["--experts", ",".join(map(str, kept))]
        result = CKPT.run("convert", at, there, "--no-fsync", *options)
        said.append(f"{' '.join(map(str, options))}: {result.code}")
        if result.code == 5 or (result.code == 2 and
                                "not being converted" in result.err):
            check(not there.exists(), "something was written")
            return f"refused: {result.err}"
        check(result.code == 0, "\n".join([*said, result.err]))
        check(i != at_step or may, "\n".join([*said, "no token can be routed"]))
        if i != at_step:
            same = CKPT.run("verify", at, there)
            check(same.code == 0, "\n".join([*said, same.out, same.err]))
        if alone and to not in ITS_OWN:
            take_config(there)
        at = there
    off = float((models.logits_at(at) - want).abs().max() / want.abs().max())
    check(off < 1e-5, "\n".join([*said, f"logits are off by {off:.2g}"]))
    return "equal"


def args_in_dcp(folder, options, field):
    """What is cut of a DCP checkpoint with Megatron's names follows in the args
    that it holds, config.json kept or taken away."""
    models = models_of("mixtral")
    source = folder / "source"
    model = models.model_of(with_experts(
        models, "mixtral", dict(num_hidden_layers=3), 6))
    model.save_pretrained(source)
    start = folder / "start"
    CKPT.ok("convert", source, folder / "megatron", "-q", "--to",
            "megatron_legacy")
    CKPT.ok("convert", folder / "megatron", start, "-q", "--to", "dcp")
    CKPT.ok("convert", source, folder / "small", "-q", *HF, *options)
    want = config_at(folder / "small")
    for kept in (True, False):
        back, cut_there = folder / f"back {kept}", folder / f"cut {kept}"
        CKPT.ok("convert", start, cut_there, "-q", "--to", "dcp", *options)
        for at, given in ((start, options), (cut_there, ())):
            CKPT.ok("convert", at, back, "-q", *HF, "--dialect", "hf",
                    "--family", "mixtral", "--overwrite", *given)
            check_equal(config_at(back)[field], want[field], field)
            loaded(back)
            CKPT.ok("verify", back, folder / "small")
        take_config(start)


def two_spellings(folder):
    """nemotron_h of transformers 5 comes home under the hub's names: that is
    the same model, and with another number in it, it is not."""
    source = folder / "source"
    models = models_of("nemotron_h")
    models.model_of(models.config_of("nemotron_h")).save_pretrained(source)
    back = folder / "back"
    CKPT.ok("convert", source, folder / "there", "-q", "--to",
            "megatron_torch_dist")
    CKPT.ok("convert", folder / "there", back, "-q", *HF)
    pairs = ((source, folder / "there"), (source, back), (back, source))
    for a, b in pairs:
        for command in ("verify", "diff"):
            CKPT.ok(command, a, b)
    file = source / "model.safetensors"
    data = bytearray(file.read_bytes())
    at = data.find(embedding_of(source, "backbone.embedding.weight")[:64])
    data[at + 5] ^= 1
    file.write_bytes(data)
    for a, b in pairs:
        for command in ("verify", "diff"):
            result = CKPT.run(command, a, b).want(1)
            check("backbone.embedding" in result.out, result.out)


BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
          "generation_config.json", "preprocessor_config.json",
          "processor_config.json", "special_tokens_map.json", "vocab.json",
          "merges.txt", "added_tokens.json", "chat_template.json",
          "video_preprocessor_config.json", "tokenizer.model")


def files_travel(folder, target):
    """Tokenizer, chat template and preprocessors go there and back."""
    source, _ = saved(folder / "source", "llama")
    for name in BESIDE:
        (source / name).write_text('{"eos_token_id": 2}\n')
    CKPT.ok("convert", source, folder / "there", "--to", target, "-q")
    CKPT.ok("convert", folder / "there", folder / "back", *HF, "--dialect",
            "hf", "-q")
    for name in BESIDE:
        path = folder / "back" / name
        check(path.is_file(), f"{name} is lost")
        check_equal(path.read_bytes(), (source / name).read_bytes(), name)


# ------------------------------------------------- faults that they have found
def saved(folder, family, **changes):
    from facts_models import config_of, logits_at, model_of

    model_of(config_of(family, **changes)).save_pretrained(folder)
    return folder, logits_at(folder)


def config_at(folder):
    [path] = folder.rglob("config.json")
    return json.loads(path.read_text())


def literals(folder, family, changes):
    """--vocab-size on the way back changes vocab_size in a config.json that was
    kept, and no other key."""
    source, _ = saved(folder / "source", family, **changes)
    rows = config_at(source)["vocab_size"] + 5
    want = {**config_at(source), "vocab_size": rows}
    for to in MEGATRON:
        CKPT.ok("convert", source, folder / to, "-q", "--to", to)
        CKPT.ok("convert", folder / to, folder / f"{to}_hf", "-q", *HF,
                "--vocab-size", rows)
        check_equal(config_at(folder / f"{to}_hf"), want, to)


def rows_in_megatrons(folder, tied):
    """--vocab-size from Megatron to Megatron: args and config.json record it,
    so the way back has these rows."""
    from facts_models import logits_at

    source, want = saved(folder / "source", "llama", tie_word_embeddings=tied)
    start = folder / "start"
    CKPT.ok("convert", source, start, "-q", "--to", "megatron_zarr")
    for to in (*MEGATRON, None):
        there, back = folder / f"{to}", folder / f"{to}_hf"
        command = ("convert", start, there, "--to", to) if to else (
            "reshard", start, there)
        CKPT.ok(*command, "-q", "--tp", 2, "--vocab-size", 69)
        check_equal(config_at(there)["vocab_size"], 69, f"{to}: config.json")
        for kept in (True, False):
            CKPT.ok("convert", there, back, "-q", *HF, "--family", "llama",
                    "--overwrite")
            check_equal(config_at(back)["vocab_size"], 69, f"{to} {kept}")
            got = logits_at(back)
            check(not got[..., 64:].any(), "new rows are not zeros")
            off = float((got[..., :64] - want).abs().max() / want.abs().max())
            check(off < 1e-5, f"{to} {kept}: logits are off by {off:.2g}")
            take_config(there)


STACKED = {  # layers, and those whose kind stays the same
    "llama": (5, [2]), "qwen3": (4, [1, 3]), "gemma2": (4, [2, 3]),
    "gpt2": (2, [1]),
}


def stacked_layers(folder, family, kept):
    """Rows of stacked layers are renumbered, and num_layers follows."""
    from facts_models import logits_of

    layers, keep = STACKED[family]
    source, _ = saved(folder / "source", family, **{
        "n_layer" if family == "gpt2" else "num_hidden_layers": layers})
    want = logits_of(cut(loaded(source), keep))
    start = folder / "start"
    CKPT.ok("convert", source, start, "-q", "--to", "megatron_torch_dist")
    if not kept:
        take_config(start)
    listed = ("--layers", ",".join(map(str, keep)), "--family", family)
    CKPT.ok("convert", start, folder / "cut", "-q", "--to", "megatron_zarr",
            *listed[:2])
    CKPT.ok("convert", folder / "cut", folder / "of_cut", "-q", *HF,
            *listed[2:])
    CKPT.ok("convert", start, folder / "home", "-q", *HF, *listed)
    for name in ("of_cut", "home"):
        got = logits_of(loaded(folder / name))
        off = float((got - want).abs().max() / want.abs().max())
        check(off < 1e-5, f"{name}: logits are off by {off:.2g}")


def other_kinds(folder):
    """A layer with a window would take the place of one without: the
    configuration stays as it was, with a warning."""
    source, _ = saved(folder / "source", "qwen2", num_hidden_layers=4,
                      use_sliding_window=True, max_window_layers=2)
    config = config_at(source)
    del config["layer_types"]
    (source / "config.json").write_text(json.dumps(config))
    start = folder / "start"
    CKPT.ok("convert", source, start, "-q", "--to", "megatron_torch_dist")
    result = CKPT.ok("reshard", start, folder / "cut", "--layers", "3")
    check("counted" in result.err or "as row 0" in result.err, result.err)
    if config_at(folder / "cut")["num_hidden_layers"] != 1:
        check("stays as it was" in result.err, result.err)


def part_of_a_model(folder, target):
    """Layers with names keep their numbers: a warning says it isn't a model."""
    source, _ = saved(folder / "source", "llama", num_hidden_layers=4)
    for listed, said in (("0,3", True), ("2-3", True), ("0-1", False)):
        result = CKPT.run("convert", source, folder / listed, "--to", target,
                          "--layers", listed)
        check(("a part of the model" in result.err) == said, result.err)
        # Megatron stacks them, and there is no row for a missing layer.
        refused = said and target == "megatron_torch_dist"
        check_equal(result.code, 5 if refused else 0, result.err)


def tied_and_padded(folder):
    """Half of an embedding's rows are padding: the other half, which is also
    the head, is read twice, and that isn't damage."""
    from facts_models import logits_at

    source, want = saved(folder / "source", "llama", tie_word_embeddings=True)
    start = folder / "start"
    CKPT.ok("convert", source, start, "-q", "--to", "megatron_torch_dist")
    for pp in (1, 2):
        there, back = folder / f"pp{pp}", folder / f"back{pp}"
        CKPT.ok("convert", start, there, "-q", "--to", "modelopt", "--pp", pp)
        CKPT.ok("convert", there, back, "-q", *HF)
        off = float((logits_at(back) - want).abs().max() / want.abs().max())
        check(off < 1e-5, f"logits are off by {off:.2g}")
    for file in start.rglob("*.distcp"):  # and damage is still found
        data = bytearray(file.read_bytes())
        at = data.find(embedding_of(source)[:64])
        if at >= 0:
            data[at + 5] ^= 1
            file.write_bytes(data)
    result = CKPT.run("convert", start, folder / "no", "--to", "modelopt",
                      "--pp", 1).want(4)
    check("CRC-32" in result.err, result.err)


OTHER_NAMES = ("gpt2", "gptj", "gpt_bigcode", "bloom", "gpt_neox", "phi")


def head_of_its_own(folder, family):
    """Blocks not named like Llama's: no tensor is left out."""
    source, want = saved(folder / "source", family, tie_word_embeddings=False)
    for pp in (1, 2):
        there, back = folder / f"pp{pp}", folder / f"back{pp}"
        CKPT.ok("convert", source, there, "-q", "--to", "modelopt", "--pp", pp)
        CKPT.ok("verify", there)
        CKPT.ok("verify", source, there)
        CKPT.ok("convert", there, back, "-q", *HF)
        off = float((loaded_logits(back) - want).abs().max()
                    / want.abs().max())
        check(off < 1e-5, f"logits are off by {off:.2g}")


def loaded_logits(folder):
    from facts_models import logits_at

    return logits_at(folder)


def embedding_of(folder, name="model.embed_tokens.weight"):
    from support import read_safetensors

    return read_safetensors(folder / "model.safetensors")[name].data


# Whose names stay, and in what.
FOREIGN = {"megatron_torch_dist": "llama", "megatron_zarr": "llama",
           "megatron_legacy": "llama", "fairseq2": "llama", "meta": "llama",
           "olmo_core": "olmo2", "olmo_core_v1": "olmo2"}
KEEPING = {
    "convert to safetensors": ("convert", "--to", "safetensors",
                               "--dialect", "keep"),
    "convert to torch": ("convert", "--to", "torch", "--dialect", "keep"),
    "unshard": ("unshard",), "unshard to torch": ("unshard", "--to", "torch")}


def is_a_model(folder):
    """Does transformers take it for a model's directory?"""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(folder)
        return True
    except (OSError, ValueError):
        return False


def claims_of_foreign_names(folder, form, every):
    """Beside names that are not transformers' stands no config.json that has it
    open them, as a model of numbers that it makes up. What it says is not lost."""
    family = FOREIGN[form]
    source, want = saved(folder / "source", family)
    start = folder / "start"
    CKPT.ok("convert", source, start, "-q", "--to", form)
    for what, (command, *options) in KEEPING.items():
        if not every and what not in ("unshard", "convert to torch"):
            continue
        there, back = folder / what, folder / f"{what} back"
        CKPT.ok(command, start, there, "--no-fsync", *options)
        check(not is_a_model(there), f"{what}: transformers opens it")
        CKPT.ok("verify", there)
        CKPT.ok("verify", source, there)
        if not (there / "hf_config.json").is_file():
            check(form in ("meta", "olmo_core", "olmo_core_v1"), what)
            continue
        check_equal((there / "hf_config.json").read_bytes(),
                    (source / "config.json").read_bytes(), what)
        copy = folder / f"{what} copy"  # names and file stay as they are
        CKPT.ok("convert", there, copy, "--to", "torch", "--dialect", "keep",
                "--no-fsync")
        check(not is_a_model(copy), f"{what}: transformers opens a copy")
        for at in (there, copy):
            CKPT.ok("convert", at, back, *HF, "--dialect", "hf", "--no-fsync",
                    "--overwrite")
            check(not (back / "hf_config.json").exists(), "it stands there")
            check_equal(config_at(back), config_at(source), what)
            off = float((loaded_logits(back) - want).abs().max()
                        / want.abs().max())
            check(off < 1e-5, f"{what}: logits are off by {off:.2g}")


def names_that_are_asked_for(folder):
    """--dialect on the way to a container: the same; and vLLM's names are read
    by a config.json."""
    source, _ = saved(folder / "source", "llama")
    for dialect in ("mcore", "fairseq2", "meta"):
        there = folder / dialect
        CKPT.ok("convert", source, there, *HF, "--dialect", dialect,
                "--no-fsync")
        check(not is_a_model(there), f"{dialect}: transformers opens it")
    CKPT.ok("convert", source, folder / "vllm", "-q", "--to", "vllm")
    CKPT.ok("unshard", folder / "vllm", folder / "out", "--no-fsync")
    check((folder / "out" / "config.json").is_file(), "vLLM has no config.json")


def models_of(family):
    """What makes tiny models of the family."""
    import facts_hybrid_models as hybrid
    import facts_models as texts
    import facts_vision_models as seeing

    return next(models for models in (texts, hybrid, seeing)
                if family in models.FAMILIES)


def mixtures():
    """Every family with experts."""
    import facts_hybrid_models as hybrid
    import facts_models as texts
    import facts_vision_models as seeing

    return [family for models in (texts, hybrid, seeing)
            for family in models.FAMILIES
            if counts_of(models.config_of(family))]


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    import torch

    torch.set_num_threads(1)
    import facts_models

    for family in facts_models.FAMILIES if suite.full else CHOSEN:
        for number in range(20 if suite.full else 2):
            suite.add(f"chain {family} {number}", chain, family, number)
    for family in mixtures() if suite.full else EXPERTS:
        for number in range(20 if suite.full else 2):
            suite.add(f"experts of {family} {number}", experts_chain, family,
                      number)
    for target in dict.fromkeys((*MEGATRON, *OTHERS)):
        if target != "safetensors":
            suite.add(f"files beside a model: {target}", files_travel, target)
    for family, changes in (
            ("gpt_bigcode", dict(activation_function="gelu")),
            ("llama", dict(hidden_act="gelu_pytorch_tanh")),
            ("gpt_neox", dict(hidden_act="gelu_pytorch_tanh",
                              use_parallel_residual=False)),
            ("olmo3", {}), ("gemma2", dict(hidden_activation="gelu"))):
        suite.add(f"--vocab-size rewrites config.json of {family}", literals,
                  family, changes)
    for tied in (True, False):
        suite.add("--vocab-size is not said in Megatron's"
                  + (", tied" if tied else ""), rows_in_megatrons, tied)
    for family in STACKED:
        for kept in (True, False):
            suite.add(f"num_layers of {family} stays where rows are cut, "
                      f"config.json {'kept' if kept else 'away'}",
                      stacked_layers, family, kept)
    suite.add("a row of another kind", other_kinds)
    for target in ("safetensors", "megatron_torch_dist", "vllm"):
        suite.add(f"a part of a model without a word: {target}",
                  part_of_a_model, target)
    suite.add("a tied embedding is called damaged", tied_and_padded)
    for form in FOREIGN if suite.full else ("megatron_legacy", "olmo_core"):
        suite.add(f"names of {form} claim to be transformers'",
                  claims_of_foreign_names, form, suite.full)
    suite.add("names that are asked for claim to be transformers'",
              names_that_are_asked_for)
    for options, field in ((("--experts", "1-2,5"), "num_local_experts"),
                           (("--layers", "0-1"), "num_hidden_layers")):
        suite.add(f"{options[0]} is not said in the args of DCP", args_in_dcp,
                  options, field)
    suite.add("two spellings of nemotron_h are two models", two_spellings)
    for family in facts_models.FAMILIES if suite.full else OTHER_NAMES:
        suite.add(f"the head of {family} is left out of modelopt",
                  head_of_its_own, family)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
