#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers between Hugging Face's files and GGUF's metadata.

tests/data/gguf_tokenizer has folders with what llama.cpp's converter makes of
them (tests/generators/gguf_tokenizer.py). ckpt writes the same keys, but for
what is listed here with the reason. The other way, the tokenizer.json that it
makes of the converter's keys encodes texts as the folder's own does, in the
`tokenizers` library.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from support import DATA, Skip, Suite, check, check_equal

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CASES = DATA / "gguf_tokenizer"
TABLE = DATA.parents[1] / "models/families/gguf_pre.json"
TOOL = None  # set by prepare

TEXTS = [
    "", " ", "  ", "\n", "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n",
    "Hello world", " Hello  World!", "Hello, y'all! How are you 😁 ?我想在apple工作",
    "I've been 'told he's there, 'RE you sure? 'M not sure I'LL make it",
    "3 33 333 3333 33333 333333 3.3 3..3 3...3", "naïve CAFÉ über Größe ｆull",
    "привет, мир! нещо на Български", "คำภาษาไทย कृपया", "a\r\nb\r\n\r\nc\td",
    "def f(x):\n    return [x_1 ** 2 for _ in range(10)]  # 100%",
    "ckpt converts checkpoints; the readers check every size they read.",
    "<s>text</s> [CLS] <|im_end|> <tool_call>{}</tool_call>", "=====~~~~''''\"\"",
]


class Tool:
    """The program beside ckpt that drives convert/tokenizer/tokenizer.h."""

    def __init__(self, path):
        self.path = path
        self.child = None

    def ask(self, **job):
        if self.child is None:
            self.child = subprocess.Popen(
                [self.path], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE)
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())


def golden(case):
    said = json.loads((CASES / case / "keys.json").read_text())
    return said["architecture"], said["keys"]


def folder_of(case, folder, **changes):
    """A copy of the case's files; `changes`: file's name to text, None for none
    or a function of its JSON."""
    for path in (CASES / case).iterdir():
        if path.name != "keys.json":
            (folder / path.name).write_bytes(path.read_bytes())
    for name, change in changes.items():
        path = folder / name.replace("__", ".")
        if change is None:
            path.unlink()
        elif callable(change):
            value = json.loads(path.read_text())
            change(value)
            path.write_text(json.dumps(value))
        else:
            path.write_text(change)
    return folder


def keys_of(case, folder, rows=None):
    architecture, keys = golden(case)
    if rows is None:
        rows = len(dict((key, value) for key, _, value in keys)[
            "tokenizer.ggml.tokens"])
    return TOOL.ask(op="out", folder=str(folder), rows=rows,
                    architecture=architecture)


# What ckpt writes otherwise than the converter, and why.
def expected(case, keys):
    keys = [list(key) for key in keys]
    by_name = {key[0].removeprefix("tokenizer.ggml."): key for key in keys}
    if by_name["model"][2] == "bert":
        # A hash of what the converter encodes; llama.cpp reads it for BPE only.
        by_name["pre"][2] = "default"
    return keys


def ranks(scores):
    """Scores as far as they matter: which is larger."""
    order = {score: at for at, score in enumerate(sorted(set(scores)))}
    return [order[score] for score in scores]


def test_out(home, case):
    with tempfile.TemporaryDirectory(dir=home) as folder:
        got = keys_of(case, folder_of(case, Path(folder)))
    check("keys" in got, got)
    want = expected(case, golden(case)[1])
    if case == "llama2_json":
        # The converter gives all tokens one score, so that llama.cpp would join
        # from the left; here it is the order of the merges: of tokenizer.model.
        model = {key: value for key, _, value in golden("llama2")[1]}
        scores = next(key[2] for key in got["keys"] if key[0].endswith("scores"))
        normal = [at for at, kind in enumerate(
            model["tokenizer.ggml.token_type"]) if kind == 1]
        made = [at for at in normal
                if scores[at] != -1000]
        check(len(made) > 50, "tokens are made by merges")
        check_equal(ranks([scores[at] for at in made]),
                    ranks([model["tokenizer.ggml.scores"][at] for at in made]),
                    "order of scores")
        # It leaves out the rows that fill up the embedding, too.
        for key in want:
            if key[0].endswith(("tokens", "scores", "token_type")):
                key[2] = next(one[2] for one in got["keys"] if one[0] == key[0]
                              )[:len(key[2])] if key[0].endswith(
                                  "scores") else key[2]
        for key in got["keys"]:
            size = len(want[2][2])
            if isinstance(key[2], list):
                key[2] = key[2][:size]
    check_equal([key[:2] for key in got["keys"]], [key[:2] for key in want],
                "keys")
    for mine, theirs in zip(got["keys"], want):
        check_equal(close(mine[2]), close(theirs[2]), mine[0])


