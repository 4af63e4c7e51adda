#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people type by mistake, and what ckpt must tell them.

A row: the command line, its exit status, what the first line says (after
"error: "), what the hint says. mistakes_more.py has more rows, of what is
damaged, incomplete or another tool's.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

import mistakes_more
import mistakes_scene as scene
from mistakes_scene import clean, mistake, run, works, write
from support import Suite, check, check_equal

U = "unshard tp4 out.pt "
R = "reshard tp4 out "
# (command line, exit status, in the first line, in the hint)
ROWS = (
    # commands
    ("", 2, "no command given", "ckpt inspect PATH"),
    ("insepct tp4", 2, "unknown command 'insepct'", "did you mean ckpt inspect?"),
    ("inspct tp4", 2, "unknown command 'inspct'", "did you mean ckpt inspect?"),
    ("reshrad tp4 out", 2, "unknown command 'reshrad'", "ckpt reshard"),
    ("verfiy tp4", 2, "unknown command", "ckpt verify"),
    ("hash tp4", 2, "unknown command 'hash'", "ckpt inspect PATH --digest"),
    ("info tp4", 2, "unknown command 'info'", "ckpt inspect PATH"),
    ("describe tp4", 2, "unknown command", "ckpt inspect PATH"),
    ("list tp4", 2, "unknown command 'list'", "ckpt ls PATH"),
    ("keys tp4", 2, "unknown command 'keys'", "ckpt ls PATH"),
    ("dir tp4", 2, "unknown command 'dir'", "ckpt ls PATH"),
    ("ls-l tp4", 2, "unknown command 'ls-l'", "ckpt ls PATH"),
    ("cat tp4", 2, "unknown command 'cat'", "ckpt show PATH NAME"),
    ("du tp4", 2, "unknown command 'du'", "ckpt inspect PATH"),
    ("tree tp4", 2, "unknown command 'tree'", "ckpt inspect PATH --tree"),
    ("stats tp4", 2, "unknown command 'stats'", "ckpt inspect PATH --stats"),
    ("download x", 2, "unknown command 'download'", "ckpt fetch URL DST"),
    ("get tp4 x", 2, "unknown command 'get'", "ckpt show PATH NAME"),
    ("merge tp4 out", 2, "one source: there is nothing to merge it with",
     "ckpt unshard SRC DST"),
    ("average tp4 tp4 out", 2, "unknown command", "ckpt merge SRC... DST"),
    ("rename tp4 out", 2, "unknown command 'rename'", "--rename 'old.=new.'"),
    ("plan tp4 out", 2, "unknown command 'plan'", "--dry-run"),
    ("formats", 2, "unknown command 'formats'", "ckpt --help"),
    ("grep q_proj tp4", 2, "unknown command 'grep'", "ckpt ls PATH -e REGEX"),
    ("push tp4", 2, "unknown command 'push'", "hf upload ORG/NAME DIR"),
    ("upload tp4", 2, "unknown command 'upload'", "s3://BUCKET/PATH"),
    ("extract tp4 out", 2, "unknown command 'extract'", "--keys GLOB"),
    ("upgrade tp4 out", 2, "unknown command 'upgrade'", "ckpt convert SRC DST"),
    ("quantize tp4 out", 2, "unknown command 'quantize'", "--quantize KIND"),
    ("gguf tp4 out", 2, "unknown command 'gguf'", "ckpt convert SRC DST.gguf"),
    ("merge-lora tp4 out", 2, "unknown command", "--adapter DIR"),
    ("export tp4 out", 2, "unknown command 'export'", "--to hf"),
    ("inspect tp4 --step 300", 2, "unknown option --step for `ckpt inspect`",
     "a step is a path below its root"),
    ("consolidate tp4 out", 2, "unknown command", "ckpt unshard SRC DST"),
    ("zero_to_fp32 tp4 out", 2, "unknown command", "ckpt unshard SRC DST"),
    ("split tp4 out", 2, "unknown command", "ckpt reshard SRC DST --tp N"),
    ("cast tp4 out", 2, "unknown command", "ckpt convert SRC DST --to"),
    ("check tp4", 2, "unknown command", "ckpt verify PATH"),
    ("fsck tp4", 2, "unknown command", "ckpt verify PATH"),
    ("compare tp4 tp4", 2, "unknown command", "ckpt diff A B"),
    ("repair tp4 out", 2, "unknown command", "ckpt salvage SRC DST"),
    ("tp4", 2, "unknown command 'tp4'", "ckpt inspect tp4"),
    ("-v tp4", 2, "'-v' comes before the command", "ckpt COMMAND"),
    # arguments
    ("inspect", 2, "PATH is required", "usage: ckpt inspect PATH"),
    ("ls", 2, "PATH is required", "usage: ckpt ls PATH"),
    ("show", 2, "PATH is required", "usage: ckpt show PATH NAME"),
    ("reshard", 2, "SRC is required", "usage: ckpt reshard SRC DST"),
    ("convert", 2, "SRC is required", "usage: ckpt convert SRC DST"),
    ("unshard", 2, "SRC is required", "usage: ckpt unshard SRC DST"),
    ("reshard tp4", 2, "DST is required", "usage: ckpt reshard SRC DST"),
    ("diff tp4", 2, "B is required", "usage: ckpt diff A B"),
    ("inspect tp4 llama", 2, "unexpected argument 'llama'",
     "usage: ckpt inspect PATH"),
    ("reshard tp4 out more", 2, "unexpected argument 'more'", "usage:"),
    ("inspect tp4 --jsn", 2, "unknown option --jsn for `ckpt inspect`",
     "did you mean --json?"),
    ("inspect tp4 --stat", 2, "unknown option --stat", "--stats"),
    ("inspect tp4 -json", 2, "unknown option -json", "--json"),
    ("inspect tp4 -keys x", 2, "-keys", "--keys"),
    ("inspect tp4 --tp 2", 2, "unknown option --tp for `ckpt inspect`", ""),
    ("inspect tp4 --keys", 2, "--keys", "--help"),
    ("inspect @nofile", 3, "nofile: no such file of arguments", "./@nofile"),
    ("inspect @args", 2, "unknown option --jsn", "--json"),
    # numbers and words
    (U + "--max-mem 5XB", 2, '--max-mem: invalid size "5XB"', "5GB"),
    (U + "--max-mem lots", 2, '--max-mem: invalid size "lots"', "5GB"),
    (U + "--max-mem 1", 7, "--max-mem 1: at least 16MiB", "1GiB"),
    (U + "--max-shard-size 0", 2, "--max-shard-size 0", ""),
    (U + "-j -1", 2, "--threads '-1': expected 0 to", "as many as processors"),
    (U + "-j many", 2, "--threads 'many': expected 0 to", "processors"),
    *((U + f"--dtype {w}", 2, f"--dtype '{w}': expected bf16", "a quantizer")
      for w in ("int4", "int8", "torch.int8", "fp4", "nf4", "q8_0")),
    (U + "--dtype bf61", 2, "--dtype 'bf61': expected bf16, f16", ""),
    (U + "--color sometimes", 2, "--color 'sometimes': expected", ""),
    ("inspect tp4 --io fast", 2, "--io 'fast': expected auto", ""),
    ("inspect tp4 --layers x", 2, "--layers x: 'x' is not a layer", "0-15,20"),
    ("inspect tp4 --layers 5-2", 2, "--layers 5-2: 2 comes before 5", ""),
    ("inspect tp4 --layers 99", 5, "there is no layer 99", ""),
    (R + "--tp x", 2, "--tp 'x': expected a number", "4:8"),
    (R + "--tp 0", 2, "--tp '0': expected a number", "4:8"),
    (R + "--tp 4-", 2, "--tp '4-': the shell took what follows", "--tp 4:8"),
    (R + "--tp 2:8", 2, "--tp 2:8: the source has tp=4, not 2", "--tp 4:8"),
    (R + "--tp 3", 5, "which 3 tensor-parallel ranks do not divide",
     "sizes that divide every tensor: 1, 2, 4, 8"),
    # formats
    ("convert llama out --to magatron_legacy", 2, "unknown format",
     "did you mean megatron_legacy?"),
    ("convert llama out --to safetensor", 2, "unknown format",
     "did you mean safetensors?"),
    ("inspect llama --from nope", 2, 'unknown format "nope"', "formats:"),
    ("convert llama out --to nemo", 5, "format nemo can be read, not written",
     "--to megatron_torch_dist"),
    ("convert llama out --to orbax", 5, "format orbax can be read, not written",
     "--to safetensors"),
    ("convert llama out --to megatron_fsdp_dtensor", 5, "can be read, not",
     "checkpoint_inspector.py"),
    ("convert llama out --to megatron_local", 5, "can be read, not written",
     "--to megatron_torch_dist"),
    ("reshard llama out --tp 2 --family lama", 2, "'lama'", "'llama'"),
    # targets
    ("unshard tp4 -", 2, "-: a checkpoint can't be written to a pipe", "./-"),
    ("unshard tp4 /dev/stdout", 2, "/dev/stdout: a checkpoint can't", ""),
    ("unshard tp4 out.gguf", 5, "nothing says the keys of a GGUF file",
     "ckpt convert SRC DST.gguf"),
    ("unshard tp4 out.h5", 2, "out.h5: ckpt does not write HDF5", ".pt"),
    ("unshard tp4 out.onnx", 2, "out.onnx: ckpt does not write ONNX", "optimum"),
    ("unshard tp4 out.nemo", 2, "out.nemo: ckpt does not write NeMo", "pack it"),
    ("unshard tp4 out.tar.gz", 2, "out.tar.gz: ckpt does not write", "pack it"),
    ("unshard tp4 out.pkl", 2, "out.pkl: ckpt does not write", "name it .pt"),
    ("unshard tp4 hf://b/x", 2, "hf://b/x: can be read, not written", ""),
    ("reshard tp4 llama --tp 2", 5, "llama: already exists", "--overwrite"),
    ("reshard tp4 tp4 --tp 2", 2, "tp4: the target would replace the source",
     "write beside it"),
    ("reshard tp4 tp4/in --tp 2", 2,
     "tp4/in: the target is inside the source", "write beside it"),
    ("reshard tp4 file --tp 2", 2, "file: is a file", "another name"),
    ("convert llama out --to megatron_torch_dist --drop *", 2,
     "llama: --drop leaves no tensor", ""),
    ("convert llama out --to safetensors --experts 0", 5,
     "llama: --experts 0: no tensor name has an expert", "only mixtures"),
    ("convert llama out --to safetensors --experts 0-3,2", 2,
     "--experts 0-3,2: expert 2 is named twice", ""),
    ("convert llama out --to safetensors --experts all", 2,
     "'all' is not a number of an expert", "--experts 0-31,40"),
    ("unshard tp4 out.pt --exclude *", 5, "leaves none of the 27 tensors",
     "--exclude *"),
    ("verify llama --keys nope*", 5, "--keys 'nope*' matches none of the",
     "a name here"),
    (U + "--keys nope*", 5, "--keys 'nope*' matches none of the 27 tensors",
     "a name here"),
    (U + "--rename bad.json", 2, "bad.json: --rename: ", "OLD: NEW"),
    (U + "--rename list.json", 2, "list.json: expected an object", ""),
    (U + "--rename none.json", 3, "none.json: ", ""),
    # paths
    ("inspect nothing", 3, "nothing: no such file or directory", ""),
    ("inspect lama", 3, "lama: no such file or directory",
     "did you mean ./llama?|did you mean llama?"),
    ("inspect no/such/dir", 3, "no/such/dir: no such file or directory", ""),
    ("inspect meta-llama/Llama-3", 3, "no such file",
     "hf://meta-llama/Llama-3"),
    ("inspect file:///nope", 3, "/nope: no such file or directory", ""),
    ("inspect -", 3, "-: a checkpoint can't be read from a pipe", "./-"),
    ("inspect /dev/stdin", 3, "/dev/stdin: a checkpoint can't be read",
     "save it to a file"),
    ("verify tp4 nothing", 3, "nothing: no such file or directory", ""),
    ("show llama nope", 3, "llama: no tensor or object named 'nope'", "ckpt ls"),
    ("show llama model.norm.weigth", 3, "no tensor or object named",
     "model.norm.weight"),
    ("show llama model.norm.weight[99]", 2, "index 99 of a dimension of 32",
     "as in NumPy"),
    # what is not a checkpoint
    ("inspect a.h5", 3, "a.h5: not a checkpoint: this is a Keras/HDF5",
     "h5py or Keras"),
    ("inspect a.keras", 3, "a.keras: not a checkpoint: this is a Keras file",
     "h5py or Keras"),
    ("inspect a.onnx", 3, "a.onnx: not a checkpoint: this is an ONNX model",
     "onnx.numpy_helper"),
    ("inspect flax_model.msgpack", 3, "this is a Flax checkpoint",
     "from_flax=True"),
    ("inspect a.gguf", 4, "more than a file of 108 bytes can have",
     "fetch or copy it again"),
    ("inspect frozen.pb", 3, "frozen.pb: not a checkpoint: this is a TensorFlow",
     "from_tf=True"),
    ("inspect a.nemo", 3, "a.nemo: has no model_weights", "save_to"),
    ("inspect orbax", 4, 'key "tree_metadata" is missing', "download"),
    ("inspect orbax1", 3, "orbax1: not a recognized checkpoint",
     "orbax.checkpoint"),
    ("inspect tf", 3, "tf: not a recognized checkpoint", "from_tf=True"),
    ("inspect tf1", 3, "tf1: not a recognized checkpoint", "from_tf=True"),
    ("inspect plain.pkl", 3, "plain.pkl: not a checkpoint: this is a Python",
     "--from torch"),
    ("inspect notes.txt", 3, "notes.txt: not a recognized checkpoint",
     "-v shows what was tried"),
    ("inspect logs", 3, "logs: not a recognized checkpoint", "-v shows"),
    ("inspect nothing_in_it", 3, "nothing_in_it: an empty directory", ""),
    ("inspect runs", 3, "runs: not a recognized checkpoint",
     "below it are: run1 (safetensors), run2 (safetensors), run3"),
    ("inspect models--org--name/snapshots", 3, "not a recognized checkpoint",
     "below it is: abc (safetensors)"),
    ("inspect tp4/step_100/model/pp_00", 3, "not a recognized checkpoint",
     "below it are: tp_00"),
    # what is damaged, or not there
    *((f"inspect lfs.{e}", 3,
       f"lfs.{e}: not a checkpoint: this is a git-lfs pointer", "git lfs pull")
      for e in ("safetensors", "pt", "pth", "bin", "ckpt")),
    ("inspect stub", 3, "this is a git-lfs pointer", "git lfs pull"),
    *((f"inspect page.{e}", 3,
       f"page.{e}: not a checkpoint: this is an HTML page", "download failed")
      for e in ("safetensors", "pt", "bin")),
    *((f"inspect empty.{e}", 3, f"empty.{e}: an empty file (0 bytes)",
       "copy the file again") for e in ("safetensors", "pt", "bin")),
    ("inspect cut.safetensors", 4, "cut.safetensors: ", ""),
    ("inspect cut.pt", 4, "cut.pt: ", "copy or download it again"),
    ("unshard half out.pt", 4, "half/step_100", ""),
)

