# SPDX-License-Identifier: Apache-2.0
"""Python as its users write it; cases of python_test.py. Expected values are
torch's, numpy's, safetensors' and transformers' own."""

import asyncio
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import ckpt
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from python_cases import LLAMA, USAGE, as_binary, checkpoint_of
from python_values import refused
from support import DATA, Skip, check, check_equal

ROOT = Path(__file__).resolve().parents[3]
MEGATRON = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt"


def peer(name, folder):
    """A module of a folder of .venv (tests/requirements)."""
    for path in sorted((ROOT / ".venv").glob(folder)):
        sys.path.append(str(path))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"no {name} is to be had: {error}") from None


def same(got, want, what):
    check_equal((got.dtype, tuple(got.shape)), (want.dtype, tuple(want.shape)),
                what)
    check(torch.equal(got.contiguous().flatten().view(torch.uint8),
                      want.contiguous().flatten().view(torch.uint8))
          if got.numel() else True, f"{what}: values")


def keys_of_numpy(folder):
    """Every kind of key gives what numpy gives, in all of numpy's widths."""
    rng = np.random.default_rng(1)
    keys = [np.s_[::2], np.s_[1:40:3, ::5], np.s_[::-1], np.s_[-3:0:-2, 4],
            [0, 5, 5, -1], ([1, 2], [3, 4]), (5, [3, 4]), (slice(2), [1, 1, 0]),
            None, (None, slice(3), None), (..., [0, 2]), [], np.s_[3:3:2],
            np.s_[..., None], (None, ..., [1], 0), np.array([3, 1]),
            np.arange(48) % 3 == 0, np.s_[[0, 47]], (slice(None, None, 7), None,
                                                     [2, 3]),
            torch.tensor([4, 2]), range(3, 9, 2)]
    for kind in ("u1", "f2", "f4", "f8", "c16"):
        want = rng.integers(0, 100, (48, 6, 8)).astype(kind)
        ckpt.save({"w": want}, folder / "m.pt", overwrite=True)
        with ckpt.open(folder / "m.pt") as source:
            tensor = source["w"]
            for key in keys:
                plain = key.numpy() if torch.is_tensor(key) else \
                    list(key) if isinstance(key, range) else key
                got = tensor[key]
                there = want[plain]
                check_equal((got.shape, got.nbytes),
                            (there.shape, there.nbytes), f"{kind} {key!r}")
                check(np.array_equal(got.numpy(), there), f"{kind} {key!r}")
                check(np.array_equal(got.torch().numpy(), there),
                      f"{kind} {key!r}: torch")
                if there.size:
                    check(np.array_equal(torch.from_dlpack(got).numpy(), there),
                          f"{kind} {key!r}: DLPack")
    with ckpt.open(LLAMA) as source:
        tensor = source["model.norm.weight"]
        for key in ([99999], (0, [0]), np.ones(3, bool)):
            refused(None, IndexError, tensor.__getitem__, key)


def acts_as_tensor(folder):
    """len, sums, products, lists: as with a tensor of torch."""
    w = torch.randn(4, 3)
    with ckpt.open(checkpoint_of(folder, w=w, s=torch.tensor(2.0))) as source:
        t = source["w"]
        check_equal((len(t), t.ndim, t.size, t.shape, t.dtype),
                    (4, 2, 12, (4, 3), "f32"), "attributes")
        refused(None, TypeError, len, source["s"])
        for got, want in ((t + 1, w + 1), (1 - t, 1 - w), (t * t[:], w * w),
                          (t[:] / 2, w / 2), (t @ w.T, w @ w.T), (-t, -w),
                          (w - t, w - w), (abs(t), abs(w)),
                          (t.torch(), w), (source.get_tensor("w"), w)):
            same(got, want, "arithmetic")
        check_equal(t[0, :2].tolist(), w[0, :2].tolist(), "tolist")
        check("2.0" in repr(source["s"].read()), repr(source["s"].read()))
        check(bool(t) and bool(source["s"]), "a tensor is there")


