# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of all kinds and what llama.cpp's converter makes of them. Writes
tests/data/gguf_tokenizer/CASE: the folder's files, and keys.json.

    .venv/bin/python tests/generators/gguf_tokenizer.py LLAMA_CPP [CASE...]

LLAMA_CPP has conversion/ and gguf-py/. It needs transformers and sentencepiece.
Tokenizers are trained on ckpt's own documentation, by `tokenizers` and by
sentencepiece, and put into folders by transformers' classes where it has one.
keys.json: each key that set_vocab() of the architecture's class gives its
writer, in the order in which it is given: [[key, type, value], ...].

A trained tokenizer has no place in the converter's list of hashes, so what
get_vocab_base_pre() returns is said here, from the model that each stands for.
"""

import io
import json
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LLAMA_CPP = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py"),
                os.path.join(sys.prefix, "transformers_5.12.1")]
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1",
                  TOKENIZERS_PARALLELISM="false",
                  PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")
OUT = ROOT / "tests/data/gguf_tokenizer"

TEXT = [line for name in ("README.md", "docs/architecture.md", "docs/gpu.md",
                          "docs/scaling.md")
        for line in (ROOT / name).read_text().splitlines() if line.strip()]
TEXT += ["naïve café über Größe", "привет мир, как дела", "你好世界 我们在工作",
         "I'll we've they're 12345 3.14", "    indented\t\ttabs"] * 20

# Expressions of models whose tokenizer.json has them, by llama.cpp's comments
# and its own lists.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
         r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = CASED % (SHORT, SHORT, "{1,3}")
TEKKEN = CASED % ("", "", "")
DEEPSEEK3 = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
             "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
             "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]"
             "*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]


def trained_bytes(steps, post=None, ignore_merges=False, normalizer=None,
                  specials=(), size=384):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = (steps[0] if len(steps) == 1
                               else pre_tokenizers.Sequence(steps))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens(list(specials))
    if post:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def splits(*expressions):
    from tokenizers import Regex, pre_tokenizers

    return [pre_tokenizers.Split(Regex(text), "isolated")
            for text in expressions] + [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def byte_level(**options):
    from tokenizers import pre_tokenizers

    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def template(first=None, last=None):
    def post(tokenizer):
        from tokenizers import processors

        around = [f"{first} "] if first else [], [f" {last}"] if last else []
        single = "".join(around[0]) + "$A" + "".join(around[1])
        pair = single + "".join(f" {token}:1" for token in [first] if token)
        pair += " $B:1" + (f" {last}:1" if last else "")
        return processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=single, pair=pair, special_tokens=[
                    (token, tokenizer.token_to_id(token))
                    for token in (first, last) if token])])
    return post


def just_bytes(tokenizer):
    from tokenizers import processors

    return processors.ByteLevel(trim_offsets=False)


def save(folder, tokenizer, config, **model):
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        {"tokenizer_class": "PreTrainedTokenizerFast"}, **config)))
    model.setdefault("vocab_size", tokenizer.get_vocab_size() + 5)
    (folder / "config.json").write_text(json.dumps(model))


# A few rules of nmt_nfkc: its whole map has 240 kB.
RULES = "9\t20\nA\t20\nD\t20\n3000\t20\nFF41\t61\nFF21\t41\nFB01\t66 69\n"


def pieces(folder, name="tokenizer.model", rules=False, **options):
    """sentencepiece's own model file."""
    import sentencepiece

    if rules:
        (folder / "rules.tsv").write_text(RULES)
        options.update(normalization_rule_tsv=str(folder / "rules.tsv"))

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=made, num_threads=1,
        **dict(dict(vocab_size=520, model_type="bpe", byte_fallback=True,
                    normalization_rule_name="identity",
                    remove_extra_whitespaces=False, pad_id=-1,
                    minloglevel=2), **options))
    (folder / name).write_bytes(made.getvalue())
    (folder / "rules.tsv").unlink(missing_ok=True)


def gpt2(folder):
    save(folder, trained_bytes([byte_level()], just_bytes,
                               specials=["<|endoftext|>"]),
         dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>",
              unk_token="<|endoftext|>", tokenizer_class="GPT2Tokenizer"),
         model_type="gpt2", bos_token_id=384, eos_token_id=384)


