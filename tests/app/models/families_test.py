#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt between dialects: what the peers make of a model in each of them, and
the way back, over containers and topologies.

The goldens' expected_mcore (Megatron-Bridge), expected_meta,
expected_fairseq2 and expected_olmo_core are other tools' renderings of the
model in ckpt/, which transformers wrote.
"""

import json
import random
import shutil

from support import (
    DATA, Suite, check, check_equal, compare, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "hf"
DIALECTS = ("mcore", "meta", "fairseq2", "olmo_core")
MOE = ("mixtral_f32", "qwen2_moe_bf16", "qwen3_moe_bf16", "olmoe_bf16",
       "deepseek_v2_bf16", "deepseek_v2_lite_bf16", "deepseek_v3_bf16",
       "deepseek_v3_mtp_bf16")


def cases():
    return sorted(p.name for p in GOLDENS.iterdir() if p.is_dir())


def source_of(case):
    """What transformers wrote."""
    return read_safetensors(GOLDENS / case / "expected.safetensors")


def expected(case, dialect):
    path = GOLDENS / case / f"expected_{dialect}.safetensors"
    return read_safetensors(path) if path.exists() else None


def written(directory):
    """The tensors of a Hugging Face directory, however it is sharded."""
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


same = compare


def convert(source, target, *options):
    CKPT.ok("convert", source, target, "-q", *options)
    return target


def back_to_hf(source, folder, case, *options):
    """As transformers had it: names, shapes, every byte."""
    shutil.rmtree(folder, ignore_errors=True)
    convert(source, folder, "--to", "safetensors", "--dialect", "hf",
            *options)
    same(written(folder), source_of(case), " ".join(map(str, options)))
    return folder


def to_dialect(folder, case, dialect):
    want = expected(case, dialect)
    one = folder / "one.safetensors"
    convert(GOLDENS / case / "ckpt", one, "--to", "safetensors", "--dialect",
            dialect)
    got = read_safetensors(one)
    if want is not None:
        same(got, want, dialect)
    if (case, dialect) == ("gemma3_text_f32", "olmo_core"):
        return rounded_norms(case, one, folder)
    # A single file has no configuration beside it: the numbers come from the
    # source.
    back_to_hf(one, folder / "back", case, "--config-from",
               GOLDENS / case / "ckpt")
    return got


def rounded_norms(case, one, folder):
    """Norms are stored plus one there, so only what f32 keeps is left."""
    import torch

    back = folder / "back"
    result = CKPT.ok("convert", one, back, "--to", "safetensors", "--dialect",
                     "hf", "--config-from", GOLDENS / case / "ckpt")
    check("round" in result.err, f"no word of rounding: {result.err}")
    want = source_of(case)
    for name, tensor in want.items():
        if "norm" in name:
            w = torch.frombuffer(bytearray(tensor.data), dtype=torch.float32)
            tensor.data = ((w + 1) - 1).numpy().tobytes()
    same(written(back), want, "norms plus and minus one")


def check_config(case, folder, unknown=()):
    """The config.json that ckpt wrote has what transformers needs."""
    ours = json.loads((folder / "config.json").read_text())
    theirs = json.loads((GOLDENS / case / "ckpt/config.json").read_text())
    check_equal(ours["model_type"], theirs["model_type"], "model_type")
    for key, value in ours.items():
        if theirs.get(key) is not None and key not in ("torch_dtype", "dtype", *unknown):
            check_equal(theirs[key], value, f"config.json, {key}")


def grids(case):
    """(tp, pp, ep) that the model's sizes allow."""
    experts = (1, 2) if case in MOE else (1,)
    return [(tp, pp, ep) for tp in (1, 2, 4) for pp in (1, 2)
            for ep in experts]


def megatron(folder, case, container):
    for tp, pp, ep in grids(case):
        out = folder / f"{tp}_{pp}_{ep}"
        result = CKPT.run(
            "convert", GOLDENS / case / "ckpt", out, "-q", "--to", container,
            "--tp", tp, "--pp", pp, "--ep", ep)
        if result.code == 5 and ("divi" in result.err or
                                 "whole heads" in result.err or
                                 "pipeline stages" in result.err):
            continue  # the model is too small for so many ranks
        result.want(0)
        back = back_to_hf(out, folder / "back", case)
        # Ranks' files carry no config.json, and one made from Falcon's args
        # describes the same arrangement differently.
        if container != "megatron_legacy" or not case.startswith("falcon"):
            check_config(case, back)
        shutil.rmtree(out)


