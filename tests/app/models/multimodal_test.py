#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Vision models, from transformers to Megatron's names and back.

A tiny model of each type, every parameter random, as transformers saves it: to
Megatron's distributed checkpoint on one and two ranks, compared there, and back
bit for bit, with config.json beside it and with it removed. The language
model's names begin with language_model.; the tower's are Megatron-Bridge's, or
transformers' own.
"""

import json
import os
import sys

from support import DATA, Skip, Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
FAMILIES = DATA.parents[1] / "models/families"

# Where Megatron-Bridge (0.4, July 2026; 0.6.2 for Gemma 4, 0.7 for Qwen 3.5,
# EXAONE 4.5 and Qwen2-Audio) puts each tower: names with these prefixes, and no
# others besides language_model.
TOWERS = {
    "qwen2_vl": {"visual."}, "qwen2_5_vl": {"visual."},
    "qwen3_vl": {"vision_model.decoder.layers.",
                 "vision_model.decoder.deepstack_merger_list.0.",
                 "vision_model.merger.", "vision_model.patch_embed.proj.",
                 "vision_model.pos_embed."},
    "qwen3_5": {"vision_model.decoder.layers.", "vision_model.merger.",
                "vision_model.patch_embed.proj.", "vision_model.pos_embed."},
    "exaone4_5": {"vision_model.decoder.layers.", "vision_model.merger.",
                  "vision_model.patch_embed.proj."},
    "qwen2_audio": {"audio_tower.", "multi_modal_projector.linear."},
    "gemma3": {"vision_tower.", "multi_modal_projector.proj.",
               "multi_modal_projector.mm_soft_embed_norm."},
    "gemma4": {"vision_tower.", "audio_tower.",
               "embed_vision.embedding_projection.",
               "embed_audio.embedding_projection."},
    "gemma4, experts": {"vision_tower.", "embed_vision.embedding_projection."},
    "mistral3": {"vision_tower.", "multi_modal_projector."},
    "glm4v_moe": {"visual."},
    # It doesn't have these: transformers' names.
    "llava": {"vision_tower.", "multi_modal_projector."},
    "internvl": {"vision_tower.", "multi_modal_projector."},
    "aya_vision": {"vision_tower.", "multi_modal_projector."},
    "cohere2_vision": {"vision_tower.", "multi_modal_projector."},
    "llama4": {"vision_model.", "multi_modal_projector."},
}
TOWERS["qwen3_vl_moe"] = TOWERS["qwen3_vl"]
TOWERS["qwen3_5_moe"] = TOWERS["qwen3_5"]


def models():
    return models_of("multimodal_models")


def saved(folder, name):
    tiny = models()
    model = tiny.model_of(tiny.config_of(name))
    model.save_pretrained(folder)
    if name == "qwen2_audio":
        tiny.publish(folder / "model.safetensors")
    return tiny, model, tensors_of(folder)


def names_at(directory):
    """As torch reads them."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    [path] = directory.rglob(".metadata")
    there = FileSystemReader(path.parent).read_metadata().state_dict_metadata
    return [name for name, what in there.items()
            if isinstance(what, TensorStorageMetadata)]


def check_names(directory, name):
    towers = TOWERS.get(name) or TOWERS[name.split(",")[0]]
    used = set()
    for tensor in names_at(directory):
        if tensor.startswith("language_model."):
            continue
        owners = {t for t in towers if tensor.startswith(t)}
        check(owners, f"{tensor} is none of Megatron's")
        used |= owners
    check_equal(used, towers, "parts of the tower")


def there_and_back(folder, name):
    source = folder / "source"
    tiny, model, want = saved(source, name)
    for tp in (1, 2):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
                "--tp", tp, "--strict-config", "--no-fsync",
                *(word for fact in tiny.UNSAID.get(name, ())
                  for word in ("--allow-unsaid", fact)))
        check_names(there, name)
        CKPT.ok("verify", source, there)
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")
        check_equal(config_of(back), config_of(source), "config.json")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    alone = folder / "alone"
    CKPT.ok("convert", there, alone, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(alone), want, "without config.json")
    same_function(tiny, type(model), source, alone)


def same_function(tiny, kind, source, alone):
    """The config.json that ckpt made describes the model that was saved."""
    import torch
    from transformers import AutoConfig

    a, b = (AutoConfig.from_pretrained(p).to_dict() for p in (source, alone))
    # A class without the key reads it nevertheless.
    a.setdefault("tie_word_embeddings", b.get("tie_word_embeddings"))
    for key in a.keys() | b.keys():
        if key not in ("text_config", "_name_or_path", "transformers_version"):
            check_equal(b.get(key), a.get(key), key)
    check_equal(b["text_config"]["model_type"], a["text_config"]["model_type"],
                "the language model's type")
    a, b = (tiny.logits_of(kind.from_pretrained(path, dtype=torch.float32))
            for path in (source, alone))
    check(torch.isfinite(a).all(), "logits of the source are not numbers")
    off = float((a - b).abs().max() / a.abs().max())
    check(off < 1e-5, f"logits differ by {off:.2g}: config.json is "
          + (alone / "config.json").read_text())


