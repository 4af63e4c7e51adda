# SPDX-License-Identifier: Apache-2.0
"""Composer's Trainer with save_folder, and composer.checkpoint, on CPU (sharded ones ask for CUDA).  python runs_composer.py CASE...  (COMPOSER_PATH: where pip install --no-deps --target put mosaicml==0.32.1, torchmetrics, requests, coolname, tabulate, py-cpuinfo, importlib-metadata<9, pillow and what they import; torchvision, mcli and databricks are left out)

file_w1     one file for each step, two groups of parameters, latest-rank0.pt
weights_w1  save_weights_only
parts_w1    composer.checkpoint's folder of parts
"""
import importlib.abc, importlib.machinery, os, sys, types
from runs_lib import *

class Shells(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that are imported and not called."""
    class Meta(type):
        def __getattr__(cls, n):
            if n.startswith("__"): raise AttributeError(n)
            return Shells.Shell
    class Module(types.ModuleType):
        def __getattr__(s, n):
            if n.startswith("__"): raise AttributeError(n)
            return type(n, (Exception,), {}) if n.endswith(("Error", "NotFound", "Denied")) else Shells.Meta(n, (), {"__init__": lambda s, *a, **k: None})
    def find_spec(s, name, path=None, target=None):
        if name.split(".")[0] in ("torchvision", "mcli", "databricks"): return importlib.machinery.ModuleSpec(name, s, is_package=True)
    def create_module(s, spec): m = Shells.Module(spec.name); m.__path__ = []; return m
    def exec_module(s, m): pass
Shells.Shell = Shells.Meta("Shell", (), {})

def build(rank, world, folder, **more):
    for p in [str(Path(sys.prefix) / "transformers_5.12.1"), str(Path(sys.prefix) / "lightning"), *os.environ["COMPOSER_PATH"].split(":")]: sys.path.insert(0, p)
    sys.meta_path.append(Shells())
    from composer import ComposerModel, Trainer
    from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler
    class Tiny(ComposerModel):
        def __init__(s): super().__init__(); s.net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 4))
        def forward(s, b): return s.net(b[0])
        def loss(s, out, b): return out.square().mean()
    torch.manual_seed(0); m = Tiny()
    o = DecoupledAdamW([{"params": [p for p in m.parameters() if p.dim() > 1]}, {"params": [p for p in m.parameters() if p.dim() == 1], "weight_decay": 0.0}], lr=1e-2, weight_decay=1e-4)
    g = torch.Generator().manual_seed(1); data = torch.utils.data.TensorDataset(torch.randn(16 * world, 6, generator=g), torch.zeros(16 * world))
    from torch.utils.data import DataLoader, DistributedSampler
    t = Trainer(model=m, optimizers=o, train_dataloader=DataLoader(data, batch_size=2, sampler=DistributedSampler(data, world, rank) if world > 1 else None), max_duration="6ba", save_folder=folder, save_interval="3ba", device="cpu", progress_bar=False, run_name="tiny", seed=3, schedulers=[LinearWithWarmupScheduler("2ba")], **more)
    return t, m, o

def rank_main(rank, world, case, what, more):
    t, m, o = build(rank, world, None if case.startswith("parts") else "run", **more)
    t.fit(); name = "composer"; newest = "ep0-ba6-rank0.pt"
    if case.startswith("parts"):
        from composer.checkpoint.save import CheckpointSaveOptions, save_checkpoint_to_disk
        name = "composer_parts"; newest = "ep0-ba6"
        save_checkpoint_to_disk("run", t.state, CheckpointSaveOptions())
    model = model_by_name(t.state.model); optim = {} if case.startswith("weights") else optim_by_name(t.state.model, t.state.optimizers[0])
    t.close()
    if rank == 0:
        links = {p.name: os.readlink(p) for p in sorted(Path("run").iterdir()) if p.is_symlink()}
        for one in links: (Path("run") / one).unlink()
        root = Path("run") / newest; files = [str(p.relative_to(root)) for p in sorted(root.rglob("*")) if p.is_file()]
        alone = root.is_file()
        finish(where(f"../writers/composer/{case}"), "run", {"trainer": "Composer", "peer": "mosaicml 0.32.1", "name": name, "newest": newest, "step": 6, "topology": {"ranks": world}, "links": links, "ranks": [], "spare": ["resumption.pkl"], "parts": {} if alone else {"all": files}, "what": what}, model, optim)

def run(world, *a): neutral("composer"); spawn(rank_main, world, *a)
CASES = {
 "file_w1": lambda: run(1, "file_w1", "a file for each of two steps, DecoupledAdamW with two groups, a warmup", {}),
 "weights_w1": lambda: run(1, "weights_w1", "save_weights_only", {"save_weights_only": True}),
 "parts_w1": lambda: run(1, "parts_w1", "composer.checkpoint's folder of parts", {}),
}
if __name__ == "__main__":
    for c in sys.argv[1:] or CASES: CASES[c]()