def wide_dtypes(folder):
    """bf16 and f8 are arrays of ml_dtypes; bits() has the codes."""
    ml_dtypes = peer("ml_dtypes", "loaders")
    wanted = {"b": torch.randn(3, 4).bfloat16(),
              "e4": torch.randn(8).to(torch.float8_e4m3fn),
              "e5": torch.randn(8).to(torch.float8_e5m2)}
    kinds = {"b": ml_dtypes.bfloat16, "e4": ml_dtypes.float8_e4m3fn,
             "e5": ml_dtypes.float8_e5m2}
    with ckpt.open(checkpoint_of(folder, **wanted)) as source:
        for name, want in wanted.items():
            for got in (source[name].numpy(), np.asarray(source[name]),
                        np.asarray(source[name][...])):
                check_equal(got.dtype, np.dtype(kinds[name]), name)
                check_equal(got.astype("f4").tolist(), want.float().tolist(),
                            name)
            check_equal(source[name].read().bits().tobytes(),
                        want.view(torch.uint8).numpy().tobytes(), name)


def like_safe_open(folder):
    """safe_open answers as that of safetensors does, for the same file."""
    path = folder / "m.safetensors"
    save_file({"b": torch.randn(4, 6), "a": torch.ones(2).bfloat16(),
               "i": torch.arange(3), "s": torch.tensor(True),
               "e4": torch.ones(2).to(torch.float8_e4m3fn)}, path,
              {"format": "pt", "who": "me"})
    for kind in ("pt", "np"):
        with safe_open(path, kind) as theirs, ckpt.safe_open(
                path, framework=kind, device="cpu") as ours:
            for call in ("keys", "offset_keys", "metadata"):
                check_equal(getattr(ours, call)(), getattr(theirs, call)(),
                            f"{kind}: {call}")
            for name in theirs.keys():
                mine, its = ours.get_slice(name), theirs.get_slice(name)
                check_equal((mine.get_shape(), mine.get_dtype()),
                            (its.get_shape(), its.get_dtype()), name)
                if kind == "np" and name in ("a", "e4"):
                    continue  # what safetensors does there goes by release
                got, want = ours.get_tensor(name), theirs.get_tensor(name)
                check_equal((got.dtype, got.shape), (want.dtype, want.shape),
                            name)
                check(bool((got == want).all()) if name != "e4" else True, name)
            check((ours.get_slice("b")[1:3, ::2] ==
                   theirs.get_tensor("b")[1:3, ::2]).all(), "a slice")
            refused("none", KeyError, ours.get_tensor, "none")
    refused(None, USAGE, ckpt.safe_open, path, framework="no")
    with ckpt.safe_open(MEGATRON) as other:  # any other format
        check(other.keys() and other.metadata() is None, "Megatron")


def loads_states(folder):
    """load() is what load_state_dict takes, whole or a rank's."""
    want = load_file(next(LLAMA.glob("*.safetensors")))
    got = ckpt.load(LLAMA)
    check_equal(set(got), set(want), "names")
    for name, tensor in want.items():
        same(got[name], tensor, name)
    with ckpt.open(LLAMA) as source:
        check_equal(set(source.state_dict()), set(want), "state_dict")
        for rank in (0, 1):
            parts = ckpt.load(LLAMA, tp=2, tp_rank=rank)
            for name, part in source.shards(tp=2, rank=rank):
                same(parts.pop(name), part.torch(), name)
            check_equal(parts, {}, "more than the rank's")
    half = ckpt.load(LLAMA, dtype=torch.bfloat16, keys=["*norm*"])
    check(half and all(t.dtype == torch.bfloat16 and "norm" in n
                       for n, t in half.items()), "some, cast")
    ckpt.convert(LLAMA, folder / "mc", to="megatron_torch_dist", tp=2)
    back = ckpt.load(folder / "mc", dialect="hf")
    for name, tensor in want.items():
        same(back[name], tensor, f"{name} by way of Megatron")
    case = DATA / "dcp/fsdp2_w2_adamw/ckpt"
    with ckpt.open(case) as source:
        names = {n for n, t in source.items() if t.kind == "model"}
        check(names < set(source), "no optimizer")
    check_equal(set(ckpt.load(case)), names, "without the optimizer")
    check(set(ckpt.load(case, optimizer=True)) > names, "with it")