def of_class(folder, module, name, config, **model):
    import importlib

    trained = json.loads(trained_bytes([byte_level()]).to_str())["model"]
    cls = getattr(importlib.import_module(f"transformers.models.{module}"),
                  name)
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = cls(vocab=dict(trained["vocab"]), merges=merges, **config)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.save_pretrained(folder)
    model.setdefault("vocab_size", len(tokenizer) + 9)
    (folder / "config.json").write_text(json.dumps(model))


def qwen2(folder):
    of_class(folder, "qwen2", "Qwen2Tokenizer",
             dict(eos_token="<|im_end|>", pad_token="<|endoftext|>",
                  extra_special_tokens=["<|im_start|>", "<|im_end|>"],
                  chat_template="{% for m in messages %}{{ m }}{% endfor %}"),
             model_type="qwen2", bos_token_id=384, eos_token_id=384)


def qwen35(folder):
    of_class(folder, "qwen3_5", "Qwen3_5Tokenizer",
             dict(eos_token="<|im_end|>", pad_token="<|endoftext|>"),
             model_type="qwen3_5")


def llama3(folder):
    save(folder, trained_bytes(
        splits(LLAMA3), template("<|begin_of_text|>"), True,
        specials=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]),
        dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>",
             clean_up_tokenization_spaces=True, chat_template=[
                 dict(name="default", template="{{ messages }}"),
                 dict(name="tool-use", template="{{ tools }}")]),
        model_type="llama", bos_token_id=384, eos_token_id=[385, 386])


def deepseek3(folder):
    save(folder, trained_bytes(
        splits(*DEEPSEEK3), template("<｜begin▁of▁sentence｜>"),
        specials=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                  "<｜▁pad▁｜>"]),
        {key: {"__type": "AddedToken", "content": token, "normalized": True}
         for key, token in (("bos_token", "<｜begin▁of▁sentence｜>"),
                            ("eos_token", "<｜end▁of▁sentence｜>"),
                            ("pad_token", "<｜▁pad▁｜>"))}
        | dict(add_bos_token=True, add_eos_token=False),
        model_type="deepseek_v3")


def gpt_oss(folder):
    save(folder, trained_bytes(
        splits(GPT4O), just_bytes, True,
        specials=["<|startoftext|>", "<|endoftext|>", "<|return|>"]),
        dict(bos_token="<|startoftext|>", eos_token="<|return|>",
             pad_token="<|endoftext|>"), model_type="gpt_oss")


def tekken(folder):
    save(folder, trained_bytes(
        splits(TEKKEN), template("<s>"), True, specials=["<unk>", "<s>",
                                                         "</s>", "[INST]"]),
        dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>",
             add_prefix_space=False), model_type="mistral")


def starcoder(folder):
    from tokenizers import pre_tokenizers

    save(folder, trained_bytes(
        [pre_tokenizers.Digits(individual_digits=True), byte_level()],
        just_bytes, specials=["<|endoftext|>", "<fim_prefix>"]),
        dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>"),
        model_type="starcoder2")


def glm4(folder):
    save(folder, trained_bytes(
        splits(LLAMA3), just_bytes, True,
        specials=["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>",
                  "<|observation|>"]),
        dict(eos_token="<|endoftext|>", pad_token="<|endoftext|>"),
        model_type="glm4", eos_token_id=[384, 387])


def roberta(folder):
    def post(tokenizer):
        from tokenizers import processors

        return processors.RobertaProcessing(
            ("</s>", tokenizer.token_to_id("</s>")),
            ("<s>", tokenizer.token_to_id("<s>")))

    save(folder, trained_bytes([byte_level()], post,
                               specials=["<s>", "<pad>", "</s>", "<unk>",
                                         "<mask>"]),
         dict(bos_token="<s>", eos_token="</s>", cls_token="<s>",
              sep_token="</s>", pad_token="<pad>", mask_token="<mask>",
              tokenizer_class="RobertaTokenizer"),
         model_type="roberta", type_vocab_size=1)


