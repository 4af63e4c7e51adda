#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NeMo 1's archives, written as its NLPSaveRestoreConnector does (1.23): a
state dict of torch.save, ranks' state dicts or a folder that megatron-core's
dist_checkpointing.save wrote, and Python's tarfile around them. The weights
are goldens in Megatron's names; what comes out is compared with the Hugging
Face model that they are.
"""

import gzip
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile

from ranks_test import MPIRUN, job_environment
from support import (
    DATA, Skip, Suite, check, check_equal, compare, load_any, read_safetensors,
    torch_tensors)

CKPT = None
MODELS = ("llama", "llama_mha_f16", "llama_tied_bf16")
ROWS = ("word_embeddings.weight", "output_layer.weight", "linear_qkv.weight",
        "linear_qkv.bias")
COLUMNS = ("linear_proj.weight", "linear_fc2.weight")
SIZES = {"num_layers": "num_hidden_layers", "hidden_size": "hidden_size",
         "ffn_hidden_size": "intermediate_size",
         "num_attention_heads": "num_attention_heads",
         "num_query_groups": "num_key_value_heads",
         "layernorm_epsilon": "rms_norm_eps",
         "max_position_embeddings": "max_position_embeddings",
         "encoder_seq_length": "max_position_embeddings"}
# Saves from one process, as NeMo's connector saves a model's sharded state.
SAVE = """
import os, sys
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing as dc
from megatron.core.dist_checkpointing.mapping import ShardedTensor

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: torch.device("cpu")
source, out = sys.argv[1:]
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
dist.init_process_group("gloo", rank=0, world_size=1,
                        store=dist.HashStore())
state = {}
weights = torch.load(source)
layers = 1 + max((int(n.split(".")[2]) for n in weights
                  if n.startswith("decoder.layers.")), default=-1)
for name, tensor in weights.items():
    key, lead = name, ()
    if name.startswith("decoder.layers."):
        number, rest = name[len("decoder.layers."):].split(".", 1)
        key, lead = "decoder.layers." + rest, ((0, int(number), layers),)
    state[name] = ShardedTensor.from_rank_offsets(
        "model." + key, tensor, *lead, prepend_axis_num=len(lead))
os.makedirs(out)
dc.save(state, out, ("torch_dist", 1))
"""


def golden(name):
    """Weights by canonical names, the HF directory, its tensors."""
    from safetensors.torch import load_file

    case = DATA / "hf" / name
    hf = case / "ckpt"
    return (load_file(case / "expected_mcore.safetensors"), hf,
            json.loads((hf / "config.json").read_text()))


def config_text(config):
    """model_config.yaml, as OmegaConf saves it."""
    theta = config.get("rope_theta") or config.get(
        "rope_parameters", {}).get("rope_theta", 10000.0)
    tied = str(config.get("tie_word_embeddings", False)).lower()
    lines = ["mcore_gpt: true", "micro_batch_size: 1"]
    lines += [f"{ours}: {config[theirs]:.10f}" if ours == "layernorm_epsilon"
              else f"{ours}: {config[theirs]}"
              for ours, theirs in SIZES.items() if theirs in config]
    return "\n".join([
        *lines, "kv_channels: null", "normalization: rmsnorm",
        "activation: fast-swiglu", "bias: false",
        "position_embedding_type: rope", "rotary_percentage: 1.0",
        f"rotary_base: {theta}", "make_vocab_size_divisible_by: 128",
        f"share_embeddings_and_output_weights: {tied}",
        "precision: bf16-mixed", "tokenizer:", "  library: sentencepiece",
        "  model: nemo:0a1b2c_tokenizer.model", "optim:",
        "  name: fused_adam", "  betas:", "  - 0.9", "  - 0.98",
        "nemo_version: 1.23.0", ""])


def rank_state(weights, layers, tp, rank, pp, stage):
    """What one rank's module holds: its cut, with its own layer numbers."""
    import torch

    first, last = layers * stage // pp, layers * (stage + 1) // pp
    state = {}
    for name, tensor in weights.items():
        if name.startswith("decoder.layers."):
            number, rest = name[len("decoder.layers."):].split(".", 1)
            if not first <= int(number) < last:
                continue
            name = f"decoder.layers.{int(number) - first}.{rest}"
        elif stage != (0 if name.startswith("embedding.") else pp - 1):
            continue
        if name.endswith(ROWS):
            tensor = tensor.chunk(tp)[rank]
        elif name.endswith(COLUMNS):
            tensor = tensor.chunk(tp, 1)[rank]
        elif name.endswith("linear_fc1.weight"):
            gate, up = tensor.chunk(2)
            tensor = torch.cat([gate.chunk(tp)[rank], up.chunk(tp)[rank]])
        state[name] = tensor.clone()
    return state