def reads_into(folder):
    """read_into fills what is there, whatever dtype it has, in parts."""
    want = torch.randn(64, 32)
    with ckpt.open(checkpoint_of(folder, w=want, s=torch.tensor(3.0))) as source:
        for most in (64 << 20, 1000):
            ckpt._checkpoint._AT_ONCE = most
            one, two = torch.zeros(64, 32), np.zeros((64, 32))
            three = torch.zeros(32, 64, dtype=torch.float64).T
            for into in (one, two, three):
                source.read_into("w", into)
            same(one, want, "torch")
            check((two == want.double().numpy()).all(), "numpy")
            same(three, want.double(), "another dtype, turned")
        scalar = torch.zeros(())
        source.read_into("s", scalar)
        check_equal(scalar.item(), 3.0, "a scalar")
        refused("w", USAGE, source.read_into, "w", torch.zeros(3))


def says_what_it_is(folder):
    """family, topology, parameters, metadata, plain objects, a page."""
    with ckpt.open(LLAMA) as source:
        check_equal((source.family, source.topology["tp"]), ("llama", 1), "says")
        check_equal(source.parameters, sum(
            t.numel() for t in load_file(source.path + "/model.safetensors"
                                         ).values()), "parameters")
        check_equal(source.metadata(), {"format": "pt"}, "metadata")
        page = source._repr_html_()
        check("model.norm.weight" in page and "<table>" in page, page[:200])
    check_equal(ckpt.fingerprint(LLAMA), ckpt.inspect(LLAMA, digest=True)[
        "fingerprint"], "fingerprint")
    check(re.fullmatch("[0-9a-f]{64}", ckpt.fingerprint(LLAMA)), "sha256")
    check(re.fullmatch(r"\d+\.\d+\.\d+", ckpt.__version__), ckpt.__version__)
    state = {"lr": 0.001, "betas": (0.9, 0.999), "steps": [1, 2], "name": "x",
             "seen": {1, 2}, 3: b"\0", "none": None, "big": 1 << 70,
             "shape": torch.Size([2, 3]), "np": np.float32(0.5)}
    torch.save({"w": torch.ones(2), "state": state}, folder / "m.pt")
    with ckpt.open(folder / "m.pt") as source:
        got = {}
        for name, value in source.objects.items():
            got.update(value if name == "state" else
                       {name.removeprefix("state."): value})
    for name, value in state.items():
        found = got.get(name, got.get(str(name)))
        check_equal(found, value, str(name))
        check(not isinstance(value, tuple) or isinstance(found, tuple),
              f"{name}: {type(found)}")
    torch.save({"w": torch.ones(2), "args": Args()}, folder / "o.pt")
    with ckpt.open(folder / "o.pt") as source:
        [value] = [v for n, v in source.objects.items() if "args" in n]
        check(isinstance(value, ckpt.Opaque) and "Args" in repr(value),
              repr(value))
        check_equal(value.lr, 0.1, "a member")
        check(not hasattr(value, "other"), "a member that it lacks")
    with ckpt.open(LLAMA) as source:
        for layers in ([0], range(1), 0, "0"):
            check_equal(set(source.select(layers=layers)),
                        {n for n in source if ".layers.1." not in n}, "layers")


class Args:
    def __init__(self):
        self.lr = 0.1