def close(value):
    """Numbers as the file has them, in 32 bits."""
    import numpy

    if isinstance(value, list) and value and isinstance(value[0], float):
        return numpy.asarray(value, numpy.float32).tolist()
    return value


def load(text):
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


def original(case, folder):
    path = folder / "tokenizer.json"
    if path.exists():
        return load(path.read_text())
    raise Skip("the folder has no tokenizer.json")


def test_back(home, case):
    """tokenizer.json out of the converter's keys."""
    keys = {key: value for key, _, value in golden(case)[1]}
    with tempfile.TemporaryDirectory(dir=home) as folder:
        if case == "llama2_json":
            # Scores that say nothing: those that ckpt writes instead.
            keys = {key: value for key, _, value
                    in keys_of(case, folder_of(case, Path(folder)))["keys"]}
        other = dict(llama2_model="llama2", t5=None, gemma2=None).get(case, case)
        if other is None:
            return check_pieces(case, keys)
        own = original(other, CASES / other)
    got = TOOL.ask(op="in", metadata=keys)
    check("files" in got, got)
    made = load(got["files"]["tokenizer.json"])
    # SentencePiece and llama.cpp put a space before one, too, and after each
    # special token; what transformers 5 makes of tokenizer.model does neither.
    llama = keys["tokenizer.ggml.model"] == "llama"
    texts = [text for text in TEXTS if not llama or (
        "<" not in text and not text.startswith(" "))]
    for text in texts:
        for special in (False, True):
            check_equal(made.encode(text, add_special_tokens=special).ids,
                        own.encode(text, add_special_tokens=special).ids,
                        f"ids of {text!r}")
        ids = made.encode(text, add_special_tokens=False).ids
        check_equal(made.decode(ids, skip_special_tokens=False),
                    own.decode(ids, skip_special_tokens=False),
                    f"text of {text!r}")
    check_equal(made.encode("a b", "c").ids, own.encode("a b", "c").ids, "pair")
    for name in ("bos", "eos", "unk", "pad"):
        config = json.loads(got["files"]["tokenizer_config.json"])
        token = config.get(f"{name}_token")
        key = dict(unk="unknown", pad="padding").get(name, name)
        number = keys.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None and number is not None:
            check_equal(made.token_to_id(token), number, name)


def test_auto(home, case):
    """transformers' AutoTokenizer loads the files as they are."""
    from transformers import AutoTokenizer

    architecture, keys = golden(case)
    keys = {key: value for key, _, value in keys}
    got = TOOL.ask(op="in", metadata={
        **keys, "tokenizer.chat_template": "{{ messages[0]['content'] }}!"})
    for name, text in got["files"].items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    config = json.loads((CASES / case / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(
        dict(model_type=config.get("model_type", "llama"))))
    tokenizer = AutoTokenizer.from_pretrained(home)
    own = load(got["files"]["tokenizer.json"])
    for text in TEXTS:
        check_equal(tokenizer(text)["input_ids"], own.encode(text).ids,
                    f"ids of {text!r}")
    said = [dict(role="user", content="Hi")]
    check_equal(tokenizer.apply_chat_template(said, tokenize=False), "Hi!",
                "chat")
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"),
                      ("pad", "padding"), ("mask", "mask")):
        want = keys.get(f"tokenizer.ggml.{key}_token_id")
        if want is not None and keys["tokenizer.ggml.model"] != "bert":
            check_equal(getattr(tokenizer, f"{name}_token_id"), want, name)


