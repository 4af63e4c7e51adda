#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encoders in Megatron-Core's own models: BertModel and T5Model, built from
what ckpt wrote, compute what transformers computes from the source, within 1e-5
of the largest. As in logits_test.py, args and flags are both tried, and
swapping two heads must show.

What BertModel can't be is shown, too: BERT's own tensors fit its places, but
what it computes from them is another model, until the residual is each norm's
output.
"""

import importlib.util
import os
import sys

from peer import Peer
from support import Failure, Skip, Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = PEER = None  # set by prepare

# What a tiny model has beside its kind's sizes, by class.
MODELS = {
    "bert": ("MegatronBertForPreTraining", {}),
    "bert, no binary head": ("MegatronBertForMaskedLM", {}),
    "bert, epsilon": ("MegatronBertForPreTraining", dict(layer_norm_eps=0.1)),
    "bert, four token types": ("MegatronBertForPreTraining",
                               dict(type_vocab_size=4)),
    "t5": ("T5ForConditionalGeneration", {}),
    "t5, silu": ("T5ForConditionalGeneration",
                 dict(feed_forward_proj="gated-silu")),
    "t5, relu": ("T5ForConditionalGeneration", dict(feed_forward_proj="relu")),
    "t5, wide heads": ("T5ForConditionalGeneration", dict(d_kv=12)),
    "t5, epsilon": ("T5ForConditionalGeneration",
                    dict(layer_norm_epsilon=0.1)),
    "t5, three and two layers": ("T5ForConditionalGeneration", dict(
        num_layers=3, num_decoder_layers=2)),
    "t5, buckets": ("T5ForConditionalGeneration", dict(
        relative_attention_num_buckets=6, relative_attention_max_distance=9)),
    "mt5": ("MT5ForConditionalGeneration", {}),
}
INPUTS = dict(
    tokens=[[(i * 7 + j * 3) % 61 for i in range(20)] for j in range(2)],
    types=[[int(i > 8) for i in range(20)] for _ in range(2)],
    targets=[[(i * 5 + j) % 61 for i in range(12)] for j in range(2)],
    mask=[[1] * 20, [1] * 13 + [0] * 7])


def sizes_of(kind):
    sizes = dict(vocab_size=61)
    if "Bert" in kind:
        return dict(sizes, hidden_size=32, num_hidden_layers=2,
                    num_attention_heads=4, intermediate_size=48,
                    max_position_embeddings=40)
    return dict(sizes, d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=2,
                relative_attention_num_buckets=8,
                relative_attention_max_distance=16,
                feed_forward_proj="gated-gelu", tie_word_embeddings=False)


def made(kind, changes):
    import transformers

    kind = getattr(transformers, kind)
    return made_of(kind, kind.config_class(**{**sizes_of(kind.__name__),
                                              **changes}))


def made_of(kind, config):
    """A tiny model, every weight random; T5 with a head of its own."""
    import torch
    from families2026_models import with_weights

    model = kind(config).float().eval()
    if "T5" in kind.__name__ and not getattr(config, "scale_decoder_outputs",
                                             False):
        model.lm_head.weight = torch.nn.Parameter(
            torch.empty_like(model.lm_head.weight))
    return with_weights(model, 0)


def outputs_of(model):
    """As a list: logits where the mask is set, and those of the binary head."""
    import torch

    inputs = {k: torch.tensor(v) for k, v in INPUTS.items()}
    with torch.no_grad():
        if hasattr(model, "decoder"):
            return [model(input_ids=inputs["tokens"],
                          attention_mask=inputs["mask"],
                          decoder_input_ids=inputs["targets"]).logits]
        got = model(input_ids=inputs["tokens"], attention_mask=inputs["mask"],
                    token_type_ids=inputs["types"])
    if hasattr(got, "seq_relationship_logits"):
        return [counted(got.prediction_logits), got.seq_relationship_logits]
    return [counted(got.logits)]


def counted(logits):
    import torch

    return logits[torch.tensor(INPUTS["mask"]) > 0]


def asked(folder, **job):
    import torch

    out = folder / "outputs.pt"
    wrong = PEER.ask(dict(job, **INPUTS, out=str(out)))
    if wrong:
        raise Failure(wrong)
    return torch.load(out)


def off(got, want):
    got = got[..., :want.shape[-1]]
    check(got.shape == want.shape, f"{got.shape}, not {want.shape}")
    return float((got - want).abs().max() / want.abs().max())


def swap_heads(model):
    import torch

    ends = ("self.query.weight", "Attention.q.weight")
    for name, value in model.state_dict().items():
        if name.endswith(ends):
            with torch.no_grad():
                value[:16] = torch.cat([value[8:16], value[:8]])


def computes(folder, name, way, swap):
    kind, changes = MODELS[name]
    model = made(kind, changes)
    want = outputs_of(model)
    if swap:
        swap_heads(model)
    model.save_pretrained(folder / "source")
    said = CKPT.ok("convert", folder / "source", folder / "there", "--to",
                   "megatron_torch_dist", "--json", "--no-fsync",
                   "--strict-config").json()
    program = "BertModel" if "Bert" in kind else "T5Model"
    check_equal(said["load_into"], {"program": program, "lacks": {}}, "into")
    job = dict(flags=None, code={})
    if way == "flags":
        job = dict(flags=said["load_with"], code=said["load_in_code"])
    got = asked(folder, model=program, path=str(folder / "there"), **job)
    got = list(got) if isinstance(got, tuple) else [got]
    check_equal(len(got), len(want), "outputs")
    if program == "BertModel":
        got[0] = counted(got[0])
    check(not got[0][..., 61:].any(), "rows that pad the vocabulary are not 0")
    distance = max(map(off, got, want))
    if swap:
        check(distance > 1e-3, f"swapped heads don't show: {distance:.2g}")
    else:
        check(distance <= 1e-5, f"outputs are off by {distance:.2g}")


def goes_home(folder, name):
    """Bit for bit, over ranks and stages, with config.json and without; what
    comes back without it is the same model to transformers."""
    kind, changes = MODELS[name]
    model = made(kind, changes)
    source = folder / "source"
    model.save_pretrained(source)
    want = tensors_of(source)
    for tp, target in ((1, "megatron_torch_dist"), (2, "megatron_torch_dist"),
                       (2, "megatron_legacy")):
        there, back = folder / f"{target}{tp}", folder / f"back-{target}{tp}"
        CKPT.ok("convert", source, there, "-q", "--to", target, "--tp", tp,
                "--no-fsync", "--strict-config")
        CKPT.ok("verify", source, there, "-q")
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"{target}, tp {tp}")
        check_equal(config_of(back), config_of(source), "config.json")
    there = folder / "megatron_torch_dist2"
    CKPT.ok("reshard", there, folder / "whole", "-q", "--tp", 1, "--no-fsync")
    CKPT.ok("verify", folder / "whole", folder / "megatron_torch_dist1", "-q")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    alone = folder / "alone"
    CKPT.ok("convert", there, alone, "-q", "--to", "safetensors", "--no-fsync")
    compare(tensors_of(alone), want, "without config.json")
    check_equal(config_of(alone)["architectures"],
                config_of(source)["architectures"], "class")
    again = outputs_of(type(model).from_pretrained(alone).float().eval())
    distance = max(map(off, again, outputs_of(model)))
    check(distance <= 1e-6, f"another model came home: {distance:.2g}")
    CKPT.ok("verify", source, alone, "-q")


# Args of Megatron's own runs, which name no family.
RUN = dict(
    num_layers=2, encoder_num_layers=2, hidden_size=32, num_attention_heads=4,
    num_query_groups=1, group_query_attention=False, kv_channels=8,
    ffn_hidden_size=48, max_position_embeddings=40, padded_vocab_size=64, vocab_size=None,
    norm_epsilon=1e-5, layernorm_epsilon=1e-5,
    untie_embeddings_and_output_weights=False, add_bias_linear=True,
    position_embedding_type="learned_absolute", bias_gelu_fusion=False,
    bert_binary_head=True, decoder_num_layers=None, tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1, data_parallel_size=1)
RUNS = {
    "megatron_bert": ("BertModel", {}),
    "t5": ("T5Model", dict(
        decoder_num_layers=3, position_embedding_type="relative",
        relative_attention_num_buckets=8, relative_attention_max_distance=16,
        add_bias_linear=False, swiglu=True, normalization="RMSNorm",
        softmax_scale=1.0, untie_embeddings_and_output_weights=True)),
}


def comes_from_megatron(folder, family):
    """What Megatron saves itself is the same model to transformers."""
    import transformers

    program, changes = RUNS[family]
    saved, home = folder / "saved", folder / "home"
    got = asked(folder, model=program, save=str(saved),
                args={**RUN, **changes})
    CKPT.ok("convert", saved, home, "-q", "--to", "safetensors", "--no-fsync",
            "--family", family)
    kind = getattr(transformers, config_of(home)["architectures"][0])
    model, told = kind.from_pretrained(home, output_loading_info=True)
    check(not any(told.values()), told)
    want = outputs_of(model.float().eval())
    got = list(got) if isinstance(got, tuple) else [got]
    if program == "BertModel":
        got[0] = counted(got[0])
    distance = max(map(off, got, want))
    check(distance <= 1e-5, f"outputs are off by {distance:.2g}")


def is_not_bert(folder):
    """BERT's residual is each norm's output. BertModel's is its input, even
    with apply_residual_connection_post_layernorm."""
    model = made("BertForPreTraining", {})
    want = outputs_of(model)[0]
    source = folder / "source"
    model.save_pretrained(source)
    config = dict(
        num_layers=2, hidden_size=32, num_attention_heads=4, kv_channels=8,
        ffn_hidden_size=48, padded_vocab_size=61, max_position_embeddings=40,
        add_bias_linear=True, layernorm_epsilon=1e-12, bias_gelu_fusion=False,
        bert_binary_head=True, untie_embeddings_and_output_weights=False)
    before, after, behind = (counted(one) for one in asked(
        folder, model="bert", weights=str(source / "model.safetensors"),
        config=config))
    check(off(behind, want) <= 1e-5, "the tensors are not BERT's")
    check(off(before, want) > 1e-2, "BertModel is BERT")
    check((after == before).all(), "the switch does something")
    refused = CKPT.run("convert", source, folder / "there", "--to",
                       "megatron_torch_dist", "--no-fsync").want(5)
    check("its norms stand behind attention and MLP" in refused.err, refused.err)
    check(not (folder / "there").exists(), "something was written")


# A tower by itself: Megatron's subtype, the part of CLIPViTModel that it lacks.
TOWERS = {
    "CLIPVisionModel": ("clip", ["post_layernorm"]),
    "SiglipVisionModel": ("siglip", ["head"]),
    "ViTModel": ("internvit", ["layernorm", "pooler"]),
}


def is_not_a_tower(folder, kind):
    """CLIPViTModel computes a tower's last layer. It has no place for what
    comes after it, and none for a text model."""
    import torch
    import transformers
    from families2026_models import with_weights

    subtype, lacks = TOWERS[kind]
    kind = getattr(transformers, kind)
    model = with_weights(kind(kind.config_class(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, image_size=32, patch_size=8, hidden_act="gelu",
        layer_norm_eps=1e-5)).float().eval(), 0)
    pixels = torch.arange(3 * 32 * 32).reshape(1, 3, 32, 32) % 17 / 9 - 1
    with torch.no_grad():
        got = model(pixel_values=pixels, output_hidden_states=True)
    want = got.hidden_states[-1]
    if subtype == "siglip":
        want = got.last_hidden_state
    source = folder / "source"
    model.save_pretrained(source)
    config = dict(num_layers=2, hidden_size=32, num_attention_heads=4,
                  kv_channels=8, ffn_hidden_size=48, add_bias_linear=True,
                  layernorm_epsilon=1e-5, bias_gelu_fusion=False)
    out, left = asked(folder, model="CLIPViTModel", subtype=subtype,
                      weights=str(source / "model.safetensors"), config=config,
                      pixels=pixels.tolist())
    check(off(out, want) <= 1e-5, f"another tower: {off(out, want):.2g}")
    parts = {next((part for part in name.split(".") if part in lacks), name)
             for name in left}
    check_equal(sorted(parts), sorted(lacks), "what has no place")
    refused = CKPT.run("convert", source, folder / "there", "--to",
                       "megatron_torch_dist", "--no-fsync").want(5)
    check("CLIPViTModel" in refused.err, refused.err)
    check(not (folder / "there").exists(), "something was written")


def scaled(folder):
    """T5's first generation scales the decoder's output."""
    model = made("T5ForConditionalGeneration",
                 dict(tie_word_embeddings=True, feed_forward_proj="relu"))
    model.save_pretrained(folder / "source")
    check("lm_head.weight" not in tensors_of(folder / "source"), "a head")
    CKPT.ok("verify", folder / "source")  # transformers ties what is not there
    refused = CKPT.run("convert", folder / "source", folder / "there", "--to",
                       "megatron_torch_dist", "--no-fsync").want(5)
    check("T5Model has no such scale" in refused.err, refused.err)
    check(not (folder / "there").exists(), "something was written")


def tied(folder):
    """As transformers 5 makes it anew: the embedding is the head, no scale.
    config.json says the same of a head of its own, so it is asked for."""
    import transformers
    from families2026_models import with_weights

    kind = transformers.T5ForConditionalGeneration
    model = with_weights(kind(kind.config_class(
        **sizes_of(kind.__name__))).float().eval(), 0)
    source = folder / "source"
    model.save_pretrained(source)
    want = tensors_of(source)
    check("lm_head.weight" not in want, "it has a head of its own")
    CKPT.ok("verify", source)
    options = ("--to", "megatron_torch_dist", "--no-fsync")
    refused = CKPT.run("convert", source, folder / "no", *options).want(5)
    check("--set tie=true" in refused.err, refused.err)
    check("--allow-missing" not in refused.err, refused.err)
    check(not (folder / "no").exists(), "something was written")
    for tp in (2, 1):
        there, back = folder / f"there{tp}", folder / f"back{tp}"
        CKPT.ok("convert", source, there, "-q", "--tp", tp, "--set",
                "tie=true", *options)
        CKPT.ok("verify", source, there, "-q")
        for path in list(there.rglob("*config.json")):
            path.unlink()
        CKPT.ok("convert", there, back, "-q", "--to", "safetensors",
                "--no-fsync")
        compare(tensors_of(back), want, f"tp {tp}")
    again = kind.from_pretrained(back).float().eval()
    check_equal(outputs_of(again)[0].tolist(), outputs_of(model)[0].tolist(),
                "what comes home")
    got = asked(folder, model="T5Model", path=str(there), flags=None, code={})
    distance = off(got, outputs_of(model)[0])
    check(distance <= 1e-5, f"outputs are off by {distance:.2g}")


def headless(folder):
    """The same of another family: what is missing is its head."""
    from safetensors.torch import load_file, save_file

    model = models_of("facts_models")
    source = folder / "source"
    model.model_of(model.config_of("llama")).save_pretrained(source)
    file = source / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file, {"format": "pt"})
    options = ("--to", "megatron_torch_dist", "--no-fsync")
    refused = CKPT.run("convert", source, folder / "no", *options).want(5)
    check("--set tie=true" in refused.err, refused.err)
    CKPT.ok("convert", source, folder / "there", "-q", "--set", "tie=true",
            *options)
    for path in list((folder / "there").rglob("*config.json")):
        path.unlink()
    CKPT.ok("convert", folder / "there", folder / "back", "-q", "--to",
            "safetensors", "--no-fsync")
    check_equal(config_of(folder / "back")["tie_word_embeddings"], True, "tied")
    del tensors["model.norm.weight"]
    save_file(tensors, file, {"format": "pt"})
    refused = CKPT.run("convert", source, folder / "no", *options).want(5)
    check("--set tie=true" not in refused.err, refused.err)


def copies(folder):
    """Older files store what is shared twice; a copy that differs is
    refused."""
    from safetensors.torch import load_file, save_file

    for kind, names in (
            ("MegatronBertForPreTraining", {
                "cls.predictions.decoder.weight":
                    "bert.embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias"}),
            ("MT5ForConditionalGeneration", {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight"})):
        source = folder / kind
        made(kind, {}).save_pretrained(source)
        file, want = source / "model.safetensors", tensors_of(source)
        had = load_file(file)
        twice = dict(had, **{to: had[of].clone() for to, of in names.items()})
        save_file(twice, file, {"format": "pt"})
        there = folder / f"there-{kind}"
        CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
                "--no-fsync")
        CKPT.ok("convert", there, folder / f"back-{kind}", "-q", "--to",
                "safetensors", "--no-fsync")
        compare(tensors_of(folder / f"back-{kind}"), want, kind)
        for name in names:
            save_file(dict(twice, **{name: twice[name] + 1}), file,
                      {"format": "pt"})
            refused = CKPT.run("convert", source, folder / "no", "-q", "--to",
                               "megatron_torch_dist", "--no-fsync").want(5)
            check(name in refused.err, refused.err)
            check(not (folder / "no").exists(), "something was written")


def fewer_layers(folder, order):
    """Encoder and decoder are cut alike, and both numbers follow: in
    transformers' config, in Megatron's args, and in args that were already
    cut."""
    model = made("T5ForConditionalGeneration", dict(
        num_layers=2, num_decoder_layers=3 if order == "0-1" else 2))
    source, there = folder / "source", folder / "there"
    model.save_pretrained(source)
    CKPT.ok("convert", source, there, "-q", "--to", "megatron_torch_dist",
            "--no-fsync")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    CKPT.ok("reshard", there, folder / "cut", "-q", "--layers", order,
            "--no-fsync")
    results = {"of args": (there, order), "of cut args": (folder / "cut", None)}
    if order == "0-1":
        results["of transformers"] = (source, order)
    for name, (start, layers) in results.items():
        back = folder / name
        CKPT.ok("convert", start, back, "-q", "--to", "safetensors",
                "--no-fsync", *(("--layers", layers) if layers else ()))
        count = 2 if order == "0-1" else 3
        config = config_of(back)
        check_equal((config["num_layers"], config["num_decoder_layers"]),
                    (count, count), name)
        loaded, told = type(model).from_pretrained(back,
                                                   output_loading_info=True)
        check(not any(told.values()), f"{name}: {told}")
        compare(tensors_of(back), tensors_of(folder / "of args"), name)


def prepare(suite, ckpt):
    global CKPT, PEER
    CKPT, PEER = ckpt, Peer("encoders_peer.py")
    if importlib.util.find_spec("megatron") is None:
        print("skipped: megatron-core is not installed")
        sys.exit(77)
    try:
        models_of("families2026_models")
    except Skip as skip:
        print("skipped:", skip)
        sys.exit(77)
    for name in MODELS:
        suite.add(f"{name}, home", goes_home, name)
        suite.add(f"{name}, by flags", computes, name, "flags", False)
        if name in ("bert", "t5", "mt5"):
            suite.add(f"{name}, by args", computes, name, "args", False)
            suite.add(f"{name}, heads swapped", computes, name, "args", True)
    for family in RUNS:
        suite.add(f"{family}, from Megatron", comes_from_megatron, family)
    suite.add("BERT is not BertModel's", is_not_bert)
    suite.add("T5 of the first generation", scaled)
    suite.add("T5 with the embedding as its head", tied)
    suite.add("Llama without a head", headless)
    for kind in TOWERS:
        suite.add(f"{kind} is not CLIPViTModel's", is_not_a_tower, kind)
    for order in ("0-1", "0,0,1"):
        suite.add(f"t5, layers {order}", fewer_layers, order)
    suite.add("copies of what is shared", copies)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