def opens_steps(folder):
    """step= opens a step of a root; without it the newest."""
    for step in (10, 20):
        (folder / f"run/checkpoint-{step}").mkdir(parents=True)
        ckpt.save({"w": torch.full((2,), float(step))},
                  folder / f"run/checkpoint-{step}/model.safetensors")
        (folder / f"run/checkpoint-{step}/trainer_state.json").write_text(
            json.dumps({"global_step": step}))
    for step, want in ((10, 10), (20, 20), (None, 20)):
        with ckpt.open(folder / "run", step=step) as source:
            check_equal(source["w"][0].tolist(), want, f"step {step}")
    error = refused(None, ckpt.errors.MissingError, ckpt.open, folder / "run", 30)
    check("10, 20" in error.hint, error.hint)


def saves_folders(folder):
    """save() with a configuration is what from_pretrained reads."""
    want = load_file(next(LLAMA.glob("*.safetensors")))
    config = json.loads((LLAMA / "config.json").read_text())
    words = folder / "words"
    words.mkdir()
    (words / "tokenizer.json").write_text('{"version": "1.0"}')
    (words / "other.txt").write_text("no")
    for at, given in enumerate((config, LLAMA, LLAMA / "config.json")):
        out = folder / f"out{at}"
        ckpt.save(want, out, config=given, metadata={"who": "me"},
                  tokenizer=words)
        check_equal(json.loads((out / "config.json").read_text()), config, "config")
        check_equal(sorted(p.name for p in out.iterdir() if p.name[0] != "."),
                    ["config.json", "model.safetensors", "tokenizer.json"],
                    "files")
        with safe_open(out / "model.safetensors", "pt") as file:
            check_equal(file.metadata(), {"format": "pt", "who": "me"}, "metadata")
        check(ckpt.verify(out), "verify")
        check_equal(ckpt.fingerprint(out), ckpt.fingerprint(LLAMA), "values")
    ckpt.save_async(want, folder / "later", config=config).result()
    check((folder / "later/config.json").exists(), "in two phases")
    ckpt.save(want, folder / "one.safetensors", metadata={"a": "b"})
    with safe_open(folder / "one.safetensors", "pt") as file:
        check_equal(file.metadata(), {"format": "pt", "a": "b"}, "of one file")
    for name, options in (("config.json", {"config": config}),
                          ("tokenizer.json", {"tokenizer": words})):
        refused(name, USAGE, ckpt.save, want, folder / "two.safetensors",
                **options)
    refused("__metadata__", ckpt.errors.UnfaithfulError, ckpt.save, want,
            folder / "m.pt", metadata={"a": "b"})
    refused(None, TypeError, ckpt.save, want, folder / "no", metadata={"a": 1})
    transformers = peer("transformers", "transformers_*")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "out0")
    for name, tensor in model.state_dict().items():
        same(tensor, want[name], name)


