#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders that a library saved, converted and opened by that library again: it
looks for its own file names, in its own tree. Components and pipelines of
diffusers, modules of sentence-transformers, models of transformers, adapters of
peft; single files, shards, pickles and variants of each.
"""

import json
import os
import sys
from pathlib import Path

from support import Suite, check, check_equal

HOMES = [Path(sys.prefix) / name for name in ("hub_loaders", "transformers_5.12.1")]
CKPT = None  # set by prepare
# How a library saves: words of save_pretrained.
FORMS = {"one file": {}, "shards": {"max_shard_size": "20KB"},
         "pickle": {"safe_serialization": False},
         "pickled shards": {"safe_serialization": False,
                            "max_shard_size": "20KB"},
         "variant": {"variant": "fp16"},
         "shards of a variant": {"variant": "fp16", "max_shard_size": "20KB"}}
TARGETS = {"safetensors": ("--to", "safetensors"),
           "shards": ("--to", "safetensors", "--max-shard-size", "20KB"),
           "torch": ("--to", "torch"),
           "bf16": ("--to", "safetensors", "--dtype", "bf16")}


def unet():
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(8, 16), norm_num_groups=4, cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"))


def vae():
    from diffusers import AutoencoderKL

    return AutoencoderKL(block_out_channels=(8,), norm_num_groups=4,
                         latent_channels=4, sample_size=8)


def text():
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(CLIPTextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=2))


MODELS = {"unet": unet, "vae": vae, "text encoder": text, "llama": llama}
TRANSFORMERS = ("text encoder", "llama")


def seeded(make):
    import torch

    torch.manual_seed(3)
    return make().eval()


def files(folder):
    """Weights and their indexes, wherever they are in the folder."""
    return sorted(path.relative_to(folder).as_posix()
                  for path in folder.rglob("*")
                  if path.suffix in (".safetensors", ".bin")
                  or path.name.endswith((".index.json", "fp16.json")))


def same(found, wanted, dtype=None):
    """Two modules' state dicts, bit for bit."""
    import torch

    found, wanted = found.state_dict(), wanted.state_dict()
    check_equal(sorted(found), sorted(wanted), "the module's names")
    for name, tensor in wanted.items():
        if dtype and tensor.is_floating_point():
            tensor = tensor.to(getattr(torch, dtype))
        check(torch.equal(found[name].to(tensor.dtype), tensor), name)


def opened(kind, folder, **words):
    """With nothing missing, unexpected or made up."""
    found, said = kind.from_pretrained(folder, output_loading_info=True,
                                       local_files_only=True, **words)
    lacks = {key: value for key, value in said.items()
             if key.endswith("_keys") and value}
    check(not lacks, f"{kind.__name__}: {lacks}")
    return found


def save(model, folder, form):
    words = dict(FORMS[form])
    model.save_pretrained(folder, **words)
    check_equal(any(".bin" in name for name in files(folder)),
                not words.get("safe_serialization", True), "pickles")


def test_model(folder, name, form, target):
    model = seeded(MODELS[name])
    if "variant" in FORMS[form]:
        model = model.half()
    save(model, folder / "in", form)
    out = folder / "out"
    CKPT.ok("convert", folder / "in", out, *TARGETS[target])
    again = {} if "variant" not in FORMS[form] or target == "bf16" \
        else {"variant": "fp16"}
    if target == "torch":
        if "Llama" in type(model).__name__ or "CLIP" in type(model).__name__:
            again["use_safetensors"] = False
        check(all(".bin" in one for one in files(out)), f"{files(out)}")
    same(opened(type(model), out, **again), model,
         "bfloat16" if target == "bf16" else None)
    CKPT.ok("verify", out)
    if target != "bf16":
        CKPT.ok("verify", folder / "in", out)
    # Two files that a loader would take are never side by side.
    stems = {one.split("-0")[0].split(".")[0] for one in files(out)}
    check_equal(len(stems), 1, f"names of weights in {files(out)}")


def pipeline():
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    return StableDiffusionPipeline(
        vae=seeded(vae), text_encoder=seeded(text), unet=seeded(unet),
        tokenizer=None, scheduler=DDIMScheduler(), safety_checker=None,
        feature_extractor=None, requires_safety_checker=False)


PARTS = ("vae", "text_encoder", "unet")