def of_pieces(folder, name="LlamaTokenizer", added=(), config=(), **model):
    """What transformers makes of tokenizer.model, beside it."""
    import transformers

    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        dict(tokenizer_class=name, bos_token="<s>", eos_token="</s>",
             unk_token="<unk>"), **dict(config))))
    (folder / "config.json").write_text(json.dumps(dict(
        dict(model_type="llama", vocab_size=540), **model)))
    keep = (folder / "tokenizer.model").read_bytes()
    tokenizer = getattr(transformers, name).from_pretrained(str(folder))
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(keep)
    # As the Hub's files have it, which older releases made.
    text = json.loads((folder / "tokenizer.json").read_text())
    first, one = (dict(SpecialToken=dict(id="<s>", type_id=at))
                  for at in (0, 1))
    text["post_processor"] = dict(
        type="TemplateProcessing",
        single=[first, dict(Sequence=dict(id="A", type_id=0))],
        pair=[first, dict(Sequence=dict(id="A", type_id=0)), one,
              dict(Sequence=dict(id="B", type_id=1))],
        special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])})
    (folder / "tokenizer.json").write_text(json.dumps(text,
                                                      ensure_ascii=False))


def llama2(folder):
    pieces(folder)
    of_pieces(folder)


def llama2_model(folder):
    pieces(folder)
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="llama", vocab_size=530, bos_token_id=1, eos_token_id=2)))
    (folder / "added_tokens.json").write_text(json.dumps(
        {"<|im_start|>": 520, "<tool>": 521}))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="LlamaTokenizer", add_bos_token=True,
        add_eos_token=False, bos_token="<s>", added_tokens_decoder={
            "520": dict(content="<|im_start|>", special=True)})))


def llama2_json(folder):
    llama2(folder)
    (folder / "tokenizer.model").unlink()


def phi3(folder):
    pieces(folder)
    of_pieces(folder, added=["<|user|>", "<|end|>"], model_type="phi3")


def gemma2(folder):
    pieces(folder, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2,
           unk_id=3, pad_piece="<pad>", bos_piece="<bos>", eos_piece="<eos>")
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>",
        pad_token="<pad>", unk_token="<unk>", added_tokens_decoder={
            str(i): dict(content=token, special=True) for i, token
            in enumerate(["<pad>", "<eos>", "<bos>", "<unk>"])})))
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="gemma2", vocab_size=520, bos_token_id=2, eos_token_id=1,
        pad_token_id=0)))


def gemma4(folder):
    llama2(folder)
    (folder / "tokenizer.model").unlink()
    text = json.loads((folder / "tokenizer.json").read_text())
    text["normalizer"] = dict(type="Replace", pattern=dict(String=" "),
                              content="▁")
    text["pre_tokenizer"] = None
    text["decoder"]["decoders"] = [
        step for step in text["decoder"]["decoders"] if step["type"] != "Strip"]
    (folder / "tokenizer.json").write_text(json.dumps(text,
                                                      ensure_ascii=False))
    config = json.loads((folder / "config.json").read_text())
    config.update(vocab_size=520)
    (folder / "config.json").write_text(json.dumps(config))


def t5(folder):
    pieces(folder, "spiece.model", model_type="unigram", vocab_size=300,
           byte_fallback=False, rules=True,
           remove_extra_whitespaces=True, pad_id=0, eos_id=1, unk_id=2,
           bos_id=-1, pad_piece="<pad>")
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="t5", vocab_size=320, eos_token_id=1, pad_token_id=0)))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        tokenizer_class="T5Tokenizer", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>")))