def check_pieces(case, keys):
    """Where transformers makes no tokenizer.json: sentencepiece's own ids, which
    the generator put beside the keys."""
    said = json.loads((CASES / case / "keys.json").read_text())
    got = TOOL.ask(op="in", metadata=keys)
    check("files" in got, got)
    made = load(got["files"]["tokenizer.json"])
    for text, ids in said["encoded"]:
        check_equal(made.encode(text, add_special_tokens=False).ids, ids,
                    f"ids of {text!r}")


def test_there_and_back(home, case):
    """What ckpt makes of the keys has the same keys again."""
    architecture, keys = golden(case)
    metadata = {key: value for key, _, value in keys}
    got = TOOL.ask(op="in", metadata=metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    with tempfile.TemporaryDirectory(dir=home) as folder:
        for name, text in got["files"].items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (Path(folder) / "config.json").write_text(json.dumps(dict(
            vocab_size=len(tokens),
            type_vocab_size=metadata.get("tokenizer.ggml.token_type_count", 1))))
        again = TOOL.ask(op="out", folder=folder, rows=len(tokens),
                         architecture=architecture)
    check("keys" in again, again)
    again = {key: value for key, _, value in again["keys"]}
    rows = json.loads(TABLE.read_text())["rows"]
    names = {name: row["regexes"] for row in rows for name in row["names"]}
    want, pre = metadata.get("tokenizer.ggml.pre"), again.get(
        "tokenizer.ggml.pre")
    check_equal(names.get(pre), names.get(want), f"{pre}, {want}")
    for key in ("model", "tokens", "merges", "bos_token_id",
                "eos_token_id", "padding_token_id", "mask_token_id"):
        key = f"tokenizer.ggml.{key}"
        want = {one[0]: one[2] for one in expected(case, keys)}.get(key)
        if want is not None:
            check_equal(again.get(key), want, key)


def test_pre(home):
    """Each name that the converter writes is found by what it stands for, or a
    name of a row that does the same."""
    from tokenizers import Regex, pre_tokenizers

    rows = json.loads(TABLE.read_text())["rows"]
    tokens = [chr(code) for code in range(33, 127)] + ["<s>", "ab"]
    # llama.cpp's engine has no classes of marks and of letters by case: where
    # its expressions are adapted, words of scripts with marks differ.
    plain = [text for text in TEXTS if "\u0e33" not in text]
    for row in rows:
        texts = [row["regexes"], row.get("original", row["regexes"])]
        cut = []
        for expressions in texts:
            cutter = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(text), "isolated")
                for text in expressions])
            cut.append([[word for word, _ in cutter.pre_tokenize_str(text)]
                        for text in plain])
        check_equal(cut[0], cut[1], f"words of {row['names']}")
        if row.get("raw"):
            continue
        for name in row["written"]:
            metadata = {"tokenizer.ggml.model": "gpt2",
                        "tokenizer.ggml.pre": name,
                        "tokenizer.ggml.tokens": tokens,
                        "tokenizer.ggml.merges": ["a b"],
                        "tokenizer.ggml.bos_token_id": 94}
            got = TOOL.ask(op="in", metadata=metadata)
            check("files" in got, f"{name}: {got}")
            with tempfile.TemporaryDirectory(dir=home) as folder:
                for file, text in got["files"].items():
                    (Path(folder) / file).write_text(text)
                again = TOOL.ask(op="out", folder=folder, rows=0,
                                 architecture=name)
            found = {key: value for key, _, value in again["keys"]}[
                "tokenizer.ggml.pre"]
            other = next(one for one in rows if found in one["names"])
            for key in ("regexes", "ignore_merges"):
                check_equal(other.get(key), row.get(key),
                            f"{key} of {found} for {name}")


def late_merge(value):
    """One of two ways to make a token comes last."""
    merges, seen = value["model"]["merges"], set()
    for at, pair in enumerate(merges):
        if "".join(pair) in seen:
            merges.append(merges.pop(at))
            return
        seen.add("".join(pair))
    raise AssertionError("no token is made in two ways")


def turn(value):
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {
        token: 3 + len(vocab) - 1 - id if id > 2 else id
        for token, id in vocab.items()}