def test_pipeline(folder, form, target):
    """Each component in its folder, and the rest of the tree beside them."""
    from diffusers import StableDiffusionPipeline
    import torch

    whole = pipeline()
    words = dict(FORMS[form])
    if "variant" in words:
        whole = whole.to(torch.float16)
    whole.save_pretrained(folder / "in", **words)
    out = folder / "out"
    CKPT.ok("convert", folder / "in", out, *TARGETS[target])
    again = {}
    if "variant" in words and target != "bf16":
        again = {"variant": "fp16", "torch_dtype": torch.float16}
    found = StableDiffusionPipeline.from_pretrained(
        out, tokenizer=None, safety_checker=None, feature_extractor=None,
        local_files_only=True, **again)
    for part in PARTS:
        same(getattr(found, part), getattr(whole, part),
             "bfloat16" if target == "bf16" else None)
    check_equal(*({key: value for key, value in one.scheduler.config.items()
                   if not key.startswith("_")} for one in (found, whole)),
                "scheduler")
    CKPT.ok("verify", out)
    if target != "bf16":
        CKPT.ok("verify", folder / "in", out)
    if target == "bf16":
        config = json.loads((out / "text_encoder/config.json").read_text())
        check_equal(config["dtype"], "bfloat16", "the component's dtype")


def test_part_of_pipeline(folder):
    """A component alone, and names that are of none."""
    pipeline().save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "one", "--to", "safetensors",
            "--keys", "unet.*")
    check_equal(files(folder / "one"),
                ["unet/diffusion_pytorch_model.safetensors"], "of one part")
    CKPT.run("convert", folder / "in", folder / "two", "--to", "safetensors",
             "--rename", "unet.=other.").want(5)
    CKPT.ok("convert", folder / "in", folder / "all.safetensors")