# Command lines that people type and that simply work.
WORKS = (
    "version", "--version", "-V", "help", "-h", "--help", "help inspect",
    "inspect -h", "inspect --help", U + "--max-mem 4G", U + "--max-mem 512M",
    U + "-j 0", "convert llama out.safetensors", "convert llama out.pt",
    "inspect tp4/", "inspect ./tp4", "inspect models--org--name",
    R + "--tp 4:8", R + "--tp 4->8", R + "--tp 4→8",
)
DTYPES = {"fp16": "F16", "half": "F16", "BF16": "BF16", "bfloat16": "BF16",
          "fp32": "F32", "float": "F32", "float32": "F32", "fp64": "F64"}


def dtype(folder, word, want):
    """Type names from torch, Hugging Face and config files."""
    try:
        run(f"unshard tp4 out.safetensors --dtype {word}").want(0)
        header = (scene.SCENE / "out.safetensors").read_bytes()
        size = int.from_bytes(header[:8], "little")
        rows = json.loads(header[8:8 + size])
        rows.pop("__metadata__", None)
        check_equal({row["dtype"] for row in rows.values()}, {want}, word)
    finally:
        clean()


def short_and_long_help(folder):
    short, full = run("convert -h").want(0), run("convert --help").want(0)
    check(len(short.out.splitlines()) < 30, short.out)
    check(len(full.out.splitlines()) > 60, full.out)
    for line in (short.out + full.out).splitlines():
        check(len(line) <= 80, f"{len(line)} columns: {line}")