def shards_of_bridge(folder, case):
    """Megatron-Bridge's own shards are those of megatron_legacy."""
    import torch
    from support import from_torch, load_pt

    for want in sorted((GOLDENS / case / "other").glob("mcore_tp*")):
        tp, ep = 2, 2 if "ep2" in want.name else 1
        etp = ["--etp", 1] if "etp1" in want.name else []
        out = folder / want.name
        convert(GOLDENS / case / "ckpt", out, "--to", "megatron_legacy",
                "--tp", tp, "--ep", ep, *etp)
        files = sorted(out.rglob("model_optim_rng.pt")) or sorted(
            out.rglob("model_rng.pt"))
        wanted = [read_safetensors(p) for p in sorted(want.glob("rank_*"))]
        check_equal(len(files), len(wanted), f"files of {want.name}")
        ours = []
        for path in files:
            state = load_pt(path, weights_only=False)["model"]
            ours.append({name: from_torch(value)
                         for name, value in state.items()
                         if isinstance(value, torch.Tensor)})
        padded = ("embedding.word_embeddings.weight", "output_layer.weight")
        for rank in wanted:
            # Vocabularies are padded here and not there.
            names = [n for n in rank if n not in padded]
            matches = [o for o in ours
                       if all(n in o and o[n] == rank[n] for n in names)
                       and len(o) == len(rank)]
            check(matches, f"no file holds what {want.name} has for a rank")


def chain(folder, case):
    """Through all dialects that the family has, and back."""
    hf = GOLDENS / case / "ckpt"
    f2 = convert(hf, folder / "f2", "--to", "fairseq2", "--tp", 2)
    mc = convert(f2, folder / "mc", "--to", "megatron_torch_dist", "--tp", 2,
                 "--pp", 2, "--family", json.loads(
                     (GOLDENS / case / "case.json").read_text())["family"])
    last = mc
    if expected(case, "meta"):
        last = convert(mc, folder / "meta", "--to", "meta", "--tp", 2)
    back_to_hf(last, folder / "home", case)


def meta_files(folder, case):
    """Meta's own files of the model become transformers', and the reverse."""
    for path in sorted((GOLDENS / case / "other").glob("meta_mp*")):
        back = back_to_hf(path, folder / path.name, case)
        # params.json says nothing about positions.
        check_config(case, back, ["max_position_embeddings"])
        ranks = int(path.name.removeprefix("meta_mp"))
        out = convert(GOLDENS / case / "ckpt", folder / f"out{ranks}", "--to",
                      "meta", "--tp", ranks)
        theirs = json.loads((path / "params.json").read_text())
        ours = json.loads((out / "params.json").read_text())
        for key in ("dim", "n_layers", "n_heads", "norm_eps"):
            check_equal(ours[key], theirs[key], f"params.json, {key}")
        one = convert(out, folder / f"one{ranks}.safetensors", "--to",
                      "safetensors", "--dialect", "keep")
        same(read_safetensors(one), expected(case, "meta"), "meta")


def fairseq2_export(folder, case):
    """fairseq2's own checkpoints, sharded and with an optimizer, become what
    its own export to Hugging Face wrote."""
    golden = DATA / "fairseq2_native" / case
    convert(golden / "ckpt", folder / "hf", "--to", "safetensors", "--dialect",
            "hf", "--model-only")
    same(written(folder / "hf"), written(golden / "other/hf"), case)
    theirs = json.loads((golden / "other/hf/config.json").read_text())
    ours = json.loads((folder / "hf/config.json").read_text())
    for key in ("model_type", "num_hidden_layers", "num_attention_heads",
                "num_key_value_heads", "hidden_size", "vocab_size",
                "tie_word_embeddings"):
        check_equal(ours[key], theirs[key], f"config.json, {key}")


