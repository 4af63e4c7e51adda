#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is beside the tensors and doesn't fit them, or each other: rows and
vocab_size, quantization of plain weights, token ids, keys that no model of the
type has. ckpt says so, and the hint of a refusal leads to a conversion."""

import json
import shutil

from support import DATA, Suite, check, check_equal, compare, read_safetensors

CKPT = None
MODEL = DATA / "hf/llama/ckpt"
MCORE = "megatron_torch_dist"
QUANTIZED = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def variant(folder, source=MODEL, config=None, **files):
    """A copy of a model with other keys in config.json, and other files."""
    path = folder / "source"
    shutil.copytree(source, path)
    for name, change in {"config": config or {}, **files}.items():
        file = path / f"{name}.json"
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**old, **change}, indent=2) + "\n")
    return path


def config_in(folder):
    [path] = [p for p in folder.rglob("config.json")]
    return json.loads(path.read_text())


SAID = {
    "quantization of plain weights": (
        {"config": {"quantization_config": QUANTIZED}},
        ("quantization_config", "no weight is quantized")),
    "quantization in a text_config": (
        {"config": {"text_config": {"quantization_config": QUANTIZED}}},
        ("quantization_config", "no weight is quantized")),
    "other ends of generation": (
        {"generation_config": {"eos_token_id": [5, 7]}},
        ("generation_config.json stops at token 5, 7", "eos_token_id 2")),
    "added tokens past the rows": (
        {"tokenizer_config": {"added_tokens_decoder": {
            "59": {"content": "<a>"}, "60": {"content": "<b>"}}}},
        ("adds token 60", "has 60 rows")),
}
FITS = {
    "as it is": {},
    "an end of generation that config.json has": {
        "generation_config": {"eos_token_id": [2, 7]}},
    "added tokens with rows": {
        "tokenizer_config": {"added_tokens_decoder": {"59": {}}}},
    "damaged neighbours": {
        "tokenizer_config": {"added_tokens_decoder": [1]},
        "generation_config": {"eos_token_id": {"a": 1}}},
}


def said(folder, files, words):
    source = variant(folder, **files)
    result = CKPT.ok("convert", source, folder / "there", "--to", MCORE)
    for word in words:
        check(word in result.err, f"not said: {word}\n{result}")
    CKPT.ok("verify", source, folder / "there")


def not_said(folder, files):
    result = CKPT.ok("convert", variant(folder, **files), folder / "there",
                     "--to", MCORE)
    check("warning" not in result.err, str(result))


def told_by_verify(folder):
    """Its reader looks for scales, whatever the tensors' names are."""
    result = CKPT.ok("verify", variant(folder, config={
        "quantization_config": QUANTIZED}))
    check("ok, 1 warning" in result.out and "no weight is quantized" in
          result.out + result.err, str(result))


def dequantized(folder):
    """What --dtype makes plain no longer has such a key, or a warning."""
    CKPT.ok("convert", DATA / "hf/llama/ckpt", folder / "fp8", "--to",
            "safetensors", "--quantize", "fp8-block", "-q")
    result = CKPT.ok("convert", folder / "fp8", folder / "there", "--to",
                     MCORE, "--dtype", "bf16")
    check("quantiz" not in result.err.lower().replace("dequantiz", ""),
          str(result))
    check("quantization_config" not in config_in(folder / "there"), "key")


def fewer_rows(folder):
    """Refused, and its hint leads to a model whose files agree."""
    source = variant(folder, config={"vocab_size": 70})
    command = ("convert", source, folder / "there", "--to", MCORE)
    result = CKPT.run(*command).want(5)
    check("has 60 rows, the vocabulary has 70" in result.err
          and "--vocab-size 60" in result.err, str(result))
    whole_vocabulary(folder, command, source)


def more_rows(folder):
    """So are rows past vocab_size that aren't zero."""
    source = variant(folder, config={"vocab_size": 50})
    command = ("convert", source, folder / "there", "--to", MCORE)
    result = CKPT.run(*command).want(5)
    check("the vocabulary has 50 rows" in result.err
          and "--vocab-size 60" in result.err, str(result))
    whole_vocabulary(folder, command, source)


def whole_vocabulary(folder, command, source):
    result = CKPT.ok(*command, "--vocab-size", 60)
    check("warning" not in result.err, str(result))
    check_equal(config_in(folder / "there")["vocab_size"], 60, "kept")
    want = read_safetensors(source / "model.safetensors")
    for kept in (True, False):
        back = folder / f"back{kept}"
        CKPT.ok("convert", folder / "there", back, "--to", "safetensors", "-q")
        check_equal(config_in(back)["vocab_size"], 60, f"config.json {kept}")
        compare(read_safetensors(back / "model.safetensors"), want, "tensors")
        for path in (folder / "there").rglob("config.json"):
            path.unlink()


def padded(folder):
    """Rows of zeros are padding, wherever they come from."""
    from safetensors.numpy import load_file, save_file

    source = variant(folder, config={"vocab_size": 50})
    path = source / "model.safetensors"
    tensors = load_file(path)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name].copy()
        tensors[name][50:] = 0
    save_file(tensors, path, metadata={"format": "pt"})
    CKPT.ok("convert", source, folder / "there", "--to", MCORE)
    CKPT.ok("verify", source, folder / "there")


def hint_of_padding(folder):
    """Rows of a Megatron checkpoint past the args' vocab_size that aren't zero:
    both numbers in the hint work, with just the family's name."""
    source = DATA / "megatron_legacy/llama_te_tp2_pp2/ckpt"
    for to in ("safetensors", "modelopt"):
        home = ("convert", source, folder / to, "--to", to, "-q",
                "--model-only", "--family", "llama")
        result = CKPT.run(*home).want(5)
        check("--vocab-size 30 cuts" in result.err
              and "--vocab-size 32 keeps" in result.err, str(result))
        for rows in (30, 32):
            CKPT.ok(*home, "--vocab-size", rows, "--overwrite")
            check_equal(config_in(folder / to)["vocab_size"], rows, to)


def set_is_kept(folder):
    """The config.json that goes along has the value of --set, and nothing else
    changes."""
    there = folder / "there"
    CKPT.ok("convert", MODEL, there, "--to", MCORE, "--set", "eps=0.001", "-q")
    want = json.loads((MODEL / "config.json").read_text())
    check_equal(config_in(there), {**want, "rms_norm_eps": 0.001}, "kept")
    CKPT.ok("convert", there, folder / "back", "--to", "safetensors", "-q")


def odd_key(folder):
    """The hint for a key that no model of the type has: named in a warning."""
    source = variant(folder, DATA / "hf/deepseek_v3_bf16/ckpt",
                     {"scoring_func": "softmax"})
    command = ("convert", source, folder / "there", "--to", MCORE)
    result = CKPT.run(*command).want(5)
    check("--allow-unsaid scoring_func" in result.err, str(result))
    result = CKPT.ok(*command, "--allow-unsaid", "scoring_func")
    check("scoring_func softmax" in result.err, str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, (files, words) in SAID.items():
        suite.add(name, said, files, words)
    for name, files in FITS.items():
        suite.add(name, not_said, files)
    suite.add("dequantized weights", dequantized)
    suite.add("told by verify", told_by_verify)
    suite.add("fewer rows than vocab_size", fewer_rows)
    suite.add("rows past vocab_size are tokens", more_rows)
    suite.add("rows of zeros past vocab_size", padded)
    suite.add("the hint of rows that pad", hint_of_padding)
    suite.add("--set and the config.json that goes along", set_is_kept)
    suite.add("a key that no model of the type says", odd_key)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