# All but safetensors, the source, and deepspeed, which no weights become.
FORMATS = ("torch", "fairseq2", "megatron_torch_dist", "megatron_zarr",
           "megatron_legacy", "dcp", "olmo_core_v1", "olmo_core", "meta",
           "modelopt", "vllm")


def whole_or_refused(folder, source, want, form, words, *options):
    """Every tensor comes back from `form`, or exit 5 says one of `words`. True
    if they come back."""
    there, back = folder / form, folder / (form + "_back")
    result = CKPT.run("convert", source, there, "--to", form, "--no-fsync",
                      *options)
    if result.code:
        result.want(5)
        check(any(word in result.err for word in words), result.err)
        check(not there.exists(), "something was written")
        return False
    CKPT.ok("verify", source, there)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(back), want, form)
    return True


def every_format(folder, name, forms):
    """A tower is carried, or the refusal names it or the model's type."""
    source = folder / "source"
    tiny, _, want = saved(source, name)
    kind = name.split(",")[0]
    words = ["tower", f'"{kind}"', *TOWERS[kind]]
    allowed = [word for fact in tiny.UNSAID.get(name, ())
               for word in ("--allow-unsaid", fact)]
    carried = {form for form in forms if whole_or_refused(
        folder, source, want, form, words,
        *(allowed if form.startswith("megatron") else ()))}
    check({"torch", "dcp"} <= carried, str(carried))


def tower_of_nobody(folder):
    """Where config.json says that there is no tower, Llama's, each format
    refuses: no reader of it finds a place for one."""
    import torch
    from safetensors.torch import load_file, save_file

    source = folder / "source"
    model = models_of("facts_models")
    model.model_of(model.config_of("llama")).save_pretrained(source)
    path = source / "model.safetensors"
    extra = {"audio_tower.layers.0.self_attn.q_proj.weight": torch.ones(8, 8),
             "model.mm_projector.0.weight": torch.ones(8, 8),
             "model.image_newline": torch.ones(32)}
    save_file({**load_file(path), **extra}, path)
    want = tensors_of(source)
    carried = {form for form in FORMATS if whole_or_refused(
        folder, source, want, form, extra)}
    check_equal(carried, set(), "formats of any names")


def strict_tower(folder):
    """GPTModel has no tower, and no code has LLaVA's: ckpt says so."""
    source = folder / "source"
    saved(source, "llava, llama")
    options = ("--to", "megatron_torch_dist", "--no-fsync")
    result = CKPT.run("convert", source, folder / "no", *options,
                      "--strict-config").want(5)
    check("tower is" in result.err, result.err)
    check("--allow-unsaid tower" in result.err, result.err)
    result = CKPT.ok("convert", source, folder / "there", *options)
    check("can't say all of the model: tower is" in result.err, result.err)
    # So does a file of one's own, of which no table knows, around a family that
    # GPTModel is.
    own = folder / "own.json"
    own.write_text((FAMILIES / "llava.json").read_text().replace(
        '"family": "llava"', '"family": "seeing_llama"'))
    options += ("--family-file", own)
    result = CKPT.run("convert", source, folder / "no", *options,
                      "--strict-config").want(5)
    check("--allow-unsaid tower" in result.err, result.err)
    result = CKPT.ok("convert", source, folder / "own", *options)
    check("can't say all of the model: tower is" in result.err, result.err)


# The layouts of past transformers releases.
LAYOUTS = {
    "qwen2_5_vl": [("model.", "model.language_model."),
                   ("visual.", "model.visual.")],
    "gemma3": [("language_model.lm_head.", "lm_head."),
               ("language_model.model.", "model.language_model."),
               ("vision_tower.", "model.vision_tower."),
               ("multi_modal_projector.", "model.multi_modal_projector.")],
    "llava, llama": [("language_model.lm_head.", "lm_head."),
                     ("language_model.model.", "model.language_model."),
                     ("vision_tower.", "vision_tower.vision_model.")],
    # As transformers 5 names them, and as 5.12.1 saves them.
    "qwen2_audio": [("language_model.lm_head.", "lm_head."),
                    ("language_model.model.", "model.language_model."),
                    ("audio_tower.", "model.audio_tower."),
                    ("multi_modal_projector.", "model.multi_modal_projector.")],
    "qwen2_audio, saved": [
        ("language_model.model.", "language_model.model.model.")],
}


def other_layout(folder, name):
    from safetensors.torch import load_file, save_file

    source = folder / "source"
    _, _, want = saved(source, name.removesuffix(", saved"))
    path = source / "model.safetensors"
    renamed = {}
    for tensor, value in load_file(path).items():
        new = next((to + tensor[len(old):] for old, to in LAYOUTS[name]
                    if tensor.startswith(old)), tensor)
        renamed[new] = value
    check(set(renamed) != set(want), "no name is another")
    save_file(renamed, path)
    CKPT.ok("convert", source, folder / "there", "-q", "--to",
            "megatron_torch_dist", "--no-fsync")
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors", "--no-fsync")
    compare(tensors_of(folder / "back"), want, "another layout")
    for a, b in (("source", "there"), ("there", "source"), ("source", "back")):
        CKPT.ok("verify", folder / a, folder / b)