def one_line_for_a_kind(folder):
    """42 warnings of one kind become one line with a count."""
    from safetensors.numpy import save_file
    import numpy
    names = [f"t{i}" for i in range(42)]
    save_file({n: numpy.zeros(2, "f4") for n in names},
              folder / "model-00001-of-00001.safetensors")
    write(folder / "model.safetensors.index.json", json.dumps(
        {"metadata": {"total_size": 8}, "weight_map":
         {"t0": "model-00001-of-00001.safetensors"}}))
    result = scene.CKPT.run("inspect", folder)
    lines = [l for l in result.err.splitlines() if l.startswith("warning: ")]
    kinds = {p["kind"] for p in
             scene.CKPT.ok("inspect", folder, "--json").json()["problems"]}
    check(len(lines) <= len(kinds), result.err)
    check("40 more like it" in result.err, result.err)
    every = scene.CKPT.ok("inspect", folder, "-vv").err.splitlines()
    check_equal(sum(l.startswith("warning: ") for l in every), 41 + len(kinds)
                - 1, "warnings at -vv")


def steps_are_said(folder):
    """With several steps, the first line says which one is used."""
    first = run("inspect steps").want(0).err.splitlines()[0]
    check_equal(first, "note: steps holds 2 steps; this is step_200", "note")