def save_state(path, state, prefix="model."):
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    named = {prefix + name: tensor for name, tensor in state.items()}
    # transformer_engine's, without fp8
    named[prefix + "decoder.layers.0.self_attention.linear_qkv._extra_state"
          ] = io.BytesIO()
    torch.save(named, path)


def write_folder(folder, model, tp, pp, *, prefix="model."):
    weights, _, config = golden(model)
    layers = config["num_hidden_layers"]
    folder.mkdir(parents=True)
    (folder / "model_config.yaml").write_text(config_text(config))
    (folder / "0a1b2c_tokenizer.model").write_bytes(b"a tokenizer")
    for rank in range(tp):
        for stage in range(pp):
            name = "model_weights.ckpt"
            if pp > 1:
                name = f"tp_rank_{rank:02d}_pp_rank_{stage:03d}/{name}"
            elif tp > 1:
                name = f"mp_rank_{rank:02d}/{name}"
            save_state(folder / name,
                       rank_state(weights, layers, tp, rank, pp, stage),
                       prefix)
    return folder


def write_dist(folder, model):
    try:
        import megatron.core  # noqa: F401
    except ImportError as error:
        raise Skip("megatron-core is not in .venv") from error
    import torch

    weights, _, config = golden(model)
    folder.mkdir(parents=True)
    (folder / "model_config.yaml").write_text(config_text(config))
    torch.save(weights, folder / "w.pt")
    done = subprocess.run(
        [sys.executable, "-c", SAVE, folder / "w.pt",
         folder / "model_weights"], capture_output=True, text=True,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
    check_equal(done.returncode, 0, done.stderr[-2000:])
    (folder / "w.pt").unlink()
    return folder


def pack(folder, path, mode="w:", form=tarfile.PAX_FORMAT):
    with tarfile.open(path, mode, format=form) as tar:
        tar.add(folder, arcname=".")
    return path


def check_model(source, out, model, *options):
    _, hf, _ = golden(model)
    CKPT.ok("convert", source, out, "--to", "safetensors", "--dialect", "hf",
            "--family", "llama", "--config-from", hf, *options)
    want = {}
    for file in sorted(hf.glob("*.safetensors")):
        want.update(read_safetensors(file))
    got = {}
    for file in sorted(out.glob("*.safetensors")):
        got.update(read_safetensors(file))
    compare(got, want, "the Hugging Face model")


# -------------------------------------------------------------------- reading
def test_one(folder, model, prefix):
    source = pack(write_folder(folder / "in", model, 1, 1, prefix=prefix),
                  folder / "x.nemo")
    shown = CKPT.inspect(source)
    check_equal(shown["format"], "torch", "format")
    check_model(source, folder / "out", model)
    CKPT.ok("verify", source, "--deep")
    CKPT.ok("unshard", source, folder / "one.pt")
    got = {n: t for n, t in torch_tensors(load_any(folder / "one.pt")).items()
           if not n.startswith("args")}
    weights, _, _ = golden(model)
    check_equal(sorted(got), sorted(prefix + n for n in weights), "names")


def test_ranks(folder, model, tp, pp):
    source = pack(write_folder(folder / "in", model, tp, pp),
                  folder / "x.nemo", form=tarfile.GNU_FORMAT)
    shown = CKPT.inspect(source)
    check_equal((shown["topology"]["tp"], shown["topology"]["pp"]), (tp, pp),
                "topology")
    check_model(source, folder / "out", model)
    CKPT.ok("verify", source, "--deep")


def test_dist(folder, model):
    source = pack(write_dist(folder / "in", model), folder / "x.nemo")
    check_equal(CKPT.inspect(source)["format"], "megatron_torch_dist",
                "format")
    check_model(source, folder / "out", model)
    check_model(folder / "in", folder / "unpacked", model)
    CKPT.ok("verify", source, "--deep")


def test_own_numbers(folder):
    """Only model_config.yaml says what the model is."""
    source = pack(write_folder(folder / "in", "llama", 2, 1),
                  folder / "x.nemo")
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            "--dialect", "hf", "--family", "llama")
    want = golden("llama")[2]
    got = json.loads((folder / "out/config.json").read_text())
    for key in ("num_hidden_layers", "hidden_size", "intermediate_size",
                "num_attention_heads", "num_key_value_heads", "vocab_size",
                "max_position_embeddings", "rms_norm_eps"):
        check_equal(got[key], want[key], key)


def test_launched(folder):
    """Every rank of mpirun reads the members of the archive."""
    if not shutil.which("mpirun"):
        raise Skip("there is no mpirun")
    source = pack(write_folder(folder / "in", "llama", 2, 2),
                  folder / "x.nemo")
    ranks = [*MPIRUN, "-n", "3", CKPT.path]
    for command in (["verify", source, "--deep"],
                    ["unshard", source, folder / "of3.pt"]):
        done = subprocess.run([*map(str, ranks + command)],
                              env=job_environment(), capture_output=True,
                              text=True)
        check_equal(done.returncode, 0, done.stderr)
    CKPT.ok("unshard", source, folder / "of1.pt")
    check_equal(*(torch_tensors(load_any(folder / name))
                  for name in ("of3.pt", "of1.pt")), "tensors")