def live(folder):
    """dcp.load from Megatron's names into those of Hugging Face, and a save of
    any format by torch.distributed.checkpoint."""
    from ckpt.dcp import Reader, Writer
    want = load_file(next(LLAMA.glob("*.safetensors")))
    ckpt.convert(LLAMA, folder / "mc", to="megatron_torch_dist", tp=2)

    def loaded(reader):
        state = {name: torch.zeros_like(t) for name, t in want.items()}
        dcp.load(state, storage_reader=reader, no_dist=True)
        for name, tensor in want.items():
            same(state[name], tensor, name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded(Reader(folder / "mc", dialect="hf"))
        with ckpt.open(folder / "mc") as source:
            loaded(Reader(source, "hf"))
            loaded(Reader(source.in_dialect("hf")))
        for kind, out in (("safetensors", "st"), ("torch", "out.pt"),
                          ("dcp", "d")):
            dcp.save(want, storage_writer=Writer(folder / out, format=kind),
                     no_dist=True)
            got = ckpt.load(folder / out)
            check_equal(set(got), set(want), kind)
            for name, tensor in want.items():
                same(got[name], tensor, f"{kind}: {name}")
        check_equal([p.name for p in folder.iterdir() if "ckpt-dcp" in p.name],
                    [], "what is left")
        try:
            dcp.save(want, storage_writer=Writer(folder / "st", "safetensors"),
                     no_dist=True)
        except dcp.api.CheckpointException as error:
            check("already exists" in str(error), str(error))
        else:
            check(False, "it was replaced")


def every_command(folder):
    """Each command of the program is a function, here and for asyncio, and has
    its options as keywords."""
    page = subprocess.run([os.environ["CKPT_BINARY"], "--help"],
                          capture_output=True, text=True).stdout
    rows = page.split("\nCommands\n")[1].split("\n\n")[0].splitlines()
    names = [row.split()[0] for row in rows if row[2] != " "]
    check(len(names) > 15, page)
    for name in names:
        name = {"run": "run_plan"}.get(name, name)
        check(callable(getattr(ckpt, name)) and name in ckpt.__all__, name)
        check(asyncio.iscoroutinefunction(getattr(ckpt.aio, name)), name)
    options = inspect.signature(ckpt.convert).parameters
    for name in ("to", "tp", "dtype", "max_mem", "dry_run", "from_", "keys"):
        check(name in options, f"convert has no {name}")
    check_equal(ckpt.ls(LLAMA, "*norm*")["entries"][0]["name"][:6], "model.",
                "ls")
    check_equal(ckpt.show(LLAMA, "model.norm.weight[:2]")["shape"], [2], "show")
    check(ckpt.doctor()["checks"] and ckpt.family("list")["families"], "others")
    check(ckpt.wait(LLAMA, settle=0)["finished"], "wait")
    check(not ckpt.wait(folder / "no", timeout=0)["finished"], "wait in vain")
    check_equal(ckpt.scan(LLAMA, MEGATRON).ok, True, "scan of two")
    ckpt.convert(LLAMA, folder / "out", to="torch", dry_run=True,
                 plan_file=folder / "plan.json")
    check(ckpt.run(folder / "plan.json")["written"], "a plan")
    with ckpt.view(LLAMA) as page:
        check(page.url.startswith("http://127.0.0.1:"), page.url)
    refused(None, TypeError, ckpt.convert, LLAMA, folder / "x", tpp=2)


def runs(folder):
    """merge, watch, prune, sync and edit on the steps of a run."""
    root = folder / "run"
    for number in (10, 20, 30):
        shutil.copytree(DATA / "runs/hf_trainer_qwen2/ckpt/checkpoint-10",
                        root / f"checkpoint-{number}")
    said = ckpt.sync(root, folder / "copy")
    check_equal(len(said.files), len(said.written), "all are new")
    (root / "broken").symlink_to("nowhere")
    said = ckpt.sync(root, folder / "copy", exclude="*.bin")
    check_equal((said.written, said.document["complete"]), ([], False), "again")
    refused(None, ckpt.errors.UsageError, ckpt.sync, root, "host:/x")
    (root / "broken").unlink()
    changed = ckpt.edit(root, set={"license": "mit"})
    check_equal((changed["step"], changed["files"][0]["changes"][0]["after"]),
                ("checkpoint-30", "mit"), "edit")
    mean = ckpt.merge(root, folder / "mean.safetensors", last=2)
    check(mean.tensors > 0 and (folder / "mean.safetensors").exists(), "merge")
    options = {"do": "test -d {step}", "once": True, "settle": 0,
               "state": folder / "state"}
    check_equal([s["result"] for s in ckpt.watch(root, **options)["steps"]],
                ["done"] * 3, "watch")
    check_equal(ckpt.watch(root, **options)["steps"], [], "watch again")
    failed = ckpt.watch(root, **{**options, "do": "false {step}",
                                 "state": folder / "other"})
    check_equal([s["result"] for s in failed["steps"]], ["failed"] * 3,
                "a command that fails is an answer")
    refused(None, ckpt.errors.UsageError, ckpt.watch, root, do="true {stp}")
    said = ckpt.prune(root, keep_last=1)
    check_equal([s["fate"] for s in said["steps"]], ["goes", "goes", "stays"],
                "prune")
    ckpt.prune(root, keep_last=1, delete=True)
    check_equal(os.listdir(root), ["checkpoint-30"], "what is left")


def by_asyncio(folder):
    """Commands side by side; one that is cancelled ends its process."""
    async def both():
        return await asyncio.gather(
            ckpt.aio.convert(LLAMA, folder / "a", to="dcp"),
            ckpt.aio.verify(LLAMA), ckpt.aio.load(LLAMA),
            ckpt.aio.save({"w": torch.ones(2)}, folder / "w.safetensors"))

    done, verdict, state, _ = asyncio.run(both())
    check(done.written and verdict.ok and len(state) == 21, "results")
    check((folder / "w.safetensors").exists(), "saved")

    async def cancelled():
        task = asyncio.create_task(ckpt.aio.convert("a", "b"))
        while not (folder / "stand-in.begun").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    with as_binary(folder, 'trap \'touch "$0.stopped"; exit 130\' TERM\n'
                   'touch "$0.begun"\n'
                   "while :; do sleep 0.05; done\n"):
        check(asyncio.run(cancelled()), "it was not cancelled")
    check((folder / "stand-in.stopped").exists(), "the process goes on")


def bars(folder):
    """progress takes a bar of tqdm."""
    class Bar:
        total, n = None, 0

        def update(self, more):
            self.n += more

    bar = Bar()
    ckpt.convert(LLAMA, folder / "out", to="dcp", progress=bar)
    check(bar.n == bar.total > 0, f"{bar.n} of {bar.total}")


OTHER_NAME = """
import ckpt_reshard as one
import ckpt_reshard.dcp
from ckpt_reshard.errors import UsageError
import ckpt, ckpt.dcp
assert one is ckpt and ckpt_reshard.dcp.Reader is ckpt.dcp.Reader
assert UsageError is ckpt.errors.UsageError and ckpt.dcp.__spec__.name == "ckpt.dcp"
"""


def other_name(_):
    """ckpt_reshard is the same package, and its modules the same modules."""
    done = subprocess.run([sys.executable, "-c", OTHER_NAME],
                          capture_output=True, text=True, env=dict(
                              os.environ, PYTHONPATH=str(ROOT / "python")))
    check_equal((done.returncode, done.stderr), (0, ""), "imports")


def demo_model(folder):
    """ckpt demo's values are those that splitmix64 gives, on any machine, and
    transformers runs the model."""
    done = ckpt.demo(folder / "tiny")
    check_equal(done.tensors, 39, "tensors")
    check(ckpt.verify(folder / "tiny", strict=True).ok, "verify --strict")
    got = load_file(folder / "tiny/model.safetensors")
    place = 0
    layer = [f"model.layers.#.{name}.weight" for name in (
        "input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj",
        "post_attention_layernorm", "self_attn.k_proj", "self_attn.o_proj",
        "self_attn.q_proj", "self_attn.v_proj")]
    names = ["model.embed_tokens.weight", *[
        name.replace("#", str(i)) for i in range(4) for name in layer],
        "model.norm.weight", "lm_head.weight"]
    check_equal(set(names), set(got), "names")
    for name in names:
        tensor = got[name]
        z = np.arange(place + 1, place + 1 + tensor.numel(), dtype="u8")
        place += tensor.numel()
        if tensor.dim() == 1:
            check((tensor == 1).all(), name)
            continue
        with np.errstate(over="ignore"):
            z *= np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype("i8")
        want = (bits - (1 << 23)).astype("f4") * np.float32(2.0 ** -27)
        check((tensor.numpy().ravel() == want).all(), name)
    transformers = peer("transformers", "transformers_*")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "tiny")
    logits = model(torch.tensor([[1, 5, 9]])).logits
    check_equal(tuple(logits.shape), (1, 3, 256), "logits")
    check(logits.isfinite().all() and logits.std() > 0, "logits")


CASES = (other_name, demo_model, keys_of_numpy, acts_as_tensor, wide_dtypes, like_safe_open,
         loads_states, reads_into, says_what_it_is, opens_steps, saves_folders,
         live, every_command, runs, by_asyncio, bars)