def packed_experts(folder):
    """Published files of Qwen 3.5 have a layer's experts in one tensor."""
    import torch
    from safetensors.torch import load_file, save_file

    source = folder / "source"
    _, _, want = saved(source, "qwen3_5_moe")
    path = source / "model.safetensors"
    tensors, stacks = {}, {}
    for name, value in load_file(path).items():
        stem, found, rest = name.partition(".mlp.experts.")
        if not found:
            tensors[name] = value
            continue
        number, part, _ = rest.split(".")
        stacks.setdefault(stem, {})[part, int(number)] = value
    for stem, parts in stacks.items():
        count = len(parts) // 3
        tensors[stem + ".mlp.experts.gate_up_proj"] = torch.stack([
            torch.cat([parts["gate_proj", e], parts["up_proj", e]])
            for e in range(count)])
        tensors[stem + ".mlp.experts.down_proj"] = torch.stack([
            parts["down_proj", e] for e in range(count)])
    check(len(tensors) < len(want) and stacks, "no experts are packed")
    single = folder / "single"
    source.rename(single)
    source.mkdir()
    (source / "config.json").write_bytes((single / "config.json").read_bytes())
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    there = folder / "there"
    CKPT.ok("family", "check", source)
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
            "--tp", 2, "--strict-config", "--no-fsync")
    CKPT.ok("verify", source, there)
    CKPT.ok("verify", there, source)
    CKPT.ok("verify", source, single)
    CKPT.ok("convert", there, folder / "back", "-q", "--to", "safetensors",
            "--no-fsync")
    compare(tensors_of(folder / "back"), want, "as transformers 5 saves them")
    # One expert that differs shows, and so does one that is there twice.
    stem = next(iter(stacks))
    other = dict(tensors)
    other[stem + ".mlp.experts.down_proj"] = tensors[
        stem + ".mlp.experts.down_proj"] + 1
    save_file(other, source / "model.safetensors", {"format": "pt"})
    CKPT.run("verify", source, there).want(1)
    other = dict(tensors)
    other[stem + ".mlp.experts.0.down_proj.weight"] = torch.ones(32, 8)
    save_file(other, source / "model.safetensors", {"format": "pt"})
    CKPT.run("convert", source, folder / "no", "--to",
             "megatron_torch_dist").want(5)
    check(not (folder / "no").exists(), "something was written")


def transposed_experts(folder):
    """Hub files of Qwen3-VL-MoE store experts as [expert, in, out]."""
    from safetensors.torch import load_file, save_file

    source = folder / "source"
    _, _, want = saved(source, "qwen3_vl_moe")
    path = source / "model.safetensors"
    tensors = {name: value.transpose(1, 2).contiguous()
               if ".experts." in name else value
               for name, value in load_file(path).items()}
    save_file(tensors, path)
    CKPT.ok("convert", source, folder / "there", "-q", "--to",
            "megatron_torch_dist", "--no-fsync")
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors", "--no-fsync")
    compare(tensors_of(folder / "back"), want, "as transformers 5 has them")


def nothing_is_left_out(folder):
    """A tensor without a rule is named, and nothing is written."""
    from safetensors.torch import load_file, save_file

    source = folder / "source"
    saved(source, "gemma3")
    path = source / "model.safetensors"
    tensors = load_file(path)
    tensors["audio_tower.extra.weight"] = tensors[
        "vision_tower.post_layernorm.weight"].clone()
    save_file(tensors, path)
    result = CKPT.run("convert", source, folder / "there", "--to",
                      "megatron_torch_dist").want(5)
    check("audio_tower.extra.weight" in result.err, result.err)
    check(not (folder / "there").exists(), "something was written")


def unknown_language(folder):
    """LLaVA around a language model that has no family file."""
    source = folder / "source"
    saved(source, "llava, llama")
    config = config_of(source)
    config["text_config"]["model_type"] = "mamba"
    (source / "config.json").write_text(json.dumps(config))
    CKPT.run("convert", source, folder / "there", "--to",
             "megatron_torch_dist").want(5)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    try:
        types = [*models().TYPES, *models().VARIANTS]
    except Skip as skip:
        print("skipped:", skip)
        sys.exit(77)
    for name in types:
        suite.add(name, there_and_back, name)
    for name in TOWERS:
        if "," in name:
            continue
        every = name in ("llava", "gemma3", "llama4")
        suite.add(f"{name}, other formats", every_format,
                  next(t for t in types if t.split(",")[0] == name),
                  FORMATS if every else ("torch", "dcp"))
    suite.add("a tower that config.json does not have", tower_of_nobody)
    suite.add("a tower that Megatron lacks is said", strict_tower)
    for name in LAYOUTS:
        suite.add(f"{name}, another layout", other_layout, name)
    suite.add("experts of older files", transposed_experts)
    suite.add("experts in one tensor", packed_experts)
    suite.add("a tensor that no rule has", nothing_is_left_out)
    suite.add("a language model that is not known", unknown_language)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