def json_errors(folder):
    """The same mistakes under --json: one document, the same status."""
    for line, status, first, hint in ROWS[23:60:6] + ROWS[80:130:8]:
        result = run(line + " --json").want(status)
        if "color" in line:
            continue
        document = json.loads(result.err)
        check_equal(document["schema"], "ckpt/error/1", line)
        check_equal(document["error"]["status"], status, line)


# Names of formats elsewhere, and what the hint has to name. Megatron's:
# --ckpt-format, --non-persistent-ckpt-type and its packages.
NAMES = {
    "zarr": "megatron_zarr",
    "torch_dcp": "dcp", "local": "megatron_local",
    "torch_dist dist_ckpt dist-ckpt megatron_dist mcore_dist dist_checkpointing":
        "megatron_torch_dist",
    "fsdp_dtensor megatron_fsdp": "megatron_fsdp_dtensor",
    "mcore megatron Megatron-LM megatron_core": "megatron_torch_dist",
    "mp_rank megatron_torch": "megatron_legacy",
    "hf HF huggingface HuggingFace transformers st safetensor safe_tensors "
    "SafeTensors .safetensors mlx sglang tensorrt_llm": "safetensors",
    "llama.cpp ollama lmstudio": "gguf",
    "onnx": "optimum-cli", "npz npy": "numpy", "h5 keras tf tflite": "safetensors",
    "jax flax maxtext orbx": "orbax",
    "pt pth bin ckpt .pt pytorch torch.save pickle": "torch",
    "fsdp fsdp2 distcp DCP torch_distributed": "dcp",
    "zero zero3 deepspeed_zero universal deep-speed": "deepspeed",
    "lightning pytorch_lightning pl": "run, with --trainer lightning",
    "verl": "run, with --trainer verl",
    "accelerate": "run, with --trainer accelerate",
    "torchtitan titan": "run, with --trainer torchtitan",
    "hf_trainer trainer": "run, with --trainer hf_trainer",
    "nanotron openrlhf diffusers composer": "run, with --trainer",
    "nemo2": "format run", "Nemo": "nemo", "olmo OLMo-core olmocore": "olmo_core",
    "fairseq": "fairseq2", "llama consolidated": "meta",
    "sharded_state": "vllm",
}


