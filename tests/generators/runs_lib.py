# SPDX-License-Identifier: Apache-2.0
"""Shared by runs_*.py: what a trainer left in a folder becomes a case (case.json, ckpt/, expected.safetensors, expected_optim.safetensors).

Every generator runs its trainer in a fresh, relative, neutral directory, so that no path  gets into pickles; finish() refuses a case where one did.
The expectations are taken from the live model and the live optimizer of the trainer's own process, by parameter NAME (id(p) → name), never by reading the files back.
"""
import json, os, re, shutil, socket, sys
from pathlib import Path
import torch

ROOT = Path(os.environ.get("RUNS_ROOT", Path(__file__).resolve().parents[2]))
WORK = Path(os.environ.get("RUNS_WORK", "/data/runs"))

def where(name, extra_case=False):
    d = (Path(os.environ["RUNS_EXTRA"]) if extra_case else ROOT / "tests/data/runs") / name
    shutil.rmtree(d, ignore_errors=True); d.mkdir(parents=True); return d

def neutral(name):
    """A fresh working directory; the trainer gets relative paths only."""
    d = WORK / name; shutil.rmtree(d, ignore_errors=True); d.mkdir(parents=True); os.chdir(d); return d

def full(t):
    if hasattr(t, "full_tensor"): t = t.full_tensor()
    return t.detach().clone().contiguous().cpu()

WRAPPERS = re.compile(r"(^|\.)(_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|module(?=\.))(?=\.|$)")
def clean(n):
    while True:
        m = WRAPPERS.sub(lambda m: m[1], n).replace("..", ".").lstrip(".")
        if m == n: return n
        n = m

def model_by_name(model, drop=(), tied=()):
    return {clean(n): full(t) for n, t in model.state_dict().items() if clean(n) not in tied and not any(d in n for d in drop)}

def optim_by_name(models, opt, strip=""):
    """{param.state: tensor} of live objects; models: a module or several."""
    models = models if isinstance(models, (list, tuple)) else [models]
    names = {id(p): clean(n) for m in models for n, p in m.named_parameters()}
    inner = getattr(opt, "optimizer", opt)
    return {f"{names[id(p)].removeprefix(strip)}.{k}": full(v) for p, st in inner.state.items() for k, v in st.items() if isinstance(v, torch.Tensor)}

def optim_of_fsdp1(model, opt, whole):
    """FSDP1, use_orig_params=True: every rank's live state is a flat piece of the parameter; joined by rank. whole: name → tensor, for shapes.
    (PEER DEFECT, torch 2.13: on CPU FSDP.optim_state_dict with FULL_STATE_DICT and use_orig_params=True gives states that share one gather buffer: exp_avg holds exp_avg_sq.)"""
    import torch.distributed as dist
    inner = getattr(opt, "optimizer", opt); names = {id(p): clean(n) for n, p in model.named_parameters()}
    mine = {names[id(p)]: {k: v.detach().clone() for k, v in st.items() if isinstance(v, torch.Tensor)} for p, st in inner.state.items()}
    every = [None] * dist.get_world_size(); dist.all_gather_object(every, mine); out = {}
    for n, t in whole.items():
        has = [e[n] for e in every if n in e]
        for k in sorted({k for s in has for k in s}):
            v = [s[k] for s in has if k in s]; out[f"{n}.{k}"] = v[0] if v[0].dim() == 0 else torch.cat([x.reshape(-1) for x in v]).view(t.shape)
    return out

def order_of(models, opt):
    """index → name, as torch.optim.Optimizer.state_dict numbers parameters: by group, in the order within the group."""
    models = models if isinstance(models, (list, tuple)) else [models]
    names = {id(p): clean(n) for m in models for n, p in m.named_parameters()}
    inner = getattr(opt, "optimizer", opt)
    return [[names[id(p)] for p in g["params"]] for g in inner.param_groups]

PATHS = [b"/" + d for d in (b"tmp/", b"wo" + b"rk/", b"ro" + b"ot", b"home/")] + [b"site-packages"] + [h for h in [socket.gethostname().encode()] if len(h) > 5]
def leaks(d):
    return [(str(p.relative_to(d)), w.decode()) for p in sorted(Path(d).rglob("*")) if p.is_file() for w in PATHS if w in p.read_bytes()]

def finish(dst, src, meta, model, optim=None, allow_script=()):
    """src: the folder as the trainer left it. meta: for case.json. model, optim: name → tensor."""
    from safetensors.torch import save_file
    shutil.copytree(src, dst / "ckpt", dirs_exist_ok=True)
    for p in allow_script:                                   # scripts that a trainer drops in (zero_to_fp32.py): kept, as empty of paths as they are
        pass
    bad = leaks(dst / "ckpt"); assert not bad, bad
    save_file({k: v.clone() for k, v in model.items()}, str(dst / "expected.safetensors"))
    if optim: save_file({k: v.clone() for k, v in optim.items()}, str(dst / "expected_optim.safetensors"))
    newest = dst / "ckpt" / meta.get("newest", ".")
    files = sorted(str(p.relative_to(newest)) for p in newest.rglob("*") if p.is_file())
    parts = meta.get("parts", {}); named = [f for fs in parts.values() for f in fs]
    missing = [f for f in files if f not in named and not any(f.startswith(n) for n in named if n.endswith("/"))]
    gone = [n for n in named if not (n in files or any(f.startswith(n) for f in files))]
    assert not missing and not gone, ("not in parts", missing, "not there", gone)
    base = {"format": "runs", "written_by": "peer", "torch": torch.__version__, "python": sys.version.split()[0],
            "expected_naming": "expected.safetensors: the model's own names (no model., module. or _orig_mod. of a container); expected_optim.safetensors: <parameter>.<state>, from the live optimizer"}
    (dst / "case.json").write_text(json.dumps({**base, **meta}, indent=1) + "\n")
    n = sum(p.stat().st_size for p in dst.rglob("*") if p.is_file())
    print(f"{dst.parent.name}/{dst.name}: {len(files)} files in {meta.get('newest', '.')}, {len(model)} model, {len(optim or {})} optim, {n / 1024:.0f} KiB", flush=True)

def spawn(fn, world, *args, port=None):
    port = port or 29600 + os.getpid() % 300
    import torch.multiprocessing as mp
    mp.spawn(_child, args=(fn, world, port, os.getcwd(), args), nprocs=world)
def _child(rank, fn, world, port, cwd, args):
    os.chdir(cwd)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1); fn(rank, world, *args)

def fsdp1_on_cpu():
    """FSDP1 asks for an accelerator or for device_id=cpu; trainers pass cpu:0 or nothing. Nothing of it is in files."""
    from torch.distributed.fsdp import FullyShardedDataParallel as F
    init = F.__init__
    def on_cpu(s, *a, **k): init(s, *a, **{**k, "device_id": torch.device("cpu"), "sync_module_states": False})
    F.__init__ = on_cpu

def tokenizer(vocab=53):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    words = ["<pad>", "<s>", "</s>", "<unk>"] + [f"w{i}" for i in range(vocab - 4)]
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")); t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=32)

def tokens(vocab=53, n=64, length=8, seed=3):
    g = torch.Generator().manual_seed(seed)
    return [{"input_ids": (x := torch.randint(4, vocab, (length,), generator=g)), "labels": x.clone()} for _ in range(n)]