def refusals(folder):
    """What doesn't fit is listed, and nothing is written."""
    case = "llama"
    hf = GOLDENS / case / "ckpt"
    tensors = source_of(case)
    from safetensors.torch import load_file, save_file
    import torch

    def variant(name, change):
        path = folder / name
        path.mkdir()
        shutil.copy(hf / "config.json", path)
        state = load_file(str(GOLDENS / case / "expected.safetensors"))
        change(state)
        save_file(state, str(path / "model.safetensors"))
        return path

    def refused(source, *words, options=()):
        out = folder / "never"
        result = CKPT.run("convert", source, out, "--to",
                          "megatron_torch_dist", *options).want(5)
        for word in words:
            check(word in result.err, f"{word!r} is not in: {result.err}")
        check("hint:" in result.err, f"no hint: {result.err}")
        check(not out.exists(), "something was written")
        return out

    extra = variant("extra", lambda s: s.update(
        {"model.layers.0.self_attn.sinks": torch.ones(4)}))
    refused(extra, "model.layers.0.self_attn.sinks", "--drop")
    out = convert(extra, folder / "dropped", "--to", "megatron_torch_dist",
                  "--drop", "*.sinks")
    back_to_hf(out, folder / "back", case)

    gone = variant("gone", lambda s: s.pop("model.norm.weight"))
    refused(gone, "model.norm.weight", "missing", "--allow-missing")
    convert(gone, folder / "allowed", "--to", "megatron_torch_dist",
            "--allow-missing", "model.norm.weight")

    def shrink(state):
        name = "model.layers.1.self_attn.k_proj.weight"
        state[name] = state[name][:-1].clone()
    refused(variant("misshapen", shrink), "layers.1", "shape")

    def other_head(state):
        state["lm_head.weight"] = state["lm_head.weight"] + 1
    untied = variant("untied", other_head)
    config = json.loads((untied / "config.json").read_text())
    config["tie_word_embeddings"] = True
    (untied / "config.json").write_text(json.dumps(config))
    refused(untied, "lm_head.weight", "tied")
    config.pop("num_attention_heads")
    (untied / "config.json").write_text(json.dumps(config))
    refused(untied, "num_attention_heads", "config.json", "--set")
    check_equal(source_of(case), tensors, "the golden")


def nothing_is_lost(folder):
    """Parts of a fused tensor go together or not at all."""
    hf = GOLDENS / "llama/ckpt"
    for options in (["--keys", "*q_proj*"], ["--drop", "*k_proj*"],
                    ["--exclude", "*up_proj*"]):
        out = folder / "never"
        result = CKPT.run("convert", hf, out, "--to", "megatron_torch_dist",
                          *options).want(5)
        check("hint:" in result.err and "_proj" in result.err, str(result))
        check(not out.exists(), "something was written")
    out = convert(hf, folder / "one.safetensors", "--to", "safetensors",
                  "--dialect", "mcore", "--keys", "*norm*", "--keys",
                  "*_proj*")
    got, want = read_safetensors(out), expected("llama", "mcore")
    same(got, {name: t for name, t in want.items()
               if "embedding" not in name and "output" not in name},
         "what was selected")
    # Scales of quantized weights must not be forgotten.
    from safetensors.torch import load_file, save_file
    import torch

    case = GOLDENS / "deepseek_v3_bf16"
    fp8 = folder / "fp8"
    fp8.mkdir()
    shutil.copy(case / "ckpt/config.json", fp8)
    state = load_file(str(case / "expected.safetensors"))
    name = "model.layers.0.self_attn.o_proj.weight"
    state[name] = state[name].to(torch.float8_e4m3fn)
    state[name + "_scale_inv"] = torch.ones(1, 1)
    save_file(state, str(fp8 / "model.safetensors"))
    result = CKPT.run("convert", fp8, folder / "never", "--to",
                      "megatron_torch_dist").want(5)
    check("o_proj.weight_scale_inv" in result.err, str(result))


def padded_vocabulary(folder):
    """Unused rows are cut where something says how many are used."""
    hf = GOLDENS / "llama/ckpt"
    mc = convert(hf, folder / "mc", "--to", "megatron_torch_dist",
                 "--make-vocab-size-divisible-by", 64)
    sizes = {t["name"]: t["shape"] for t in CKPT.inspect(mc)["tensors"]}
    check_equal(sizes["output_layer.weight"][0], 64, "rows")
    back_to_hf(mc, folder / "back", "llama")
    wide = folder / "wide"
    CKPT.ok("convert", mc, wide, "-q", "--to", "safetensors", "--vocab-size",
            64)
    check_equal(written(wide)["lm_head.weight"].shape[0], 64, "rows")
    result = CKPT.run("convert", mc, folder / "never", "--to", "safetensors",
                      "--vocab-size", 65).want(5)
    check("65" in result.err, str(result))


def head_copy(folder):
    """A tied model that still has a head: one of the two is enough."""
    from safetensors.torch import load_file, save_file

    case = "llama_tied_bf16"
    path = folder / "tied"
    path.mkdir()
    shutil.copy(GOLDENS / case / "ckpt/config.json", path)
    state = load_file(str(GOLDENS / case / "expected.safetensors"))
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    save_file(state, str(path / "model.safetensors"))
    out = convert(path, folder / "out", "--to", "megatron_torch_dist")
    back_to_hf(out, folder / "back", case)


