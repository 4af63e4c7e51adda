# SPDX-License-Identifier: Apache-2.0
"""The pre-tokenizers that llama.cpp knows by name. Writes
models/families/gguf_pre.json from its source.

    .venv/bin/python tests/generators/gguf_pre.py LLAMA_CPP

tokenizer.ggml.pre names a list of expressions and some flags, which are code in
src/llama-vocab.cpp. conversion/base.py finds the name by what the tokenizer
makes of a text; ckpt, which runs no tokenizer, by the expressions.

A row is a branch of the code: names that mean the same. "written" are those
that the converter writes. "original" has the expressions that the comments give
as tokenizer.json's own, where llama.cpp's are adapted to what its engine knows.
Rows are in the order of the code, kinds with more names first: what most models
have is what is meant where nothing tells two names apart.
"""

import collections
import json
import re
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "models/families/gguf_pre.json"
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
FLAGS = ("ignore_merges", "add_bos", "add_sep", "escape_whitespaces")
# Expressions that stand for code in src/unicode.cpp.
CODE = ("\\p{Han}+", "\\p{AFMoE_digits}")


def unescape(text):
    return json.loads(f'"{text}"'.replace("\\'", "'"))


def cases(source):
    """kind -> its expressions, the originals of them, and whether text stays as
    it is instead of in GPT-2's letters for bytes."""
    body = source[source.index("struct llm_tokenizer_bpe : "):]
    body = body[:body.index("std::vector<std::string> regex_exprs;")]
    made, kinds = {}, []
    for part in re.split(r"(case LLAMA_VOCAB_PRE_TYPE_\w+:|default:|break;)",
                         body):
        if part.startswith("case "):
            kinds.append(re.search(r"TYPE_(\w+):", part)[1])
        elif part == "default:":
            kinds.append("DEFAULT")
        elif "regex_exprs = {" in part:
            listed = part[part.index("regex_exprs = {"):]
            code, originals = [], []
            for line in listed.splitlines():
                comment = line.strip().startswith("//")
                found = [unescape(text) for text in STRING.findall(line)]
                if not comment:
                    code += found
                elif found and line.strip().rstrip(",").endswith('"'):
                    originals += found
            before = part[:part.index("regex_exprs = {")]
            originals += [unescape(text) for line in before.splitlines()
                          if line.strip().startswith("//")
                          for text in STRING.findall(line)
                          if line.strip().endswith('"')]
            case = dict(regexes=code, raw="byte_encode = false" in part)
            # One original replaces the longest expression, the adapted one.
            if originals and len(originals) == len(code):
                case["original"] = originals
            elif len(originals) == 1:
                longest = max(range(len(code)), key=lambda i: len(code[i]))
                case["original"] = [originals[0] if i == longest else text
                                    for i, text in enumerate(code)]
            for kind in kinds:
                made[kind] = case
            kinds = []
    return made


def branches(source):
    """(names, kind, flags) in the order of the code."""
    chain = source[source.index("// for now, only BPE models have pre-tok"):]
    chain = chain[:chain.index("unknown pre-tokenizer type")]
    for branch in re.split(r"else if \(", chain):
        names = re.findall(r'tokenizer_pre == "([^"]+)"', branch)
        kind = re.search(r"pre_type = LLAMA_VOCAB_PRE_TYPE_(\w+);", branch)
        if names and kind:
            yield names, kind[1], {
                flag for flag in FLAGS if f"{flag} = true" in branch}


def main():
    root = Path(sys.argv[1])
    source = (root / "src/llama-vocab.cpp").read_text()
    written = set(re.findall(
        r'res = "([^"]+)"', (root / "conversion/base.py").read_text()))
    made, rows = cases(source), []
    for names, kind, flags in branches(source):
        case = made[kind]
        if kind == "DEFAULT" or set(CODE) & set(case["regexes"]):
            continue
        rows.append(dict(
            names=names, written=[name for name in names if name in written],
            kind=kind, **{flag: True for flag in FLAGS if flag in flags},
            **{key: value for key, value in case.items() if value}))
    count = collections.Counter()
    for row in rows:
        count[row["kind"]] += len(row["names"])
    order = list(made)
    rows.sort(key=lambda row: (-count[row["kind"]], order.index(row["kind"])))
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    OUT.write_text(f'{{"rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows, {sum(count.values())} names")


if __name__ == "__main__":
    main()
