#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF, both ways. Of each architecture a tiny random model of transformers:
what ckpt writes is read by the gguf package and, where it knows the
architecture, computed by transformers' own loader of GGUF files; it comes home
bit for bit, with a configuration that computes the same. Files of llama.cpp's
converter (tests/data/gguf) become the model that they were made of, and are
written again with the same keys and bytes.
"""

import json
import os
import random
import shutil
import struct
import sys
from pathlib import Path

import numpy
import torch
from support import DATA, Skip, Suite, check, check_equal

HOMES = [Path(sys.prefix) / name for name in ("transformers_5.12.1", "loaders")]
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
CKPT = None  # set by prepare

TYPES = ["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe",
         "qwen3_moe", "gemma", "gemma2", "phi3", "starcoder2", "olmo", "olmo2",
         "olmoe", "stablelm", "granite", "smollm3", "nemotron", "seed_oss",
         "glm4", "glm4_moe", "arcee", "ernie4_5", "gemma3_text", "olmo3",
         "exaone4", "dots1", "ernie4_5_moe", "minimax_m2", "cohere", "cohere2",
         "hunyuan_v1_dense", "phi", "gpt2", "gpt_bigcode", "bloom",
         "deepseek_v2", "deepseek_v3", "gpt_oss", "granitemoe",
         "granitemoeshared", "gpt_neox", "glm", "qwen3_next", "qwen3_5_text",
         "qwen3_5_moe_text"]
# transformers 5.12's loader reads these, and computes the same. It has the gate
# of Qwen 2 MoE's shared expert as llama.cpp's converter wrote it once.
LOADED = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma2", "phi3",
          "starcoder2", "stablelm")
# Facts that llama.cpp's architecture lacks in the tiny model.
UNSAID = {"starcoder2": ("window",), "mistral": ("window",),
          "mixtral": ("window",)}


# As published Qwen 3.5's say it, and llama.cpp always.
SECTIONS = {"rope_parameters": {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
    "mrope_section": [11, 11, 10], "mrope_interleaved": True}}
# Numbers that llama.cpp's architectures fix, as published models have them.
MORE = {"qwen3_moe": {"norm_topk_prob": True},
        "deepseek_v2": {"first_k_dense_replace": 1, "head_dim": 4,
                        "num_experts_per_tok": 2},
        "deepseek_v3": {"first_k_dense_replace": 1, "head_dim": 4},
        "gemma2": {"query_pre_attn_scalar": 8},
        "gemma3_text": {"query_pre_attn_scalar": 8},
        # Of these the converter writes what ChatGLM's older files have.
        "qwen3_5_text": SECTIONS, "qwen3_5_moe_text": SECTIONS,
        "glm": {"rms_norm_eps": 1e-5, "max_position_embeddings": 32},
        "phi": {"intermediate_size": 128, "num_key_value_heads": 4}, "gpt_bigcode": {"n_inner": 128}}


def tiny(model_type, **more):
    from model_types import small_config
    from transformers import AutoModelForCausalLM

    model, _ = small_config(model_type)
    config = model.config
    more = {**MORE.get(model_type, {}), **more}
    if more:
        model = AutoModelForCausalLM.from_config(
            type(config)(**{**config.to_dict(), **more}))
    torch.manual_seed(len(model_type))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 4
                            + (parameter.dim() == 1))
    return model.to(torch.bfloat16).eval()


def tensors(path):
    from safetensors.torch import load_file
    return {key: value for file in sorted(path.glob("*.safetensors"))
            for key, value in load_file(file).items()}


def check_same(want, got):
    check_equal(sorted(got), sorted(want), "names")
    for key, tensor in want.items():
        check_equal(got[key].dtype, tensor.dtype, f"dtype of {key}")
        check(torch.equal(got[key].view(torch.uint8),
                          tensor.view(torch.uint8)), f"bytes of {key}")


def logits(model, vocabulary):
    tokens = torch.arange(16)[None] * 7 % vocabulary
    with torch.no_grad():
        return model.float()(tokens).logits


def loaded(path, **more):
    from transformers import AutoModelForCausalLM
    model, notes = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True, **more)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check_equal(sorted(notes[what]), [], what)
    return model.eval()


def check_near(want, got, what):
    far = (want - got).abs().max() / want.abs().max()
    check(far < 2e-5, f"{what}: logits differ by {far:.1e} of the largest")


def unsaid(model_type):
    return [word for fact in UNSAID.get(model_type, ())
            for word in ("--allow-unsaid", fact)]


def test_model(folder, model_type):
    import gguf
    try:
        model = tiny(model_type)
    except (ImportError, KeyError, ValueError) as error:
        raise Skip(str(error)) from error
    model.save_pretrained(folder / "in")
    (folder / "gguf").mkdir()
    CKPT.ok("convert", folder / "in", folder / "gguf/m.gguf",
            *unsaid(model_type))
    reader = gguf.GGUFReader(folder / "gguf/m.gguf")
    check(len(reader.tensors) > 4, "tensors that the gguf package sees")
    for tensor in reader.tensors:
        known = tensor.tensor_type.name
        wide = ("_norm", "gate_inp", "position_embd", "ssm_conv1d")
        check(known == ("F32" if len(tensor.shape) == 1 or any(
                        word in tensor.name for word in wide)
                        or not tensor.name.endswith(".weight") else "BF16"),
              f"{tensor.name} is {known}")
    CKPT.ok("convert", folder / "gguf/m.gguf", folder / "out", "--to",
            "safetensors")
    check_same(tensors(folder / "in"), tensors(folder / "out"))
    for left, right in (("in", "gguf/m.gguf"), ("in", "out"),
                        ("gguf/m.gguf", "out")):
        if not UNSAID.get(model_type):
            CKPT.ok("verify", folder / left, folder / right)
    CKPT.ok("verify", folder / "gguf/m.gguf")
    vocabulary = model.config.vocab_size
    want = logits(loaded(folder / "in"), vocabulary)
    if not UNSAID.get(model_type):
        check_near(want, logits(loaded(folder / "out"), vocabulary), "home")
    if model_type in LOADED:
        found = loaded(folder / "gguf", gguf_file="m.gguf",
                       config=model.config)
        check_near(want, logits(found, vocabulary), "transformers' loader")


def test_qwen35(folder):
    """Sections that transformers' class takes where config.json has none, and
    layers that guess further tokens."""
    import gguf
    from safetensors.torch import save_file

    plain = {key: value for key, value in SECTIONS["rope_parameters"].items()
             if not key.startswith("mrope")}
    tiny("qwen3_5_text", rope_parameters=plain).save_pretrained(folder / "in")
    out = folder / "m.gguf"
    said = CKPT.ok("convert", folder / "in", out, "-v")
    CKPT.ok("verify", folder / "in", out)
    check("rope_sections is [11,11,10]" in said.err, said)
    field = gguf.GGUFReader(out).fields["qwen35.rope.dimension_sections"]
    check_equal(field.contents(), [11, 11, 10, 0], "sections")
    weights = tensors(folder / "in")
    width = weights["model.norm.weight"].numel()
    save_file({"mtp.fc.weight": torch.ones(width, 2 * width),
               "mtp.norm.weight": torch.ones(width)},
              folder / "in/model-mtp.safetensors")
    (folder / "in/model.safetensors").rename(folder / "in/model-0.safetensors")
    said = CKPT.run("convert", folder / "in", folder / "more.gguf").want(5)
    check("--drop 'mtp.*' leaves" in said.err, said)
    CKPT.ok("convert", folder / "in", folder / "more.gguf", "--drop", "mtp.*")
    CKPT.ok("verify", out, folder / "more.gguf")


def test_rows(folder):
    """--vocab-size cuts and pads for llama.cpp as it does under transformers'
    names, whatever config.json says."""
    import gguf

    tiny("llama").save_pretrained(folder / "in")
    config = json.loads((folder / "in/config.json").read_text())
    rows = config["vocab_size"]
    for said in (rows, rows - 2):
        (folder / "in/config.json").write_text(
            json.dumps(config | {"vocab_size": said}))
        for asked in (rows, said) if said != rows else (rows - 1, rows + 5):
            out = folder / f"{said}_{asked}.gguf"
            CKPT.ok("convert", folder / "in", out, "--vocab-size", asked)
            shapes = {t.name: t.shape.tolist()[::-1]
                      for t in gguf.GGUFReader(out).tensors}
            check_equal(shapes["token_embd.weight"][0], asked, f"{said}")
    said = CKPT.run("convert", folder / "in", folder / "meg", "--to",
                    "megatron_torch_dist", "--vocab-size", rows + 5).want(5)
    check(f"--to hf --vocab-size {rows + 5}" in said.err, said)


# Of DeepSeek's: queries of full rank, groups of experts.
MLA = {"deepseek_v2, full queries": ("deepseek_v2", {"q_lora_rank": None}),
       "deepseek_v3, full queries": ("deepseek_v3", {"q_lora_rank": None}),
       "deepseek_v3, groups": ("deepseek_v3", {"n_group": 2, "topk_group": 1,
                                               "n_routed_experts": 8}),
       "deepseek_v3, yarn": ("deepseek_v3", {"rope_parameters": {
           "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
           "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707,
           "mscale_all_dim": 0.707, "original_max_position_embeddings": 16}})}


def test_mla(folder, case):
    name, more = MLA[case]
    tiny(name, **{**MORE[name], **more}).save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    CKPT.ok("verify", folder / "m.gguf")
    CKPT.ok("verify", folder / "in", folder / "m.gguf")
    CKPT.ok("convert", folder / "m.gguf", folder / "out", "--to", "safetensors")
    check_same(tensors(folder / "in"), tensors(folder / "out"))
    CKPT.ok("verify", folder / "in", folder / "out")
    check_near(logits(loaded(folder / "in"), 64),
               logits(loaded(folder / "out"), 64), "home")


def test_llama3(folder):
    """Llama 3's scaled rope goes into rope_freqs.weight, and comes home."""
    model = tiny("llama", max_position_embeddings=16384, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192})
    model.save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    CKPT.ok("convert", folder / "m.gguf", folder / "out", "--to", "safetensors")
    said = json.loads((folder / "out/config.json").read_text())
    check_equal(said["rope_scaling"]["factor"], 32.0, "factor")
    CKPT.ok("verify", folder / "in", folder / "m.gguf")
    check_near(logits(loaded(folder / "in"), 64),
               logits(loaded(folder / "out"), 64), "home")