def test_in_place(folder):
    """Nothing but the target is written, whatever TMPDIR says."""
    source = pack(write_folder(folder / "in", "llama", 1, 1),
                  folder / "x.nemo")
    shutil.rmtree(folder / "in")
    (folder / "empty").mkdir()
    before = source.stat()
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors",
            env={"TMPDIR": str(folder / "empty")})
    check_equal(os.listdir(folder / "empty"), [], "TMPDIR")
    check_equal(sorted(os.listdir(folder)), ["empty", "out", "x.nemo"],
                "files")
    check_equal(source.stat().st_mtime_ns, before.st_mtime_ns, "the source")


def test_gzip(folder):
    source = pack(write_folder(folder / "in", "llama", 1, 1),
                  folder / "x.nemo", "w:gz")
    said = CKPT.run("inspect", source).want(5)
    check("gzip -dc" in said.err, said.err)
    (folder / "y.nemo").write_bytes(gzip.decompress(source.read_bytes()))
    CKPT.ok("inspect", folder / "y.nemo")


# -------------------------------------------------------------------- hostile
def archive(path, edit, form=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w:", format=form) as tar:
        def add(name, data=b"x", **fields):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in fields.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))
        add("./model_config.yaml", b"num_layers: 1\n")
        edit(add)
    return path


def test_refused(folder):
    rows = {
        "leaves": (lambda add: add("../a"), "leaves the archive"),
        "inner": (lambda add: add("a/../../b"), "leaves the archive"),
        "absolute": (lambda add: add("/etc/passwd"), "name '/etc/passwd'"),
        "symlink": (lambda add: add("a", b"", type=tarfile.SYMTYPE,
                                    linkname="/etc"), "a symbolic link"),
        "hardlink": (lambda add: add("a", b"", type=tarfile.LNKTYPE,
                                     linkname="b"), "a hard link"),
        "fifo": (lambda add: add("a", b"", type=tarfile.FIFOTYPE), "a FIFO"),
        "device": (lambda add: add("a", b"", type=tarfile.CHRTYPE),
                   "a device"),
        "twice": (lambda add: (add("a"), add("./a")), "two members are a"),
        "both": (lambda add: (add("a"), add("a/b")), "which is a file"),
        "sparse": (lambda add: add("a", pax_headers={"GNU.sparse.size": "9"}),
                   "sparse"),
        "pax size": (lambda add: add("a", pax_headers={"size": "9z"}),
                     "not a number"),
        "beyond": (lambda add: add("a", pax_headers={
            "size": str(1 << 60)}), "beyond the end"),
        "empty": (lambda add: None, "has no model_weights"),
    }
    for name, (edit, why) in rows.items():
        path = archive(folder / f"{name}.nemo", edit)
        said = CKPT.run("inspect", path)
        check(said.code in (3, 4), f"{name}: {said}")
        check(why in said.err, f"{name}: no '{why}' in {said}")
    long = "d/" * 120 + "f"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = archive(folder / "long.nemo", lambda add: add(long), form)
        said = CKPT.run("inspect", path)
        check("has no model_weights" in said.err, str(said))


def test_damaged(folder):
    """Any byte of a header, any length: an answer, never a crash."""
    source = pack(write_folder(folder / "in", "llama", 1, 1),
                  folder / "x.nemo")
    data = source.read_bytes()
    with tarfile.open(source) as tar:
        heads = [m.offset for m in tar]
    rng = random.Random(3)
    path = folder / "bad.nemo"
    for _ in range(60):
        bad = bytearray(data)
        if rng.random() < 0.3:
            bad = bad[:rng.randrange(len(bad))]
        else:
            at = rng.choice(heads) + rng.randrange(512)
            bad[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        said = CKPT.run("inspect", path)
        check(said.code in (0, 2, 3, 4, 5), str(said))
    cut = heads[-1]
    path.write_bytes(data[:cut])
    said = CKPT.run("inspect", path).want(4)
    check("without the blocks of zeros" in said.err, said.err)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for model in MODELS:
        suite.add(f"one {model}", test_one, model, "model.")
        suite.add(f"dist {model}", test_dist, model)
        for tp, pp in ((2, 1), (1, 2), (2, 2)):
            if model == "llama_tied_bf16":
                continue  # 61 rows: one rank
            suite.add(f"ranks {model} {tp} {pp}", test_ranks, model, tp, pp)
    suite.add("one O2", test_one, "llama", "model.module.")
    for test in (test_own_numbers, test_launched, test_in_place, test_gzip,
                 test_refused, test_damaged):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