# Containers that cut tensors in different ways: rows over data-parallel ranks,
# flat ranges, ranks' files, whole tensors.
STEPS = {
    "mcore": [("megatron_torch_dist", "tp", "pp"), ("megatron_legacy", "tp"),
              ("megatron_zarr", "tp"), ("dcp", "dp"), ("safetensors",)],
    "meta": [("meta", "tp"), ("dcp", "dp"), ("torch",)],
    "fairseq2": [("fairseq2", "tp", "dp"), ("dcp", "dp")],
    "olmo_core": [("olmo_core", "dp"), ("olmo_core_v1", "dp")],
    "hf": [("safetensors",), ("dcp", "dp"), ("torch",)],
}


def walk(folder, case, seed):
    """From dialect to dialect in containers that cut differently, and back:
    whatever one cut is the source for the next one's arrangement."""
    chosen = random.Random(f"{case} {seed}")
    dialects = [d for d in STEPS
                if d == "hf" or expected(case, d) is not None]
    path, said = GOLDENS / case / "ckpt", []
    for step in range(4):
        dialect = chosen.choice(dialects)
        container, *axes = chosen.choice(STEPS[dialect])
        options = ["--to", container, "--dialect", dialect]
        for axis in axes:
            options += [f"--{axis}", chosen.choice(
                (1, 2, 3) if axis == "dp" else (1, 2))]
        out = folder / str(step)
        said.append(" ".join(map(str, options)))
        if dialect == CKPT.inspect(path).get("dialect") == "hf":
            options = options[:2] + options[4:]
        result = CKPT.run("convert", path, out, "-q", *options,
                          "--config-from",
                          GOLDENS / case / "ckpt")
        if result.code == 2 and "not being converted" in result.err:
            result = CKPT.run("convert", path, out, "-q", *options)
        if result.code == 5 and ("divi" in result.err or
                                 "split" in result.err or
                                 "heads" in result.err):
            continue
        check_equal(result.code, 0, f"{' | '.join(said)}: {result}")
        path = out
    shutil.rmtree(folder / "home", ignore_errors=True)
    result = CKPT.run("convert", path, folder / "home", "-q", "--to",
                      "safetensors", "--dialect", "hf", "--config-from",
                      GOLDENS / case / "ckpt")
    if result.code == 2 and "not being converted" in result.err:
        convert(path, folder / "home", "--to", "safetensors")
    else:
        check_equal(result.code, 0, f"{' | '.join(said)}: {result}")
    same(written(folder / "home"), source_of(case), " | ".join(said))


def comparisons(folder, case):
    """One model in two dialects is the same; diff and verify say so."""
    hf = GOLDENS / case / "ckpt"
    mc = convert(hf, folder / "mc", "--to", "megatron_torch_dist", "--tp", 2)
    old = convert(hf, folder / "old", "--to", "megatron_legacy", "--tp", 2,
                  "--pp", 2)
    for a, b in ((hf, mc), (mc, hf), (mc, old), (hf, old)):
        CKPT.ok("verify", a, b)
        result = CKPT.ok("diff", a, b)
        check("0 differences" in result.out, str(result))


def arrangements(folder):
    """What wrong conversions do to a model while all shapes fit."""
    import torch
    from safetensors.torch import load_file, save_file

    case = "llama"
    hf = GOLDENS / case / "ckpt"
    config = json.loads((hf / "config.json").read_text())
    heads = config["num_attention_heads"]
    mc = convert(hf, folder / "mc", "--to", "megatron_torch_dist")
    layer = "model.layers.0."

    def pairs(weight):
        rows, width = weight.shape
        return weight.view(heads, 2, rows // heads // 2, width).transpose(
            1, 2).reshape(rows, width)

    def halves(weight):
        return torch.cat(weight.chunk(2)[::-1])

    wrong = {
        layer + "self_attn.q_proj.weight": (pairs, "rotary"),
        layer + "mlp.down_proj.weight": (lambda w: w.t(), "transposed"),
        layer + "input_layernorm.weight": (lambda w: w + 1, "plus one"),
    }
    state = load_file(str(GOLDENS / case / "expected.safetensors"))
    for name, (change, _) in wrong.items():
        state[name] = change(state[name]).contiguous()
    other = folder / "other"
    other.mkdir()
    shutil.copy(hf / "config.json", other)
    save_file(state, str(other / "model.safetensors"), {"format": "pt"})
    for a, b in ((hf, other), (mc, other)):
        result = CKPT.run("diff", a, b, "--json").want(1)
        found = {d["tensor"]: d for d in result.json()["differences"]}
        check_equal(sorted(found), sorted(wrong), "what differs")
        for name, (_, word) in wrong.items():
            check(word in found[name]["message"], str(found[name]))

    # Fused tensors, in Megatron's names on both sides.
    one, two = folder / "one.safetensors", folder / "two.safetensors"
    convert(hf, one, "--to", "safetensors", "--dialect", "mcore")
    state = load_file(str(one))
    layer = "decoder.layers.0."
    groups, size = config["num_key_value_heads"], config["head_dim"]
    each = heads // groups

    def plain(weight):
        rows = weight.view(groups, each + 2, size, -1)
        return torch.cat([rows[:, :each].reshape(-1, weight.shape[1]),
                          rows[:, each].reshape(-1, weight.shape[1]),
                          rows[:, each + 1].reshape(-1, weight.shape[1])])

    for name, change in ((layer + "mlp.linear_fc1.weight", halves),
                         (layer + "self_attention.linear_qkv.weight", plain)):
        state[name] = change(state[name]).contiguous()
    save_file(state, str(two), {"format": "pt"})
    result = CKPT.run("diff", one, two).want(1)
    for word in ("gate and up", "q, k, v: grouped in A"):
        check(word in result.out, str(result))
    check("2 differences" in result.out, str(result))