def test_special(home, part):
    """Special tokens and chat templates of drawn folders, as SpecialVocab of
    the gguf package reads them."""
    drawn = json.loads((DATA / "gguf_special.json").read_text())
    refusals = 0
    for number, case in list(enumerate(drawn["cases"]))[part::4]:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            for name, value in case["files"].items():
                if name == "tokenizer.json":
                    value = drawn["base"] | value
                (Path(folder) / name).write_text(
                    value if isinstance(value, str) else json.dumps(value))
            got = TOOL.ask(op="out", folder=folder, rows=0, architecture="gpt2")
        want = [key for key in case["keys"] if key[0] != "tokenizer.ggml.merges"]
        by_name = {key[0].removeprefix("tokenizer.ggml."): key[2]
                   for key in want}
        # llama.cpp would add the token 11 for one without an id.
        if any(by_name.get(f"add_{end}_token") and f"{end}_token_id"
               not in by_name for end in ("bos", "eos")):
            refused(got, 5, "neither tokenizer_config.json nor")
            refusals += 1
            continue
        check("keys" in got, f"{number}: {got}")
        keys = got["keys"][5:]
        for key in keys + want:  # a set, there
            if key[0] == "tokenizer.chat_templates":
                key[2] = sorted(key[2])
        check_equal(keys, want, f"case {number}: {case['files']}")
    check(refusals < 25, f"{refusals} are refused")


def refused(got, code, text):
    check_equal(got.get("code"), code, f"exit status of {got}")
    check(text in got["error"], got)