ROPES = {
    "yarn": ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
              "original_max_position_embeddings": 16}, True),
    "yarn of other betas": ({"rope_type": "yarn", "factor": 4.0,
                             "rope_theta": 1e4, "beta_fast": 16.0,
                             "original_max_position_embeddings": 16}, True),
    "linear": ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, True),
    "another base": ({"rope_type": "default", "rope_theta": 123456.0}, True),
    "dynamic": ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                False),
    "yarn that scales": ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                          "attention_factor": 0.5,
                          "original_max_position_embeddings": 16}, False)}


def test_rope(folder, kind, name):
    """What the metadata say of a rope comes home; any other is refused."""
    rope, said = ROPES[kind]
    model = tiny(name, rope_parameters=rope)
    model.save_pretrained(folder / "in")
    result = CKPT.run("convert", folder / "in", folder / "m.gguf")
    if not said:
        check(result.code == 5 and "rope" in result.err, str(result))
        return
    check_equal(result.code, 0, str(result))
    CKPT.ok("convert", folder / "m.gguf", folder / "out", "--to", "safetensors")
    vocabulary = model.config.vocab_size
    check_near(logits(loaded(folder / "in"), vocabulary),
               logits(loaded(folder / "out"), vocabulary), "home")


def test_lora(folder, name):
    """A LoRA as llama.cpp's converter writes it, rows of q and k as its base
    has them, is added as peft adds it."""
    import gguf
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    base = tiny(name).float()
    base.save_pretrained(folder / "base")
    heads = {"q_proj": base.config.num_attention_heads,
             "k_proj": base.config.num_key_value_heads}
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
             "o_proj": "attn_output", "down_proj": "ffn_down"}
    model = get_peft_model(base, LoraConfig(
        r=4, lora_alpha=6, target_modules=list(names)))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.copy_(torch.randn(parameter.shape) / 4)
    writer = gguf.GGUFWriter(folder / "lora.gguf", name)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 6.0)
    for key, value in model.state_dict().items():
        if "lora_" not in key:
            continue
        words = key.split(".")
        module = next(word for word in words if word in names)
        layer = words[words.index("layers") + 1]
        a = "lora_A" in key
        if not a and module in heads and name == "llama":
            count = heads[module]
            value = (value.reshape(count, 2, value.shape[0] // count // 2, -1)
                     .swapaxes(1, 2).reshape(value.shape))
        writer.add_tensor(f"blk.{layer}.{names[module]}.weight.lora_"
                          f"{'a' if a else 'b'}", value.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    CKPT.ok("convert", folder / "base", folder / "out", "--to", "safetensors",
            "--adapter", folder / "lora.gguf")
    want = model.merge_and_unload().state_dict()
    for key, value in load_file(folder / "out/model.safetensors").items():
        far = (value - want[key]).abs().max()
        check(far < 1e-5, f"{key} differs by {far}")


def test_lora_out(folder, home):
    """A LoRA of peft's becomes what llama.cpp's converter makes of it, and is
    added to a base as peft's is."""
    CKPT.ok("convert", home, folder / "m.gguf", "--config-from", home / "base")
    want, keys = contents(home / "peer.gguf")
    got, ours = contents(folder / "m.gguf")
    check_equal(got, want, "factors")
    for name, value in keys.items():
        if name != "general.file_type":
            check_equal(ours.get(name), value, name)
    CKPT.ok("verify", folder / "m.gguf")
    CKPT.ok("convert", folder / "m.gguf", folder / "home", "--to",
            "safetensors", "--config-from", home / "base")
    back, model = tensors(folder / "home"), tensors(home)
    check_same({key: value for key, value in model.items()
                if "base_layer" not in key}, back)
    if home.name != "llama":
        return
    result = CKPT.run("convert", home, folder / "x.gguf")
    check(result.code == 5 and "--config-from" in result.err, str(result))
    # One alpha, factors alone: what else there is is refused by name.
    config = json.loads((home / "adapter_config.json").read_text())
    for change, word in (({"alpha_pattern": {"k_proj": 3}}, "alpha"),
                         ({"use_dora": True}, "DoRA"),
                         ({"lora_alpha": 0}, "alpha"),
                         ({"peft_type": "LOHA"}, "LOHA")):
        source = folder / f"{word}{len(change)}{next(iter(change))}"
        shutil.copytree(home, source)
        (source / "adapter_config.json").write_text(
            json.dumps({**config, **change}))
        result = CKPT.run("convert", source, folder / "x.gguf",
                          "--config-from", home / "base")
        check(result.code != 0 and word in result.err, str(result))
        check(not (folder / "x.gguf").exists(), "nothing is written")
    # Of rslora the same scale, said otherwise.
    source = folder / "root"
    shutil.copytree(home, source)
    (source / "adapter_config.json").write_text(
        json.dumps({**config, "use_rslora": True}))
    CKPT.ok("convert", source, folder / "r.gguf", "--config-from",
            home / "base")
    check_equal(contents(folder / "r.gguf")[1]["adapter.lora.alpha"], 12.0,
                "alpha of rslora")


def test_refused(folder):
    """What the architecture does not say: by the fact's name."""
    for change, word in (({"sliding_window": 8}, "window"),):
        model = tiny("mistral", **change)
        source = folder / word
        model.save_pretrained(source)
        result = CKPT.run("convert", source, folder / "m.gguf")
        check(result.code == 5 and word in result.err, str(result))
        check(not (folder / "m.gguf").exists(), "nothing is written")


def peer_files():
    return sorted((DATA / "gguf").glob("*.json"))


def check_decays(want, got, name):
    """-exp(x): torch's and the C library's differ in the last bit of one number
    in a hundred."""
    check_equal(got[:2], want[:2], name)
    ours, peers = (numpy.frombuffer(one[2], "i4").astype("i8")
                   for one in (got, want))
    check(abs(ours - peers).max() <= 1, f"{name} is other than llama.cpp's")


def test_peer(folder, facts):
    """llama.cpp's own file of a model, by the digests of its tensors."""
    import gguf
    from gguf_rules import digests

    said = json.loads(facts.read_text())
    source = facts.with_suffix(".gguf")
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors")
    check_equal(digests(tensors(folder / "out")), said["tensors"], "tensors")
    (folder / "in").mkdir()
    shutil.copy(folder / "out/model.safetensors", folder / "in")
    (folder / "in/config.json").write_text(json.dumps(said["config"]))
    CKPT.ok("verify", folder / "in", source)
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    want, got = (gguf.GGUFReader(path) for path in (source, folder / "m.gguf"))
    bytes_of = [{t.name: (t.tensor_type, tuple(t.shape), t.data.tobytes())
                 for t in reader.tensors} for reader in (want, got)]
    check_equal(sorted(bytes_of[1]), sorted(bytes_of[0]), "tensors of the file")
    for name, one in bytes_of[0].items():
        if name.endswith(".ssm_a"):
            check_decays(one, bytes_of[1][name], name)
        else:
            check(bytes_of[1][name] == one, f"{name} is other than llama.cpp's")
    keys = [{name: field.contents() for name, field in reader.fields.items()
             if not name.startswith(("GGUF.", "general.name", "general.size",
                                     "general.basename", "general.finetune",
                                     "general.organization"))}
            for reader in (want, got)]
    for name, value in keys[0].items():
        check(name in keys[1], f"llama.cpp's key {name} is missing")
        check_equal(keys[1][name], value, name)


# Wide enough for each type's blocks, with rows that are none.
WIDE = {"q8_0": {"hidden_size": 64, "intermediate_size": 80},
        "tq1_0": {"hidden_size": 256, "intermediate_size": 320},
        "tq2_0": {"hidden_size": 256, "intermediate_size": 320}}
QUANTIZED = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "tq1_0", "tq2_0")


def contents(path):
    """The tensors and the keys of a file, as the gguf package has them."""
    import gguf
    reader = gguf.GGUFReader(path)
    return ({t.name: (t.tensor_type.name, tuple(t.shape), t.data.tobytes())
             for t in reader.tensors},
            {name: field.contents() for name, field in reader.fields.items()
             if not name.startswith(("GGUF.", "general.name", "general.size",
                                     "general.basename", "general.finetune",
                                     "general.organization"))})


def blocks(numbers, kind, ternary):
    """A weight's numbers as llama.cpp's converter stores them."""
    from gguf import GGMLQuantizationType, quants
    try:
        if ternary:
            raise quants.QuantError
        return kind, quants.quantize(numbers, GGMLQuantizationType[kind])
    except quants.QuantError:
        return "F16", quants.quantize(numbers, GGMLQuantizationType.F16)


def test_quantized(folder, kind, name):
    """--quantize: the gguf package's own blocks of the numbers, by the
    converter's rule, from one file, from ranks and from a file of numbers; all
    of it within what the type allows."""
    import gguf
    from gguf import quants

    wide = WIDE.get(kind, WIDE["q8_0"])
    if name == "mixtral":
        wide = {**wide, "head_dim": wide["hidden_size"] // 4}
    tiny(name, **wide).save_pretrained(folder / "in")
    said = CKPT.ok("convert", folder / "in", folder / "m.gguf")
    check(said.err.splitlines()[-1].startswith("next: llama-quantize "),
          str(said))
    plain = CKPT.run("convert", folder / "in", folder / "q.gguf", "--quantize",
                     kind, "--dry-run", "--json")
    CKPT.ok("convert", folder / "in", folder / "q.gguf", "--quantize", kind)
    check_equal(json.loads(plain.out)["bytes_written"],
                (folder / "q.gguf").stat().st_size, "what a dry run says")
    reader = gguf.GGUFReader(folder / "m.gguf")
    got, keys = contents(folder / "q.gguf")
    check_equal(list(got), [t.name for t in reader.tensors], "names")
    count = 0
    for tensor in reader.tensors:
        numbers = quants.dequantize(tensor.data, tensor.tensor_type)
        want = "F32", numbers
        if tensor.tensor_type.name != "F32":
            want = blocks(numbers, kind.upper(), kind.startswith("tq") and
                          tensor.name in ("token_embd.weight", "output.weight"))
        count += want[0] == kind.upper()
        check_equal(got[tensor.name][0], want[0], tensor.name)
        check(got[tensor.name][2] == want[1].tobytes(),
              f"{tensor.name} is other than the gguf package's {want[0]}")
    check(count > 3, f"only {count} tensors are blocks")
    check_equal(keys["general.file_type"],
                gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"].value, "file type")
    # From numbers in a file of this format, and from ranks.
    CKPT.ok("convert", folder / "m.gguf", folder / "again.gguf", "--quantize",
            kind)
    check_equal(contents(folder / "again.gguf")[0], got, "from a file of numbers")
    CKPT.ok("convert", folder / "in", folder / "ranks", "--to",
            "megatron_torch_dist", "--tp", 2)
    CKPT.ok("convert", folder / "ranks", folder / "of_ranks.gguf",
            "--quantize", kind, "--tokenizer-from", "none")
    check_equal(contents(folder / "of_ranks.gguf")[0], got, "from ranks")
    CKPT.ok("verify", folder / "q.gguf")
    said = json.loads(CKPT.ok("verify", folder / "in", folder / "q.gguf",
                              "--json").out)
    check(said["ok"], str(said))
    check_equal([(one["type"], one["tensors"] >= count)
                 for one in said["rounded"]], [(kind.upper(), True)], "rounded")
    # A tensor of other numbers is no rounding.
    data = bytearray((folder / "q.gguf").read_bytes())
    place = data.index(got["blk.1.attn_v.weight"][2])
    data[place:place + 2] = b"\x00\x45"  # the first block's scale, or codes
    data[place + 2:place + 16] = bytes(14)
    (folder / "bad.gguf").write_bytes(data)
    result = CKPT.run("verify", folder / "in", folder / "bad.gguf")
    check(result.code == 1 and "more than rounding" in result.out, str(result))
    # Blocks of blocks: only where numbers are asked for.
    result = CKPT.run("convert", folder / "q.gguf", folder / "x.gguf",
                      "--quantize", "q8_0")
    check(result.code == 5 and "already" in result.err, str(result))


def test_peer_quantized(folder, facts):
    """llama.cpp's own file of a model with --outtype q8_0."""
    said = json.loads(facts.read_text())
    CKPT.ok("convert", facts.with_suffix(".gguf"), folder / "in", "--to",
            "safetensors")
    (folder / "in/config.json").write_text(json.dumps(said["config"]))
    CKPT.ok("convert", folder / "in", folder / "m.gguf", "--quantize", "q8_0")
    want, keys = contents(facts.with_name(f"{facts.stem}-q8_0.gguf"))
    got, ours = contents(folder / "m.gguf")
    check_equal(got, want, "tensors")
    for name, value in keys.items():
        check_equal(ours.get(name), value, name)


def written(path, kinds, shape=(4, 256), more=None):
    """A file whose matrices are of these types, by the gguf package."""
    import gguf
    from gguf import quants

    writer = gguf.GGUFWriter(path, "mystery")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (more or {}).items():
        writer.add_string(key, value)
    rng = numpy.random.default_rng(3)
    want = {}
    for kind in kinds:
        data = rng.standard_normal(shape).astype("f4")
        name = f"blk.0.{kind.name}.weight"
        packed = quants.quantize(data, kind)
        writer.add_tensor(name, packed, raw_dtype=kind)
        want[name] = quants.dequantize(packed, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return want


def packable():
    import gguf
    from gguf import quants

    found = []
    for kind in gguf.GGMLQuantizationType:
        try:
            quants.quantize(numpy.zeros((1, 256), "f4"), kind)
            found.append(kind)
        except NotImplementedError:
            pass
    return found


def test_blocks(folder):
    """Blocks are read as the gguf package reads them, in f32, and rounded with
    --dtype; written to GGUF again they stay as they are."""
    import gguf

    want = written(folder / "m.gguf", packable())
    for dtype, kind in ((None, torch.float32), ("bf16", torch.bfloat16)):
        out = folder / f"{dtype}.safetensors"
        CKPT.ok("convert", folder / "m.gguf", out, "--dialect", "keep",
                *(("--dtype", dtype) if dtype else ()))
        from safetensors.torch import load_file
        found = load_file(out)
        for name, numbers in want.items():
            tensor = torch.from_numpy(numbers.copy())
            if dtype:
                tensor = tensor.to(kind)
            elif found[name].dtype != torch.float32:
                tensor = tensor.to(found[name].dtype)
            check(torch.equal(found[name], tensor), f"{name}, {dtype}")
    CKPT.ok("convert", folder / "m.gguf", folder / "again.gguf")
    old, new = (gguf.GGUFReader(folder / name)
                for name in ("m.gguf", "again.gguf"))
    check_equal([(t.name, t.tensor_type, t.data.tobytes()) for t in new.tensors],
                [(t.name, t.tensor_type, t.data.tobytes()) for t in old.tensors],
                "blocks")
    CKPT.ok("verify", folder / "again.gguf")
    CKPT.ok("verify", folder / "m.gguf", folder / "again.gguf")
    # --dtype asks for numbers of a GGUF target, too.
    CKPT.ok("convert", folder / "m.gguf", folder / "f16.gguf", "--dtype", "f16")
    for tensor in gguf.GGUFReader(folder / "f16.gguf").tensors:
        check_equal(tensor.tensor_type.name, "F16", tensor.name)
        check(numpy.array_equal(tensor.data,
                                want[tensor.name].astype(numpy.float16)),
              f"numbers of {tensor.name}")
    # What is stored is shown, sealed and compared: not what it stands for.
    stored = sum(tensor.data.nbytes for tensor in old.tensors)
    shown = CKPT.inspect(folder / "m.gguf")
    check_equal((shown["bytes"], shown["files"]), (stored, 1), "inspect")
    check_equal({t["name"]: (t["stored"]["type"], t["stored"]["bytes"])
                 for t in shown["tensors"] if "stored" in t},
                {t.name: (t.tensor_type.name, t.data.nbytes)
                 for t in old.tensors
                 if t.tensor_type.name not in ("F32", "F16", "BF16")},
                "what is stored")
    said = CKPT.ok("verify", folder / "m.gguf").out
    check("no checksums\n" in said and "1 file," in said, said)
    (folder / "sealed").mkdir()
    shutil.copy(folder / "m.gguf", folder / "sealed")
    CKPT.ok("verify", folder / "sealed/m.gguf", "--seal")
    CKPT.ok("verify", folder / "sealed/m.gguf", "--finite")
    data = bytearray((folder / "m.gguf").read_bytes())
    data[-100] ^= 4
    (folder / "sealed/m.gguf").write_bytes(data)
    result = CKPT.run("verify", folder / "sealed/m.gguf")
    check(result.code == 1 and "digest" in result.out, str(result))


def test_parts(folder):
    """The parts of llama-gguf-split: any of them opens all; one that is lost is
    named."""
    import gguf

    tiny("llama").save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    whole = gguf.GGUFReader(folder / "m.gguf")
    for part in range(3):
        writer = gguf.GGUFWriter(
            folder / f"p-{part + 1:05}-of-00003.gguf", "llama")
        for name, field in whole.fields.items():
            if part == 0 and not name.startswith(("GGUF.",
                                                  "general.architecture")):
                writer.add_key_value(name, field.contents(), field.types[0])
        writer.add_key_value("split.no", part, gguf.GGUFValueType.UINT16)
        writer.add_key_value("split.count", 3, gguf.GGUFValueType.UINT16)
        writer.add_key_value("split.tensors.count", len(whole.tensors),
                             gguf.GGUFValueType.INT32)
        for number, tensor in enumerate(whole.tensors):
            if number % 3 == part:
                writer.add_tensor(tensor.name, tensor.data,
                                  raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    for part in (1, 3):
        out = folder / f"out{part}"
        CKPT.ok("convert", folder / f"p-{part:05}-of-00003.gguf", out, "--to",
                "safetensors")
        check_same(tensors(folder / "in"), tensors(out))
    (folder / "p-00002-of-00003.gguf").unlink()
    result = CKPT.run("inspect", folder / "p-00001-of-00003.gguf")
    check(result.code == 4 and "p-00002" in result.err, str(result))


def test_split(folder):
    """--max-shard-size writes the parts that the gguf package makes, to the
    byte; and they are one model again."""
    import gguf

    tiny("llama").save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    size = 20_000
    CKPT.ok("convert", folder / "in", folder / "parts", "--to", "gguf",
            "--max-shard-size", size)
    whole = gguf.GGUFReader(folder / "m.gguf")
    (folder / "peer").mkdir()
    writer = gguf.GGUFWriter(folder / "peer/model.gguf", "llama",
                             split_max_size=size)
    for name, field in whole.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(name, field.contents(), field.types[0])
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data,
                          raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = sorted(path.name for path in (folder / "peer").iterdir())
    check(len(names) > 2, str(names))
    check_equal(sorted(path.name for path in (folder / "parts").glob("*.gguf")),
                names, "names of parts")
    for name in names:
        check((folder / "parts" / name).read_bytes()
              == (folder / "peer" / name).read_bytes(), f"{name} is other")
    CKPT.ok("verify", folder / "parts")
    CKPT.ok("verify", folder / "in", folder / "parts")
    CKPT.ok("convert", folder / "parts", folder / "again.gguf")
    check((folder / "again.gguf").read_bytes()
          == (folder / "m.gguf").read_bytes(), "the parts as one file again")
    result = CKPT.run("convert", folder / "in", folder / "x.gguf",
                      "--max-shard-size", size)
    check(result.code == 2 and "directory" in result.err, str(result))


def changed(source, path, skip="", rename="", keys=None):
    """The file with a tensor left out or renamed, or with other keys."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith(("GGUF.", "general.architecture")):
            continue
        value = (keys or {}).get(name, field.contents())
        if value is not None:
            writer.add_key_value(name, value, field.types[0])
    for tensor in reader.tensors:
        if not skip or not tensor.name.startswith(skip):
            writer.add_tensor(
                "blk.0.other.weight" if tensor.name == rename else tensor.name,
                tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_whole(folder):
    """verify asks whether all of the model is there, by the metadata; what it
    does not call whole does not become a model."""
    tiny("llama").save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    for number, change in enumerate((
            {"skip": "blk.1."}, {"skip": "blk.1.attn_q"}, {"skip": "output."},
            {"skip": "output_norm"}, {"rename": "blk.0.attn_k.weight"},
            {"keys": {"llama.attention.head_count": 8}},
            {"keys": {"llama.attention.head_count_kv": 1}},
            {"keys": {"llama.block_count": 3}},
            {"keys": {"llama.embedding_length": 64}},
            {"keys": {"llama.feed_forward_length": 96}})):
        path = folder / f"{number}x.gguf"
        changed(folder / "m.gguf", path, **change)
        result = CKPT.run("verify", path)
        # Without a head the embedding is it.
        tied = change == {"skip": "output."}
        check_equal(result.code, 0 if tied else 1, f"{change}: {result}")
        result = CKPT.run("convert", path, folder / f"out{number}", "--to",
                          "safetensors")
        check_equal(result.code, 0 if tied else 5, f"{change}: {result}")
    changed(folder / "m.gguf", folder / "eps.gguf",
            keys={"llama.attention.layer_norm_rms_epsilon": None})
    result = CKPT.run("convert", folder / "eps.gguf", folder / "eps", "--to",
                      "safetensors")
    check(result.code == 5 and "epsilon" in result.err, str(result))


def test_broken(folder, seed):
    """Damaged headers: named, and never a crash or a hang."""
    want = written(folder / "m.gguf", packable()[:3], shape=(2, 256),
                   more={"general.name": "tiny"})
    check(want, "tensors")
    whole = (folder / "m.gguf").read_bytes()
    rng = random.Random(seed)
    header = 700  # bytes, about
    for _ in range(30):
        data = bytearray(whole)
        kind = rng.randrange(3)
        if kind == 0:
            data = data[:rng.randrange(len(data))]
        elif kind == 1:
            data[rng.randrange(header)] ^= 1 << rng.randrange(8)
        else:
            at = rng.randrange(header)
            data[at:at + 8] = struct.pack("<Q", rng.choice(
                (0, 2**63, 2**64 - 1, 2**32, 255)))
        (folder / "x.gguf").write_bytes(data)
        result = CKPT.run("verify", folder / "x.gguf")
        check(result.code in (0, 1, 3, 4, 5, 7), f"{result.code}: {result.err}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path[1:1] = [str(home) for home in HOMES]
    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "models"))
    sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "generators"))
    try:
        import gguf  # noqa: F401
        import transformers
        # The folder of loaders isn't where it looks for packages.
        transformers.utils.import_utils.PACKAGE_DISTRIBUTION_MAPPING.setdefault(
            "gguf", ["gguf"])
    except ImportError as error:
        raise Skip(str(error)) from error
    for model_type in TYPES:
        suite.add(model_type, test_model, model_type)
    for case in MLA:
        suite.add(case, test_mla, case)
    suite.add("llama 3's rope", test_llama3)
    suite.add("Qwen 3.5's sections and layers", test_qwen35)
    suite.add("rows", test_rows)
    suite.add("refused", test_refused)
    for kind in ROPES:
        for name in ("llama", "qwen2"):
            suite.add(f"{name}, {kind}", test_rope, kind, name)
    for name in ("llama", "qwen2", "qwen3", "gemma2"):
        suite.add(f"{name} with a LoRA", test_lora, name)
    for home in sorted((DATA / "gguf/lora").iterdir()):
        suite.add(f"{home.name}'s LoRA as llama.cpp's", test_lora_out, home)
    suite.add("blocks", test_blocks)
    suite.add("parts", test_parts)
    suite.add("split", test_split)
    suite.add("whole", test_whole)
    for seed in range(4):
        suite.add(f"broken {seed}", test_broken, seed)
    for kind in QUANTIZED:
        suite.add(f"{kind} of a llama", test_quantized, kind, "llama")
    suite.add("q8_0 of a mixtral", test_quantized, "q8_0", "mixtral")
    for facts in peer_files():
        suite.add(f"llama.cpp's {facts.stem}", test_peer, facts)
        if facts.with_name(f"{facts.stem}-q8_0.gguf").exists():
            suite.add(f"llama.cpp's {facts.stem} in q8_0", test_peer_quantized,
                      facts)
    suite.always += ("llama", "blocks", "llama 3's rope", "refused", "parts", "split", "llama with a LoRA", "llama's LoRA as llama.cpp's",
                     "whole", "broken 0", "q8_0 of a llama", "llama.cpp's llama in q8_0")


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
