#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--vocab-size and padding, for every model type that becomes Megatron's.

Fewer tokens: the model of the first ones. It comes home from Megatron without a
config.json beside it, transformers opens it, and its logits are the first of
the whole model's. Rows that pad a vocabulary are zero in Megatron's files and
gone at home. More tokens than there are rows are refused: no file has them.

Under transformers' own names rows are cut or put behind, and config.json
follows: transformers opens both, and its logits are the whole model's.
"""

import os
import sys

from support import Skip, Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
ROWS, FEWER = 64, 48
OWN_ROWS = 72  # unlike any other number of a tiny model


def tiny_models():
    return models_of("families2026_models")


def logits_of(model):
    import torch

    tokens = torch.arange(24)[None] * 7 % FEWER
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False).logits


def to_megatron(source, there, model_type, *more):
    allowed = tiny_models().UNSAID.get(model_type, ())
    return CKPT.run("convert", source, there, "--to", "megatron_torch_dist",
                    "--no-fsync", "-q", *more,
                    *(word for fact in allowed
                      for word in ("--allow-unsaid", fact)))


def home(there, back):
    CKPT.ok("convert", there, back, "--to", "safetensors", "--no-fsync", "-q")
    return tensors_of(back)


def vocabulary(folder, model_type):
    import torch

    tiny = tiny_models()
    model = tiny.model_of(tiny.config_of(model_type))
    source = folder / "source"
    model.save_pretrained(source)
    saved = type(model).from_pretrained(source, dtype=torch.float32)
    want = logits_of(saved)[..., :FEWER]
    fewer(folder, source, model_type, type(model), want)
    padded = folder / "padded"
    to_megatron(source, padded, model_type, "--tp", 2,
                "--make-vocab-size-divisible-by", 48).want(0)
    [rows] = {t["shape"][0] for t in CKPT.inspect(padded)["tensors"]
              if t["name"].endswith("word_embeddings.weight")}
    check_equal(rows, 96, "rows with their padding")
    compare(home(padded, folder / "padded_home"), tensors_of(source), "padded")
    run = to_megatron(source, folder / "no", model_type, "--vocab-size",
                      ROWS + 1).want(5)
    check(str(ROWS + 1) in run.err and f"{ROWS} rows" in run.err, run.err)
    check(not (folder / "no").exists(), "something was written")
    check(torch.isfinite(want).all(), "logits are not numbers")


def fewer(folder, source, model_type, kind, want):
    import torch

    there, back = folder / "there", folder / "back"
    to_megatron(source, there, model_type, "--vocab-size", FEWER).want(0)
    beside = home(there, folder / "beside")
    was, now = config_of(source), config_of(folder / "beside")
    check_equal({k for k in was if was[k] != now.get(k)}, {"vocab_size"},
                "what config.json says otherwise")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    compare(home(there, back), beside, "without config.json")
    check_equal(config_of(back)["vocab_size"], FEWER, "vocab_size")
    before = tensors_of(source)
    for name, value in beside.items():
        if value.shape != before[name].shape:
            check_equal(value.shape[0], FEWER, name)
            check(before[name].data.startswith(value.data),
                  f"{name}: not the first rows")
    loaded = kind.from_pretrained(back, dtype=torch.float32)
    got = logits_of(loaded)
    off = float((got - want).abs().max() / want.abs().max())
    check(got.shape == want.shape and off < 1e-5, f"logits differ by {off:.2g}")


def own_names(folder, model_type):
    """Fewer and more rows without changing the dialect."""
    import torch

    tiny = tiny_models()
    model = tiny.model_of(tiny.config_of(model_type, vocab_size=OWN_ROWS))
    source = folder / "source"
    model.save_pretrained(source)
    saved = type(model).from_pretrained(source, dtype=torch.float32)
    want, before = logits_of(saved), tensors_of(source)
    for rows in (FEWER, OWN_ROWS + 8):
        out = folder / f"of{rows}"
        run = CKPT.ok("convert", source, out, "--to", "safetensors",
                      "--vocab-size", rows, "--max-shard-size", "20KB",
                      "--no-fsync")
        check_equal("are zeros" in run.err, rows > OWN_ROWS, run.err)
        CKPT.ok("verify", out)
        was, now = config_of(source), config_of(out)
        check_equal({k for k in was if was[k] != now.get(k)}, {"vocab_size"},
                    "what config.json says otherwise")
        check_equal(now["vocab_size"], rows, "vocab_size")
        after = tensors_of(out)
        check_equal(sorted(after), sorted(before), "names")
        for name, value in after.items():
            old = before[name].data
            if value.shape == before[name].shape:
                check_equal(value.data, old, name)
            else:
                check_equal(value.shape[0], rows, name)
                few = min(len(old), len(value.data))
                check(value.data[:few] == old[:few]
                      and not any(value.data[few:]), f"{name}: other rows")
        loaded, told = type(model).from_pretrained(
            out, dtype=torch.float32, output_loading_info=True)
        check(not told["missing_keys"] and not told["mismatched_keys"], told)
        got, few = logits_of(loaded), min(rows, OWN_ROWS)
        off = float((got[..., :few] - want[..., :few]).abs().max()
                    / want.abs().max())
        check(got.shape[-1] == rows and off < 1e-5,
              f"{rows} rows: logits differ by {off:.2g}")
    # What has a manifest was written by ckpt: it is checked against its rows.
    CKPT.ok("convert", folder / f"of{OWN_ROWS + 8}", folder / "again", "--to",
            "safetensors", "--vocab-size", OWN_ROWS, "--no-fsync", "-q")
    compare(tensors_of(folder / "again"), before, "cut again")


def ties(folder, model_type):
    """--untie gives the head that a tied model shares, --tie takes it away
    again; one that differs stays."""
    import torch

    tiny = tiny_models()
    model = tiny.model_of(tiny.config_of(model_type, tie_word_embeddings=True))
    source, apart, again = (folder / n for n in ("source", "apart", "again"))
    model.save_pretrained(source)
    before = tensors_of(source)
    if len({len(before), len(model.state_dict())}) == 1:
        raise Skip(f"{type(model).__name__} ties nothing")
    CKPT.ok("convert", source, apart, "--to", "hf", "--untie", "--no-fsync")
    after = tensors_of(apart)
    [head] = set(after) - set(before)
    [(embedding, _)] = [row for row in before.items()
                        if row[1] == after[head]]
    compare({n: t for n, t in after.items() if n != head}, before, "untied")
    check(config_of(apart)["tie_word_embeddings"] is False, "config.json")
    CKPT.ok("verify", apart)
    CKPT.ok("convert", apart, again, "--to", "hf", "--tie", "--no-fsync")
    compare(tensors_of(again), before, "tied again")
    check(config_of(again)["tie_word_embeddings"] is True, "config.json")
    want = logits_of(type(model).from_pretrained(source, dtype=torch.float32))
    for path in (apart, again):
        loaded, told = type(model).from_pretrained(
            path, dtype=torch.float32, output_loading_info=True)
        check(not any(told[k] for k in told), f"{told}")
        far = (logits_of(loaded) - want).abs()
        # from_pretrained zeroes the padding's row in a tied youtu, not a head's.
        if (pad := model.config.pad_token_id) is not None:
            far[..., pad] = 0
        off = float(far.max() / want.abs().max())
        check(off < 1e-5, f"{path.name}: logits differ by {off:.2g}")
    with torch.no_grad():
        loaded = type(model).from_pretrained(apart, dtype=torch.float32)
        loaded.get_output_embeddings().weight[1, 1] += 1
    loaded.save_pretrained(folder / "trained")
    said = CKPT.run("convert", folder / "trained", folder / "no", "--to", "hf",
                    "--tie", "--no-fsync").want(5)
    check(head in said.err or embedding in said.err, f"{said}")
    check(not (folder / "no").exists() and f"--exclude '{head}'" in said.err,
          f"{said}")
    CKPT.ok("convert", folder / "trained", folder / "given_up", "--to", "hf",
            "--tie", "--exclude", head, "--no-fsync")
    trained = tensors_of(folder / "trained")
    compare(tensors_of(folder / "given_up"),
            {n: t for n, t in trained.items() if n != head}, "without the head")
    # A head that was trained beside a configuration that ties it.
    path = folder / "trained" / "config.json"
    path.write_text(path.read_text().replace('"tie_word_embeddings": false',
                                             '"tie_word_embeddings": true'))
    said = CKPT.run("verify", folder / "trained").want(1)
    check("--untie" in said.out, f"{said}")
    mended = folder / "mended"
    CKPT.ok("convert", folder / "trained", mended, "--to", "hf", "--untie",
            "--no-fsync")
    CKPT.ok("verify", mended)
    check(config_of(mended)["tie_word_embeddings"] is False, "mended")


def not_followed(folder):
    """What would be lost or is ambiguous is named."""
    import json

    tiny = tiny_models()
    source = folder / "source"
    tiny.model_of(tiny.config_of("seed_oss", vocab_size=OWN_ROWS)
                  ).save_pretrained(source)
    path = source / "config.json"
    config = json.loads(path.read_text())

    def refused(word, **changes):
        path.write_text(json.dumps({**config, **changes}))
        run = CKPT.run("convert", source, folder / "no", "--to", "safetensors",
                       "--vocab-size", FEWER).want(5)
        check(word in run.err, run.err)
        check(not (folder / "no").exists(), "something was written")

    refused("no vocab_size", vocab_size=None)
    refused("has the 71 rows", vocab_size=71)
    refused("of 71 and of 72", text_config={"vocab_size": 71})
    # Either number may be the right one: who asks for it gets it.
    from safetensors.torch import load_file, save_file
    for said in (OWN_ROWS - 1, OWN_ROWS + 1):
        path.write_text(json.dumps({**config, "vocab_size": said}))
        hint = CKPT.run("convert", source, folder / "no", "--to", "dcp").want(5).err
        check("--vocab-size N" in hint, hint)
        for rows in (OWN_ROWS, said):
            out = folder / f"{said}_{rows}"
            CKPT.ok("convert", source, out, "--to", "safetensors", "--vocab-size", rows)
            CKPT.ok("verify", out, "--strict")
            table = load_file(out / "model.safetensors")["lm_head.weight"]
            check_equal(table.shape[0], rows, f"{said}")
            least = min(rows, OWN_ROWS)
            check(bool((table[:least] == load_file(source / "model.safetensors")
                        ["lm_head.weight"][:least]).all()), f"{said}, {rows}")
    path.write_text(json.dumps({**config, "eos_token_id": 71}))
    run = CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
                  "--vocab-size", FEWER)
    check("eos_token_id" in run.err, run.err)
    path.write_text(json.dumps(config))
    # A tensor with as many elements that is not an embedding.
    import torch
    file = source / "model.safetensors"
    tensors = load_file(file)
    tensors["model.token_bias"] = torch.zeros(OWN_ROWS)
    save_file(tensors, file, {"format": "pt"})
    refused("model.token_bias")


def parts_follow(folder, key):
    """Whatever a part of a model is called, its config gets the remaining
    rows."""
    import json

    tiny = tiny_models()
    source = folder / "source"
    tiny.model_of(tiny.config_of("seed_oss", vocab_size=OWN_ROWS)
                  ).save_pretrained(source)
    path = source / "config.json"
    config = json.loads(path.read_text())
    inner = {"vocab_size": OWN_ROWS, "deeper": {"vocab_size": OWN_ROWS},
             "codes_config": {"vocab_size": 24}}
    for outside in (OWN_ROWS, None):
        path.write_text(json.dumps({**config, "vocab_size": outside,
                                    key: inner}))
        out = folder / f"of{outside}"
        CKPT.ok("convert", source, out, "-q", "--to", "safetensors",
                "--vocab-size", FEWER, "--no-fsync")
        now = config_of(out)
        check_equal(now["vocab_size"], outside and FEWER, "vocab_size")
        check_equal(now[key], {"vocab_size": FEWER,
                               "deeper": {"vocab_size": FEWER},
                               "codes_config": {"vocab_size": 24}}, key)


def padded_alone(folder):
    """Args of Megatron's runs give the rows with padding, and often not how
    many are tokens. All come back, with a warning; --vocab-size says how many
    should, and a config.json beside them doesn't contradict it."""
    import torch

    tiny = tiny_models()
    source, there = folder / "source", folder / "there"
    tiny.model_of(tiny.config_of("seed_oss")).save_pretrained(source)
    CKPT.ok("convert", source, there, "--to", "megatron_torch_dist", "-q",
            "--make-vocab-size-divisible-by", 48, "--no-fsync")
    [common] = there.rglob("common.pt")
    state = torch.load(common, weights_only=False)
    check_equal((state["args"].vocab_size, state["args"].padded_vocab_size),
                (ROWS, 96), "rows")
    state["args"].vocab_size = None
    torch.save(state, common)
    CKPT.ok("convert", there, folder / "beside", "--to", "safetensors",
            "--no-fsync", "-q", "--vocab-size", ROWS)
    compare(tensors_of(folder / "beside"), tensors_of(source), "beside")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    for options, rows in ((("--vocab-size", ROWS), ROWS), ((), 96)):
        home = folder / f"of{rows}"
        run = CKPT.ok("convert", there, home, "--to", "safetensors",
                      "--no-fsync", *options)
        check_equal("how many rows the vocabulary was padded to" in run.err,
                    rows == 96, run.err)
        check_equal(config_of(home)["vocab_size"], rows, "vocab_size")
        check_equal(tensors_of(home)["lm_head.weight"].shape[0], rows, "rows")
    compare(tensors_of(folder / f"of{ROWS}"), tensors_of(source), "as asked")