def test_refusals(home):
    def change(**parts):
        return lambda value: value.update(parts)

    def model(**parts):
        return lambda value: value["model"].update(parts)

    split = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    whole = dict(type="ByteLevel", add_prefix_space=False, use_regex=False)
    prefix = dict(type="ByteLevel", add_prefix_space=True, use_regex=True)
    late = {"type": "Sequence", "pretokenizers": [
        dict(whole, use_regex=True), {"type": "Digits",
                                      "individual_digits": True}]}
    removed = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "'s|'t|'re|'ve|'m|'ll|'d| ?"
                                      "\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                      "|\\s+(?!\\S)"},
         "behavior": "Removed", "invert": True}, whole]}
    cases = [
        *(("gpt2", change(pre_tokenizer=one), 5, "no tokenizer.ggml.pre")
          for one in (whole, late, removed)),
        ("qwen2", change(pre_tokenizer=split), 5, "no tokenizer.ggml.pre"),
        ("qwen2", change(pre_tokenizer=None), 5, "no tokenizer.ggml.pre"),
        ("qwen2", change(normalizer={"type": "Lowercase"}), 5, "Lowercase"),
        ("llama2_json", late_merge, 5, "other ones between them"),
        ("llama2_json", lambda value: value["model"]["merges"].pop(), 5,
         "not all pairs"),
        ("bert", change(normalizer=None), 5, "not as BERT"),
        ("gpt2", model(end_of_word_suffix="</w>"), 5, "end_of_word_suffix"),
        ("gpt2", model(type="Unknown"), 5, "not known to llama.cpp"),
        ("gpt2", model(vocab={"a": -1}), 4, "id"),
        ("gpt2", model(vocab={"a": 1 << 40}), 4, "id"),
        ("gpt2", model(vocab=7), 4, "another kind"),
        ("gpt2", model(merges=["ab"]), 4, "not a pair"),
        ("gpt2", change(model=None), 4, "another kind"),
        ("gpt2", change(added_tokens=[{"id": 5, "content": "a"}]), 5, "both"),
    ]
    for case, how, code, text in cases:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            folder_of(case, Path(folder), tokenizer__json=how)
            got = keys_of(case, folder, rows=0)
        refused(got, code, text)
        check(code == 4 or "--tokenizer-from" in got["hint"], got)
    with tempfile.TemporaryDirectory(dir=home) as folder:
        # The same ids for other texts.
        refused(keys_of("llama2", folder_of("llama2", Path(folder),
                                            tokenizer__json=turn)), 5,
                "of another tokenizer than tokenizer.model")
    # What is silent adds nothing; llama.cpp would.
    for case, config, said in (
            ("llama2", {}, None), ("tekken", {}, False),
            ("llama2", {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
            ("llama2", {"add_bos_token": True}, True)):
        with tempfile.TemporaryDirectory(dir=home) as folder:
            got = keys_of(case, folder_of(
                case, Path(folder), tokenizer__json=change(post_processor=None),
                tokenizer_config__json=change(**config)))
        check_equal({key: value for key, _, value in got["keys"]}.get(
            "tokenizer.ggml.add_bos_token"), said, f"{case} {config}")
        check_equal([note for note in got["notes"] if "no file says" in note],
                    [] if said is not None else ["no file says whether a bos "
                    "token is added to a text: llama.cpp does"], "notes")
    # llama.cpp's BPE has no space before a text: said, since only the first
    # word differs.
    with tempfile.TemporaryDirectory(dir=home) as folder:
        got = keys_of("gpt2", folder_of(
            "gpt2", Path(folder), tokenizer__json=change(pre_tokenizer=prefix)))
        check("a space before each text" in got["notes"][0], got["notes"])
    with tempfile.TemporaryDirectory(dir=home) as folder:
        got = keys_of("gpt2", folder_of(
            "gpt2", Path(folder), tokenizer__json=lambda value: value[
                "added_tokens"][0].update(lstrip=True)))
        check("1 added token" in got["notes"][0], got["notes"])
    with tempfile.TemporaryDirectory(dir=home) as folder:
        refused(keys_of("qwen2", folder_of("qwen2", Path(folder)), rows=100), 5,
                "has no row in an embedding of 100 rows")
        (Path(folder) / "none").mkdir()
        (Path(folder) / "tekken").mkdir()
        (Path(folder) / "tekken/tekken.json").write_text("{}")
        refused(TOOL.ask(op="out", folder=str(Path(folder) / "tekken"), rows=0,
                         architecture="llama"), 5, "without tokenizer.json")
        check_equal(TOOL.ask(op="out", folder=str(Path(folder) / "none"),
                             rows=0, architecture="llama")["keys"], [], "keys")


def test_slow(home):
    """vocab.json and merges.txt, or vocab.txt, are what tokenizer.json is."""
    for case in ("gpt2", "qwen2", "bert"):
        with tempfile.TemporaryDirectory(dir=home) as folder:
            folder = folder_of(case, Path(folder))
            want = keys_of(case, folder)["keys"]
            whole = json.loads((folder / "tokenizer.json").read_text())
            (folder / "tokenizer.json").unlink()
            vocab, added = whole["model"]["vocab"], whole["added_tokens"]
            if case == "bert":
                (folder / "vocab.txt").write_text(
                    "".join(f"{token}\n" for token in sorted(
                        vocab, key=vocab.get)))
            else:
                (folder / "vocab.json").write_text(json.dumps(vocab))
                (folder / "merges.txt").write_text(
                    "#version: 0.2\n" + "".join(
                        f"{a} {b}\n" for a, b in whole["model"]["merges"]))
            config = json.loads((folder / "tokenizer_config.json").read_text())
            config.setdefault("added_tokens_decoder", {
                str(token["id"]): token for token in added})
            config["tokenizer_class"] = dict(
                gpt2="GPT2Tokenizer", qwen2="Qwen2Tokenizer").get(
                    case, "BertTokenizer")
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            got = keys_of(case, folder)
        check("keys" in got, got)
        names = [f"tokenizer.ggml.{name}" for name in (
            "model", "pre", "tokens", "token_type", "merges")]
        check_equal([key for key in got["keys"] if key[0] in names],
                    [key for key in want if key[0] in names], case)


def test_metadata(home):
    keys = {key: value for key, _, value in golden("llama2")[1]}
    ggml = "tokenizer.ggml."
    for key, value, code in (
            ("model", "rwkv", 5), ("model", 7, 4), ("tokens", None, 4),
            ("tokens", [], 4), ("tokens", ["a", "a"], 4), ("scores", [1], 4),
            ("token_type", [9] * len(keys[ggml + "tokens"]), 4),
            ("bos_token_id", 1 << 40, 4), ("bos_token_id", -1, 4),
            ("add_bos_token", 1, 4), ("scores", ["a"], 4)):
        refused(TOOL.ask(op="in", metadata={**keys, ggml + key: value}), code,
                "test.gguf")
    for name in ("../x", "a/b", "", "x" * 99):
        refused(TOOL.ask(op="in", metadata={
            **keys, f"tokenizer.chat_template.{name}": "t"}), 4, "a name with")
    got = TOOL.ask(op="in", metadata={
        **keys, "tokenizer.chat_template": "a", "tokenizer.chat_template.b": "c",
        ggml + "eot_token_id": 5})
    check_equal(got["files"]["chat_template.jinja"], "a", "template")
    check_equal(got["files"]["additional_chat_templates/b.jinja"], "c", "b")
    check_equal(json.loads(got["files"]["generation_config.json"])[
        "eos_token_id"], [2, 5], "ends")
    check_equal(TOOL.ask(op="in", metadata={})["files"], {}, "no tokenizer")
    whole = (CASES / "llama2/tokenizer.json").read_text()
    got = TOOL.ask(op="in", metadata={
        **keys, "tokenizer.huggingface.json": whole})
    check_equal(got["files"]["tokenizer.json"], whole, "the whole file")
    refused(TOOL.ask(op="in", metadata={
        **keys, "tokenizer.huggingface.json": whole[:-9]}), 4, "test.gguf")


def test_hostile(home, seed):
    """sentencepiece's file with bytes changed, cut or put in."""
    rng = random.Random(seed)
    whole = (CASES / "llama2_model/tokenizer.model").read_bytes()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        folder_of("llama2_model", Path(folder))
        path = Path(folder) / "tokenizer.model"
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(data))
                kind = rng.randrange(3)
                if kind == 0:
                    data[at] = rng.randrange(256)
                elif kind == 1:
                    del data[at:]
                    data = data or bytearray(b"\n")
                else:
                    data[at:at] = rng.randbytes(rng.randint(1, 9))
            path.write_bytes(data)
            got = keys_of("llama2_model", folder)
            check("keys" in got or got["code"] in (4, 5), got)


ODD = [None, True, -1, 7, 1 << 40, 0.5, "", "x", "\u2581", [], [[]], {},
       {"type": "Sequence"}, {"type": "ByteLevel"}, [["a", "b"]], ["a b"]]


def turned(rng, value):
    """The value with one inside of it replaced, left out or put in twice."""
    value = json.loads(json.dumps(value))
    at = value
    while True:
        inside = list(at) if isinstance(at, dict) else range(len(at))
        key = rng.choice(list(inside))
        below = at[key]
        if isinstance(below, (dict, list)) and below and rng.random() < 0.8:
            at = below
            continue
        kind = rng.randrange(4)
        if kind == 0:
            del at[key]
        elif kind == 1 and isinstance(at, list):
            at.append(below)
        else:
            at[key] = rng.choice(ODD)
        return value


def test_odd(home, case):
    """Documents with a value of another kind somewhere: keys or files come of
    them, or an error that says what is wrong."""
    rng = random.Random(case)
    keys = {key: value for key, _, value in golden(case)[1]}
    for _ in range(60):
        got = TOOL.ask(op="in", metadata=turned(rng, keys))
        check("files" in got or got["code"] in (4, 5), got)
    with tempfile.TemporaryDirectory(dir=home) as folder:
        folder_of(case, Path(folder))
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            path = Path(folder) / name
            if not path.exists():
                continue
            whole = json.loads(path.read_text())
            for _ in range(60):
                path.write_text(json.dumps(turned(rng, whole)))
                got = keys_of(case, folder)
                check("keys" in got or got["code"] in (4, 5), got)
            path.write_text(json.dumps(whole))


def prepare(suite, ckpt):
    global TOOL
    TOOL = Tool(str(Path(ckpt.path).with_name("gguf_tokenizer_tool")))
    for path in sorted(CASES.iterdir()):
        suite.add(f"out {path.name}", test_out, path.name)
        suite.add(f"back {path.name}", test_back, path.name)
        suite.add(f"there and back {path.name}", test_there_and_back, path.name)
        if path.name != "llama2_json":  # its scores say nothing
            suite.add(f"auto {path.name}", test_auto, path.name)
        suite.add(f"odd {path.name}", test_odd, path.name)
    for part in range(4):
        suite.add(f"special {part}", test_special, part)
    suite.add("pre", test_pre)
    suite.add("refusals", test_refusals)
    suite.add("slow", test_slow)
    suite.add("metadata", test_metadata)
    for seed in range(2):
        suite.add(f"hostile {seed}", test_hostile, seed)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