def names_of_formats(_):
    line = scene.CKPT.run("inspect", scene.SCENE / "llama", "--from", "nope").err
    formats = re.split(", ?", line.partition("hint: formats: ")[2].strip())
    check("safetensors" in formats, line)
    for names, want in NAMES.items():
        for name in names.split():
            done = scene.CKPT.run("inspect", scene.SCENE / "llama", "--from", name)
            hint = done.err.partition("hint: ")[2].strip()
            check_equal(done.code, 2, name)
            check(f'unknown format "{name}"' in done.err, str(done))
            check(re.search(rf"\b{re.escape(want)}\b", hint),
                  f"{name}: {hint}")
            check(not hint.startswith("formats:"), f"{name}: {hint}")
            meant = re.match(r"did you mean (\w+)\?", hint)
            check(not meant or meant[1] in formats, f"{name}: {hint}")


def prepare(suite, ckpt):
    scene.CKPT = ckpt
    scene.SCENE = Path(tempfile.mkdtemp(prefix="ckpt_mistakes_")).resolve()
    mistakes_more.make_more(scene.SCENE)
    for row in ROWS + mistakes_more.ROWS:
        suite.add(f"$ ckpt {row[0]}", mistake, *row)
    for line in WORKS + mistakes_more.WORKS:
        suite.add(f"works: {line}", works, line)
    for word, want in DTYPES.items():
        suite.add(f"dtype {word}", dtype, word, want)
    for case in (names_of_formats, short_and_long_help, one_line_for_a_kind,
                 steps_are_said, json_errors):
        suite.add(case.__name__, case)
    mistakes_more.add_cases(suite)


if __name__ == "__main__":
    try:
        Suite(__doc__).main(prepare)
    finally:
        if scene.SCENE:
            shutil.rmtree(scene.SCENE)
