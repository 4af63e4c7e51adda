#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt family: every model that transformers wrote fits its family, what
doesn't fit is named, and the example in docs/families.md works on a model of
its architecture."""

import itertools
import json
import shutil
import struct

from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None
HF = DATA / "hf"
DOCS = DATA.parents[1] / "docs" / "families.md"
FILES = DATA.parents[1] / "models" / "families"


def cases():
    return sorted(path.name for path in HF.iterdir())


def copy_of(case, folder):
    to = folder / case
    shutil.copytree(HF / case / "ckpt", to)
    return to


def rewrite(path, change):
    """The tensors of model.safetensors, changed by `change(dict)`."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def problems_of(result):
    return {(problem["kind"], problem["tensor"])
            for dialect in result.json()["dialects"]
            for problem in dialect["problems"]}


def test_list(folder):
    families = CKPT.run("family", "list", "--json").want(0).json()["families"]
    names = [family["name"] for family in families]
    check_equal(names, sorted(names), "order")
    by_name = {family["name"]: family for family in families}
    check_equal(by_name["llama"]["dialects"],
                ["fairseq2", "gguf", "internevo", "litgpt", "mcore", "meta",
                 "neox", "olmo_core"], "llama")
    check_equal(by_name["olmo2"]["model_types"], ["olmo2", "olmo3"], "olmo2")
    text = CKPT.run("family", "list").want(0).out
    for name in names:
        check(name in text, f"{name} is not listed")
        CKPT.run("family", "show", name).want(0)
        shown = CKPT.run("family", "show", name, "--json").want(0).json()
        check_equal(sorted(shown["dialects"]), by_name[name]["dialects"], name)


def test_golden_fits(folder, case):
    # fairseq2's Mistral has no field for heads of another size: refused.
    refused = case == "mistral_bf16"
    report = CKPT.run("family", "check", HF / case / "ckpt",
                      "--json").want(5 if refused else 0).json()
    info = json.loads((HF / case / "case.json").read_text())
    check_equal(report["family"], info["family"], "family")
    there = {d["dialect"]: d for d in report["dialects"]}
    for path in (HF / case).glob("expected_*.safetensors"):
        dialect = path.stem[len("expected_"):]
        check_equal(there[dialect]["made"], len(read_safetensors(path)),
                    f"tensors of {dialect}")
        check_equal(there[dialect]["problems"], [], dialect)
    if refused:
        message = there["fairseq2"]["problems"][0]["message"]
        check("heads of another size" in message, message)


def test_numbers_have_sources(folder):
    out = CKPT.run("family", "check", HF / "llama/ckpt").want(0).out
    check("heads $nh = 8 (config.json num_attention_heads)" in out, out)
    check("tied embeddings $tie = false" in out, out)


def test_what_does_not_fit(folder):
    """Each of the four kinds, and the exit status."""
    norm = "model.norm.weight"
    q = "model.layers.0.self_attn.q_proj.weight"

    def lose(tensors):
        del tensors[norm]

    def add(tensors):
        tensors["model.extra.weight"] = tensors[norm].clone()

    def cut(tensors):
        tensors[q] = tensors[q][:-1].clone()

    for change, wanted in ((lose, ("missing", norm)),
                           (add, ("unknown", "model.extra.weight")),
                           (cut, ("misshapen", q))):
        path = copy_of("llama", folder / change.__name__)
        rewrite(path, change)
        result = CKPT.run("family", "check", path, "--json").want(5)
        check(wanted in problems_of(result), f"{wanted}: {result.out}")
        text = CKPT.run("family", "check", path).want(5)
        check(wanted[1] in text.out and wanted[0] in text.out, str(text))
        check("does not fit family llama" in text.err, str(text))

    def double(tensors):
        tensors["wte.weight"] = tensors["transformer.wte.weight"].clone()

    path = copy_of("gpt2_f32", folder / "double")
    rewrite(path, double)
    result = CKPT.run("family", "check", path, "--json").want(5)
    kinds = {kind for kind, _ in problems_of(result)}
    check_equal(kinds, {"doubled"}, "kinds")