def numbers_are_told(folder):
    """-v prints each number with its source; a dry run writes nothing."""
    result = CKPT.ok("convert", GOLDENS / "llama/ckpt", folder / "out", "-v",
                     "-n", "--to", "megatron_torch_dist", "--tp", 2)
    for word in ("heads $nh = ", "config.json num_attention_heads"):
        check(word in result.err, result.err)
    check(not (folder / "out").exists(), "a dry run wrote")


def pinned(folder):
    """--dtype spares what the family pins."""
    case = "deepseek_v3_bf16"
    out = folder / "out.safetensors"
    convert(GOLDENS / case / "ckpt", out, "--to", "safetensors", "--dialect",
            "mcore", "--dtype", "f16")
    for name, tensor in read_safetensors(out).items():
        want = "f32" if name.endswith("expert_bias") else "f16"
        check_equal(tensor.dtype, want, name)


def digests(folder):
    """The digest of a fused tensor is that of its content, computed here."""
    one = folder / "one.safetensors"
    convert(GOLDENS / "llama/ckpt", one, "--to", "safetensors", "--dialect",
            "meta")
    manifest = json.loads(
        (folder / "one.safetensors.ckpt-manifest.json").read_text())
    tensors = manifest["tensors"]
    for name, tensor in read_safetensors(one).items():
        check_equal(tensors[name]["digest"], digest(tensor.data),
                    f"digest of {name}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in cases():
        for dialect in DIALECTS:
            if expected(case, dialect) is not None:
                suite.add(f"{case} to {dialect} and back", to_dialect, case,
                          dialect)
        for container in ("megatron_torch_dist", "megatron_legacy"):
            if grids(case):
                suite.add(f"{case} in {container}", megatron, case, container)
        if list((GOLDENS / case / "other").glob("mcore_tp*")):
            suite.add(f"{case} as Megatron-Bridge cuts it", shards_of_bridge,
                      case)
        if list((GOLDENS / case / "other").glob("meta_mp*")):
            suite.add(f"{case} from Meta's files and to them", meta_files, case)
        if expected(case, "fairseq2") is not None:
            suite.add(f"{case} round all dialects", chain, case)
    for path in sorted((DATA / "fairseq2_native").glob("*/other/hf")):
        case = path.parents[1].name
        suite.add(f"{case} as fairseq2 exports it", fairseq2_export, case)
    suite.add("what does not fit is refused", refusals)
    suite.add("nothing is lost", nothing_is_lost)
    suite.add("padded vocabularies", padded_vocabulary)
    suite.add("a second copy of tied weights", head_copy)
    for case in ("llama", "llama_tied_bf16", "qwen3_bf16", "olmo2_bf16",
                 "qwen3_moe_bf16", "mixtral_f32", "deepseek_v3_bf16"):
        for seed in range(6):
            suite.add(f"{case}: walk {seed}", walk, case, seed)
    for case in ("llama", "qwen3_moe_bf16", "gpt2_f32", "deepseek_v3_bf16",
                 "llama_tied_bf16"):
        suite.add(f"{case} compared across dialects", comparisons, case)
    suite.add("arrangements that diff names", arrangements)
    suite.add("numbers and where they are from", numbers_are_told)
    suite.add("pinned dtypes", pinned)
    suite.add("digests of rearranged tensors", digests)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