def sentences(folder):
    """Bert, a pooling, a dense layer; a tokenizer of letters."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer
    import torch

    torch.manual_seed(5)
    base = folder / "bert"
    BertModel(BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24)).save_pretrained(base)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
             *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(base)
    first = models.Transformer(str(base), max_seq_length=16)
    pooling = models.Pooling(16)
    dense = models.Dense(16, 8)
    return SentenceTransformer(modules=[first, pooling, dense], device="cpu")


def test_sentences(folder, safe, target):
    from sentence_transformers import SentenceTransformer

    model = sentences(folder)
    model.save_pretrained(str(folder / "in"), safe_serialization=safe)
    out = folder / "out"
    CKPT.ok("convert", folder / "in", out, *TARGETS[target])
    found = SentenceTransformer(str(out), device="cpu", local_files_only=True)
    check_equal([type(one).__name__ for one in found],
                ["Transformer", "Pooling", "Dense"], "its modules")
    same(found.float(), model, "bfloat16" if target == "bf16" else None)
    CKPT.ok("verify", out)
    if target != "bf16":
        CKPT.ok("verify", folder / "in", out)
        given = ["a b c", "the end"]
        check((found.encode(given) == model.encode(given)).all(), "embeddings")


def test_adapter(folder, target):
    from peft import LoraConfig, PeftModel, get_peft_model
    import torch

    torch.manual_seed(4)
    tuned = get_peft_model(seeded(llama), LoraConfig(
        r=2, target_modules=["q_proj"], init_lora_weights=False))
    tuned.save_pretrained(folder / "in")
    CKPT.ok("convert", folder / "in", folder / "out", *TARGETS[target])
    found = PeftModel.from_pretrained(seeded(llama), folder / "out")
    same(found, tuned, "bfloat16" if target == "bf16" else None)


def lora_of(model, folder, dialect):
    """A LoRA of its attention in kohya's names, or as diffusers saves one."""
    from diffusers import StableDiffusionPipeline
    from peft import LoraConfig, get_peft_model_state_dict
    from safetensors.torch import save_file
    import torch

    torch.manual_seed(6)
    if dialect == "diffusers":
        model.add_adapter(LoraConfig(
            r=2, lora_alpha=3, init_lora_weights=False,
            target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
        StableDiffusionPipeline.save_lora_weights(
            folder, unet_lora_layers=get_peft_model_state_dict(model),
            unet_lora_adapter_metadata=model.peft_config["default"].to_dict())
        model.delete_adapters("default")
        return folder / "pytorch_lora_weights.safetensors"
    state = {}
    for name, module in model.named_modules():
        if name.endswith(("to_q", "to_k", "to_v", "to_out.0")):
            key = "lora_unet_" + name.replace(".", "_")
            rows, columns = module.weight.shape
            state |= {key + ".lora_down.weight": torch.randn(2, columns) / 8,
                      key + ".lora_up.weight": torch.randn(rows, 2) / 8,
                      key + ".alpha": torch.tensor(3.0)}
    save_file(state, folder / "kohya.safetensors")
    return folder / "kohya.safetensors"


def test_lora(folder, dialect):
    """Added to a unet: what diffusers' own fuse_lora makes."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline, \
        UNet2DConditionModel
    import torch

    model = seeded(unet)
    model.save_pretrained(folder / "base")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = lora_of(model, folder, dialect)
    whole = StableDiffusionPipeline(
        vae=None, text_encoder=None, unet=model, tokenizer=None,
        scheduler=DDIMScheduler(), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False)
    whole.load_lora_weights(str(path.parent), weight_name=path.name)
    whole.fuse_lora()
    whole.unload_lora_weights()
    CKPT.ok("convert", folder / "base", folder / "out", "--to", "safetensors",
            "--adapter", path)
    found = opened(UNet2DConditionModel, folder / "out").state_dict()
    wanted = whole.unet.state_dict()
    check_equal(sorted(found), sorted(wanted), "names")
    added = 0
    for name, tensor in wanted.items():
        # The library's own sums may be in another order.
        check(torch.allclose(found[name], tensor, rtol=0, atol=1e-6), name)
        added += not torch.equal(tensor, before[name])
    check(added >= 8, f"{added} weights differ from the base's")


def test_open_clip(folder):
    """Its loader tries open_clip_model.safetensors before the pickle."""
    from safetensors.torch import load_file
    import torch

    state = {"visual.conv1.weight": torch.rand(2, 3, 4, 4)}
    (folder / "in").mkdir()
    torch.save(state, folder / "in/open_clip_pytorch_model.bin")
    (folder / "in/open_clip_config.json").write_text("{}")
    CKPT.ok("convert", folder / "in", folder / "out", "--to", "safetensors")
    check_equal(files(folder / "out"), ["open_clip_model.safetensors"], "names")
    found = load_file(folder / "out/open_clip_model.safetensors")
    check((found["visual.conv1.weight"] == state["visual.conv1.weight"]).all(),
          "its weight")


def test_index_of_pickles(folder):
    """An index of safetensors files that names what torch.save wrote."""
    import torch

    model = seeded(llama)
    source = folder / "in"
    model.config.save_pretrained(source)
    state = model.state_dict()
    files_of = {name: f"hf_model_{1 + at % 2:04}_2.pt"
                for at, name in enumerate(state)}
    for file in set(files_of.values()):
        torch.save({name: state[name] for name in state
                    if files_of[name] == file}, source / file)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files_of}))
    for target in ("safetensors", "torch"):
        out = folder / target
        CKPT.ok("convert", source, out, "--to", target)
        same(opened(type(model), out), model)
        CKPT.ok("verify", source, out)
    next(source.glob("*1_2.pt")).unlink()
    CKPT.run("verify", source).want(1)


def test_tokenizer_of_a_step(folder):
    """Megatron keeps a tokenizer in a folder of the step; AutoTokenizer looks
    for it in the model's."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = seeded(llama)
    model.save_pretrained(folder / "hf")
    CKPT.ok("convert", folder / "hf", folder / "mc", "--to",
            "megatron_torch_dist")
    [step] = (path.parent for path in (folder / "mc").rglob("common.pt"))
    one = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    one.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=one, unk_token="?").save_pretrained(
            step / "tokenizer")
    CKPT.ok("convert", folder / "mc", folder / "back", "--to", "safetensors")
    back = transformers.AutoTokenizer.from_pretrained(folder / "back")
    check_equal(back("b a b")["input_ids"], [1, 0, 1], "tokens")
    CKPT.ok("reshard", folder / "mc", folder / "tp2", "--tp", 2)
    [step] = (path.parent for path in (folder / "tp2").rglob("common.pt"))
    check((step / "tokenizer/tokenizer.json").is_file(), "in Megatron's step")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for home in HOMES:
        if not home.is_dir():
            raise SystemExit(f"skipped: {home.name} is not installed")
        sys.path.insert(0, str(home))
    os.environ |= {"HF_HUB_OFFLINE": "1", "DIFFUSERS_VERBOSITY": "error",
                   "TRANSFORMERS_VERBOSITY": "error"}
    import torch

    torch.set_num_threads(1)
    import diffusers  # noqa: F401
    import sentence_transformers  # noqa: F401

    for name in MODELS:
        for form, words in FORMS.items():
            # transformers 5 pickles nothing, whatever it is asked for.
            if "safe_serialization" in words and name in TRANSFORMERS:
                continue
            for target in TARGETS:
                suite.add(f"{name}, {form}, to {target}", test_model, name,
                          form, target)
    for target in TARGETS:
        for form in FORMS:
            suite.add(f"pipeline, {form}, to {target}", test_pipeline, form,
                      target)
        for safe in (True, False):
            suite.add(f"sentences, {'' if safe else 'pickled, '}to {target}",
                      test_sentences, safe, target)
        if target != "shards":
            suite.add(f"adapter to {target}", test_adapter, target)
    suite.add("part of a pipeline", test_part_of_pipeline)
    for dialect in ("kohya", "diffusers"):
        suite.add(f"LoRA of {dialect}", test_lora, dialect)
    suite.add("open_clip", test_open_clip)
    suite.add("a tokenizer of a step", test_tokenizer_of_a_step)
    suite.add("an index of pickles", test_index_of_pickles)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