def test_numbers_that_are_missing(folder):
    path = copy_of("llama", folder)
    config = json.loads((path / "config.json").read_text())
    heads = config.pop("num_attention_heads")
    (path / "config.json").write_text(json.dumps(config))
    result = CKPT.run("family", "check", path).want(5)
    check("--set nh=VALUE" in result.out + result.err, str(result))
    CKPT.run("family", "check", path, "--set", f"nh={heads}").want(0)
    wrong = CKPT.run("family", "check", path, "--set", "nhh=8").want(2)
    check("did you mean 'nh'" in wrong.err, str(wrong))


def test_a_family_that_is_unknown(folder):
    path = copy_of("llama", folder)
    config = json.loads((path / "config.json").read_text())
    config.update(model_type="unheard", architectures=["Unheard"])
    (path / "config.json").write_text(json.dumps(config))
    result = CKPT.run("family", "check", path).want(5)
    check("--family" in result.err, str(result))
    CKPT.run("family", "check", path, "--family", "llama").want(0)
    CKPT.run("family", "check", path, "--family", "lama").want(2)
    CKPT.run("family", "check").want(2)
    CKPT.run("family", "show").want(2)
    CKPT.run("family", "lsit").want(2)


def kinds():
    """What config.json says of each family: {name: (model types, the type of
    its text_config or None)}."""
    listed = CKPT.run("family", "list", "--json").want(0).json()["families"]
    texts = {one["name"]: json.loads((FILES / f"{one['name']}.json").read_text()
                                     )["hf"].get("text_type")
             for one in listed if one["model_types"]}
    return {one["name"]: (one["model_types"], texts[one["name"]])
            for one in listed if one["model_types"]}


def named_alone(folder, config):
    """A directory that says its family, and has one tensor."""
    folder.mkdir(exist_ok=True)
    header = json.dumps({"model.embed_tokens.weight": {
        "dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def said_of(types, text):
    for kind in types:
        yield {"model_type": kind, **({"text_config": {"model_type": text}}
                                      if text else {})}


def test_family_by_hand(folder):
    """--family does not undo what config.json's keys decide: families that
    share a model type, or the type of a text_config; a key that makes another
    type of it; architectures where there is no type."""
    known, rows = kinds(), []
    for (asked, (types, text)), (own, (of_own, its)) in itertools.permutations(
            known.items(), 2):
        # The family of the text_config alone is the user's to ask for.
        if its not in types and {*types, text} & {*of_own, its} - {None}:
            rows += [(asked, own, config) for config in said_of(of_own, its)]
    check(len(rows) > 20, f"{len(rows)} pairs")
    for value in (["full_attention"], [], None):
        rows.append(("mistral", "ministral", {"model_type": "mistral",
                                              "layer_types": value}))
    rows.append(("llama", "olmo2", {"architectures": ["Olmo3ForCausalLM"]}))
    for asked, own, config in rows:
        source = named_alone(folder / "source", config)
        command = ("convert", source, folder / "there", "--to",
                   "megatron_torch_dist", "--family")
        result = CKPT.run(*command, asked).want(5)
        check(f"--family {asked}, and config.json says " in result.err and
              f", which is {own}\n" in result.err, f"{config} {result}")
        for key, value in config.items():
            check(key in result.err, f"no word of {key}: {result}")
        right = CKPT.run(*command, own)
        check("which is" not in right.err, f"{own} {config} {right}")


def test_family_of_fairseq2(folder):
    """fairseq2's olmo is OLMo 2 and 3, which have their own names here."""
    path = folder / "native"
    shutil.copytree(DATA / "fairseq2_native/olmo2_tp2dp1/ckpt", path)
    for config in [*path.rglob("model.yaml"), *path.rglob("config.yaml")]:
        config.unlink()
    for family in ("olmo", "olmo2", "olmo3"):
        CKPT.ok("reshard", path, folder / family, "--tp", 1, "--family", family,
                "-q")
    for command in ("inspect", "verify"):
        for source in (path, HF / "llama/ckpt"):
            result = CKPT.run(command, source, "--family", "lama").want(2)
            check("did you mean 'llama'?" in result.err, str(result))


def example():
    text = DOCS.read_text()
    return text.split("```json\n")[1].split("```")[0]


def stablelm(path, bias):
    """A model that transformers made from its own config, or, without
    transformers, one with the same names and shapes."""
    import torch

    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=24,
                 num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, use_qkv_bias=bias)
    try:
        from transformers import StableLmConfig, StableLmForCausalLM
    except ImportError:
        pass
    else:
        StableLmForCausalLM(StableLmConfig(**sizes)).save_pretrained(path)
        return
    from safetensors.torch import save_file

    path.mkdir()
    (path / "config.json").write_text(json.dumps(
        dict(sizes, model_type="stablelm",
             architectures=["StableLmForCausalLM"])))
    shapes = {"model.embed_tokens.weight": (40, 16), "lm_head.weight": (40, 16),
              "model.norm.weight": (16,), "model.norm.bias": (16,)}
    for layer in range(2):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            for part in ("weight", "bias"):
                shapes[f"model.layers.{layer}.{norm}.{part}"] = (16,)
        for name, rows, columns in (("q", 16, 16), ("k", 8, 16), ("v", 8, 16),
                                    ("o", 16, 16)):
            at = f"model.layers.{layer}.self_attn.{name}_proj."
            shapes[at + "weight"] = (rows, columns)
            if bias and name != "o":
                shapes[at + "bias"] = (rows,)
        for name, rows, columns in (("gate", 24, 16), ("up", 24, 16),
                                    ("down", 16, 24)):
            at = f"model.layers.{layer}.mlp.{name}_proj.weight"
            shapes[at] = (rows, columns)
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()},
              path / "model.safetensors", metadata={"format": "pt"})