def xlm_roberta(folder):
    """A charsmap and whitespace that is split, as XLM-R has them."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers, processors, trainers

    plain = folder / "spiece.model"
    pieces(folder, "spiece.model", model_type="unigram", vocab_size=300,
           byte_fallback=False, rules=True)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(plain.read_bytes())
    plain.unlink()
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(
        proto.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(TEXT, trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)])
    save(folder, tokenizer, dict(
        tokenizer_class="XLMRobertaTokenizer", bos_token="<s>",
        eos_token="</s>", cls_token="<s>", sep_token="</s>", unk_token="<unk>",
        pad_token="<pad>", mask_token="<mask>", add_prefix_space=True,
        clean_up_tokenization_spaces=True),
        model_type="xlm-roberta", type_vocab_size=1, vocab_size=300)


def bert(folder, **normal):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from tokenizers import decoders, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normal)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(
        vocab_size=420, show_progress=False, special_tokens=[
            "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    save(folder, tokenizer, dict(
        tokenizer_class="BertTokenizer", cls_token="[CLS]", sep_token="[SEP]",
        pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]",
        do_lower_case=normal.get("lowercase", True)),
        model_type="bert", type_vocab_size=2, vocab_size=430)


def bert_cased(folder):
    bert(folder, lowercase=False, strip_accents=False)


# case: (what makes it, GGUF's architecture, module and class of the converter,
# what get_vocab_base_pre says).
CASES = {
    "gpt2": (gpt2, "gpt2", "gpt2", "GPT2Model", "gpt-2"),
    "qwen2": (qwen2, "qwen2", "qwen", "Qwen2Model", "qwen2"),
    "qwen35": (qwen35, "qwen35", "base", "TextModel", "qwen35"),
    "llama3": (llama3, "llama", "llama", "LlamaModel", "llama-bpe"),
    "deepseek3": (deepseek3, "deepseek2", "base", "TextModel", "deepseek-v3"),
    "gpt_oss": (gpt_oss, "gpt-oss", "gpt_oss", "GptOssModel", "gpt-4o"),
    "tekken": (tekken, "llama", "llama", "LlamaModel", "tekken"),
    "starcoder": (starcoder, "starcoder2", "starcoder", "StarCoder2Model",
                  "starcoder"),
    "glm4": (glm4, "glm4", "glm", "Glm4Model", "glm4"),
    "glm4_moe": (glm4, "glm4moe", "glm", "Glm4MoeModel", "glm4"),
    "roberta": (roberta, "bert", "bert", "RobertaModel", "roberta-bpe"),
    "llama2": (llama2, "llama", "llama", "LlamaModel", None),
    "llama2_model": (llama2_model, "llama", "llama", "LlamaModel", None),
    "llama2_json": (llama2_json, "llama", "llama", "LlamaModel", None),
    "phi3": (phi3, "phi3", "phi", "Phi3MiniModel", None),
    "gemma2": (gemma2, "gemma2", "gemma", "Gemma2Model", None),
    "gemma4": (gemma4, "gemma4", "gemma", "Gemma4Model", None),
    "t5": (t5, "t5", "t5", "T5Model", None),
    "xlm_roberta": (xlm_roberta, "bert", "bert", "XLMRobertaModel", None),
    "bert": (bert, "bert", "bert", "BertModel", "bert-bge"),
    "bert_cased": (bert_cased, "bert", "bert", "BertModel", "bert-bge"),
}
TYPES = dict(UINT32="u32", BOOL="bool", STRING="str", INT32="i32",
             FLOAT32="f32", UINT8="u8")


def typed(writer):
    import gguf

    keys = []
    for key, value in writer.kv_data[0].items():
        if key == "general.architecture":
            continue
        said, kind = value.value, TYPES.get(value.type.name)
        if value.type.name == "ARRAY":
            inner = (gguf.GGUFValueType.UINT8 if isinstance(said, bytes)
                     else gguf.GGUFValueType.get_type(said[0]))
            kind = "arr:" + TYPES[inner.name]
            said = [one.decode() if isinstance(one, bytes) else
                    int(one) if kind == "arr:i32" else one for one in said]
        keys.append([key, kind, said])
    return keys


def keys_of(folder, architecture, module, name, pre):
    import importlib

    import gguf
    cls = getattr(importlib.import_module(f"conversion.{module}"), name)
    model = object.__new__(cls)
    model.dir_model = folder
    model.hparams = json.loads((folder / "config.json").read_text())
    model.gguf_writer = gguf.GGUFWriter(None, architecture)
    model.is_mistral_format = False
    model.origin_hf_arch = model.hf_arch = None
    model.get_vocab_base_pre = lambda tokenizer: pre
    model.set_vocab()
    return typed(model.gguf_writer)


# What tokenizer.json has beside the post_processor.
BASE = dict(
    added_tokens=[dict(id=at, content=text, special=True) for at, text in
                  enumerate(["<s>", "</s>", "<pad>", "[CLS]", "[SEP]",
                             "<|end|>"])],
    pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False),
    normalizer=None,
    model=dict(type="BPE", vocab={"a": 6, "b": 7, "ab": 8}, merges=["a b"]))


def special_files(rng):
    """A folder's files about special tokens, drawn: a value is JSON, or text."""
    tokens = [token["content"] for token in BASE["added_tokens"]]

    def around(first):
        token = rng.choice(tokens[:2] + tokens[3:])
        return [dict(SpecialToken=dict(id=token, type_id=0))] * (
            rng.random() < (0.7 if first else 0.5))

    def text(name):
        return [dict(Sequence=dict(id=name, type_id=0))]

    def processor(deep=True):
        kind = rng.randrange(5 if deep else 4)
        if kind == 0:
            return dict(type="ByteLevel", trim_offsets=False)
        if kind == 1:
            return dict(type="RobertaProcessing", sep=["</s>", 1],
                        cls=["<s>", 0])
        if kind < 4:
            first, last = around(True), around(False)
            pair = (first + text("A") + last * (rng.random() < 0.8)
                    + around(False) + around(False) + text("B") + last)
            return dict(type="TemplateProcessing",
                        single=first + text("A") + last,
                        pair=pair if rng.random() < 0.8 else text("A"))
        return dict(type="Sequence", processors=[
            processor(False) for _ in range(rng.randint(1, 2))])

    def token():
        said = rng.choice(tokens + ["<none>"])
        return rng.choice([said, said, dict(content=said), None])

    def template():
        return rng.choice(["{{ a }}", None, [
            dict(name=rng.choice(["default", "tool use"]), template="{{ b }}"),
            dict(name="rag", template="{{ c }}")]])

    names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
    config = {f"{name}_token": token() for name in names if rng.random() < 0.5}
    config.update({f"add_{name}_token": rng.random() < 0.5
                   for name in ("bos", "eos", "sep") if rng.random() < 0.3})
    if rng.random() < 0.4:
        config["chat_template"] = template()
    ids = {f"{name}_token_id": rng.choice([0, 1, 4, [1, 5], None])
           for name in names if rng.random() < 0.4}
    files = {
        "tokenizer.json": dict(
            post_processor=processor() if rng.random() < 0.9 else None),
        "config.json": dict(text_config=ids) if rng.random() < 0.2 else ids}
    if rng.random() < 0.9:
        files["tokenizer_config.json"] = config
    if rng.random() < 0.2:
        files["chat_template.jinja"] = "{{ d }}"
    if rng.random() < 0.2:
        files["chat_template.json"] = dict(chat_template="{{ e }}")
    return files