BESIDE = {
    "generation_config.json": (
        {"eos_token_id": [2, 69], "suppress_tokens": [[70]], "max_length": 4096,
         "begin_suppress_tokens": [3], "bad_words_ids": [[66, 3]]},
        {"eos_token_id": [2, 3], "suppress_tokens": [[4]], "max_length": 4096},
        "bad_words_ids, eos_token_id, suppress_tokens of generation_config.json"),
    "tokenizer.json": (
        {"added_tokens": [{"id": 69, "content": "x"}], "model": {
            "type": "BPE", "vocab": {"a": 0, "b": 40}, "merges": [["a", "b"]]}},
        {"added_tokens": [{"id": 3}], "model": {"vocab": {"a": 0, "b": 40}},
         "post_processor": {"tokens": {"b": {"ids": [69]}}}},
        "tokenizer.json has token 69"),
    "tokenizer.json ": (
        {"model": {"type": "Unigram", "vocab": [["a", -1.5]] * 70}},
        {"model": {"type": "Unigram", "vocab": [["a", -1.5]] * 48}},
        "tokenizer.json has token 69"),
    "tokenizer_config.json": (
        {"added_tokens_decoder": {"69": {"content": "x"}}},
        {"added_tokens_decoder": {"5": {"content": "x"}}},
        "tokenizer_config.json adds token 69"),
    "vocab.json": ({"a": 0, "b": 69}, {"a": 0}, "vocab.json has token 69"),
    "added_tokens.json": ({"x": 69}, {"x": 3}, "added_tokens.json has token 69"),
    "vocab.txt": ("a\n" * 70, "a\n" * 48, "vocab.txt has token 69"),
}