def test_the_example_of_the_docs(folder):
    file = folder / "stablelm.json"
    file.write_text(example())
    for bias in (False, True):
        path = folder / f"bias_{bias}"
        stablelm(path, bias)
        result = CKPT.run("family", "check", path, "--family-file", file,
                          "--json").want(0)
        made = result.json()["dialects"][0]["made"]
        check_equal(made, 4 + 2 * (9 if bias else 8), "tensors")


def test_mistakes_are_shown_at_their_line(folder):
    file = folder / "mine.json"
    lines = example().splitlines()
    at = next(i for i, line in enumerate(lines) if '"op": "qkv"' in line)
    lines[at] = lines[at].replace('"op": "qkv"', '"op": "qkw"')
    file.write_text("\n".join(lines))
    result = CKPT.run("family", "show", "--family-file", file).want(2)
    check(f"mine.json:{at + 1}:" in result.err, str(result))
    check("did you mean 'qkv'" in result.err, str(result))


def test_families_of_ones_own(folder):
    """CKPT_FAMILY_PATH: a file there is a family like ckpt's own."""
    model = copy_of("llama", folder)
    config = json.loads((model / "config.json").read_text())
    config.update(model_type="ours", architectures=["OursForCausalLM"])
    (model / "config.json").write_text(json.dumps(config))
    there = folder / "families"
    there.mkdir()
    (there / "ours.json").write_text(json.dumps(
        {"schema": "ckpt-family/2", "family": "ours", "extends": "llama",
         "hf": {"model_type": ["ours"],
                "architectures": ["OursForCausalLM"]},
         "dialects": {"mcore": {}}, "vllm": {}}))
    to = ("--to", "megatron_torch_dist", "--tp", "2")
    CKPT.run("convert", model, folder / "no", *to).want(5)
    env = {"CKPT_FAMILY_PATH": str(there)}
    CKPT.run("convert", model, folder / "out", *to, env=env).want(0)
    CKPT.run("verify", model, folder / "out", env=env).want(0)
    # Without the file, and without its "vllm", that arrangement is not known.
    to = ("--to", "vllm", "--tp", "2")
    CKPT.run("convert", model, folder / "no", *to).want(5)
    CKPT.run("convert", model, folder / "vllm", *to, env=env).want(0)
    CKPT.run("convert", folder / "vllm", folder / "back", "--to", "safetensors",
             "--dialect", "hf", env=env).want(0)
    CKPT.run("diff", model, folder / "back", env=env).want(0)
    own = there / "ours.json"
    said = own.read_text()
    own.write_text(said.replace(', "vllm": {}', ""))
    unsaid = CKPT.run("convert", model, folder / "no", *to, env=env).want(5)
    check('type "ours" is not known' in unsaid.err, f"{unsaid}")
    own.write_text(said)
    listed = CKPT.run("family", "list", "--json", env=env).want(0).json()
    check("ours" in {one["name"] for one in listed["families"]}, f"{listed}")
    (there / "llama.json").write_text((there / "ours.json").read_text())
    twice = CKPT.run("family", "list", env=env).want(2)
    check("there is a family llama already" in twice.err, f"{twice}")
    CKPT.run("family", "list", env={"CKPT_FAMILY_PATH": "/none"}).want(3)