def special_keys():
    """What SpecialVocab says of drawn folders."""
    import random
    import tempfile

    import gguf
    rng, cases = random.Random(1), []
    for _ in range(200):
        files = special_files(rng)
        with tempfile.TemporaryDirectory() as folder:
            for name, value in files.items():
                if name == "tokenizer.json":
                    value = BASE | value
                (Path(folder) / name).write_text(
                    value if isinstance(value, str) else json.dumps(value))
            writer = gguf.GGUFWriter(None, "gpt2")
            gguf.SpecialVocab(folder, load_merges=True).add_to_gguf(writer)
        cases.append(dict(files=files, keys=typed(writer)))
    (OUT.parent / "gguf_special.json").write_text(
        f'{{"base": {json.dumps(BASE)}, "cases": [\n'
        + ",\n".join(map(json.dumps, cases)) + "]}\n")


def encoded(folder):
    """Some texts by sentencepiece itself, where transformers has no file."""
    import sentencepiece

    path = next(folder.glob("*.model"))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [[text, processor.encode(text)] for text in (
        "Hello world", " Hello  World! ", "naïve CAFÉ über Größe ｆull ﬁt",
        "привет, мир! 你好", "3.14 33 333", "ckpt reads what torch.save writes",
        "tab\there", "x = [y ** 2 for y in range(10)]")]


def main():
    if not sys.argv[2:] or "special" in sys.argv[2:]:
        special_keys()
    for case, (make, *peer) in CASES.items():
        if sys.argv[2:] and case not in sys.argv[2:]:
            continue
        folder = OUT / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        keys = keys_of(folder, *peer)
        (OUT / case / "keys.json").write_text(json.dumps(
            dict(architecture=peer[0], keys=keys, **(
                dict(encoded=encoded(folder)) if case in ("t5", "gemma2")
                else {})), ensure_ascii=False) + "\n")
        print(case, sum(p.stat().st_size for p in folder.iterdir()) // 1024,
              "KiB", [key.removeprefix("tokenizer.ggml.") for key, *_ in keys])


if __name__ == "__main__":
    main()