def tokens_beside(folder, name):
    """Files that count tokens without a remaining row are named, under any
    names; those that don't are not."""
    import json

    past, within, word = BESIDE[name]
    tiny = tiny_models()
    source = folder / "source"
    tiny.model_of(tiny.config_of("seed_oss", vocab_size=OWN_ROWS)
                  ).save_pretrained(source)
    for text in (past, within):
        (source / name.strip()).write_text(
            text if isinstance(text, str) else json.dumps(text))
        for target in ("safetensors", "megatron_torch_dist"):
            run = CKPT.ok("convert", source, folder / f"{target}{text is past}",
                          "--to", target, "--vocab-size", FEWER, "--no-fsync")
            check_equal(word in run.err, text is past, run.err)
            check_equal(name.strip() in run.err, text is past, run.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for model_type in tiny_models().TYPES:
        suite.add(model_type, vocabulary, model_type)
        suite.add(f"{model_type}, its own names", own_names, model_type)
        suite.add(f"{model_type}, tied and apart", ties, model_type)
    suite.add("what can't follow", not_followed)
    for key in ("text_config", "vlm_config", "encoder_config", "anything"):
        suite.add(f"{key} follows", parts_follow, key)
    suite.add("rows with padding alone", padded_alone)
    for name in BESIDE:
        suite.add(f"tokens of {name}", tokens_beside, name)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