def unknown(case, folder):
    """A golden under a type that no version of transformers has."""
    model = copy_of(case, folder)
    config = json.loads((model / "config.json").read_text())
    config.update(model_type="new-one", architectures=["NewOneForCausalLM"])
    (model / "config.json").write_text(json.dumps(config))
    return model


# What names, shapes and numbers can't distinguish; the others are doubts.
ALIKE = {"gemma": {"ministral3"}, "mistral": {"ministral", "cwm"},
         "olmoe": {"qwen3_moe"}}


def test_infer(folder, case):
    """A draft for an unknown model extends the family it belongs to, or names
    that one among the doubts, and converts the model there and back."""
    model = unknown(case, folder)
    there = folder / "families"
    there.mkdir()
    done = CKPT.run("family", "infer", model, "-o", there / "new_one.json")
    done.want(0)
    draft = json.loads((there / "new_one.json").read_text())
    true = json.loads((HF / case / "ckpt/config.json").read_text())
    listed = CKPT.run("family", "list", "--json").want(0).json()["families"]
    family = next(one["name"] for one in listed
                  if true["model_type"] in one["model_types"])
    if draft["extends"] != family:
        check(draft["extends"] in ALIKE.get(family, ()),
              f"extends {draft['extends']}, is of {family}")
        # These two have the same facts.
        check(f"{family} fits too" in done.err or
              family in ("olmoe", "mistral"), f"no doubt: {done.err}")
    check("compare the logits" in done.err, done.err)
    env = {"CKPT_FAMILY_PATH": str(there)}
    CKPT.run("family", "check", model, env=env).want(0)
    CKPT.run("convert", model, folder / "out", "--to", "megatron_torch_dist",
             "--tp", "2", env=env).want(0)
    CKPT.run("convert", folder / "out", folder / "back", "--to", "safetensors",
             env=env).want(0)
    CKPT.run("verify", model, folder / "back", env=env).want(0)


def test_infer_refuses(folder):
    """What has no rule is listed, and nothing existing is replaced."""
    model = unknown("llama", folder)
    draft = CKPT.run("family", "infer", model).want(0)
    check_equal(json.loads(draft.out)["extends"], "llama", "extends")
    taken = folder / "taken.json"
    taken.write_text("mine")
    CKPT.run("family", "infer", model, "-o", taken).want(5)
    check_equal(taken.read_text(), "mine", "what stood there")

    def add(tensors):
        tensors["model.layers.0.self_attn.sinks"] = (
            tensors["model.norm.weight"].clone())
    rewrite(model, add)
    result = CKPT.run("family", "infer", model).want(1)
    check("self_attn.sinks" in result.err, f"{result}")
    check("self_attn.sinks" in "".join(json.loads(result.out)["notes"]),
          result.out)
    CKPT.run("family", "infer", HF / "llama/ckpt").want(2)
    (model / "config.json").unlink()
    CKPT.run("family", "infer", model).want(5)
    CKPT.run("family", "infer").want(2)
    CKPT.run("family", "list", "-o", folder / "x").want(2)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    check(len(cases()) >= 26, f"{len(cases())} goldens: tests/data is cut")
    suite.add("list and show", test_list)
    for case in cases():
        suite.add(f"{case}: fits", test_golden_fits, case)
    for case in cases():
        suite.add(f"{case}: inferred", test_infer, case)
    suite.add("infer: what is refused", test_infer_refuses)
    suite.add("numbers have sources", test_numbers_have_sources)
    suite.add("what does not fit", test_what_does_not_fit)
    suite.add("numbers that are missing", test_numbers_that_are_missing)
    suite.add("a family that is unknown", test_a_family_that_is_unknown)
    suite.add("--family by hand holds what keys decide", test_family_by_hand)
    suite.add("--family olmo3 is unknown to fairseq2", test_family_of_fairseq2)
    suite.add("the example of the docs", test_the_example_of_the_docs)
    suite.add("families of one's own", test_families_of_ones_own)
    suite.add("mistakes at their line", test_mistakes_are_shown_at_their_line)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
