#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""TorchScript archives: the tensors of modules that torch.jit.save wrote, by the
paths of their attributes. What torch.jit.load(...).state_dict() has is what is
expected; of frozen modules, whose weights are constants of their code, what the
code's graph has.
"""

import zipfile

from support import DATA, Suite, check, check_equal, compare, read_safetensors

CKPT = None  # set by prepare
PEER = DATA / "torch_pt/whole_module/ckpt/torchscript.pt"


def modules():
    import torch

    class Leaf(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4))
            self.register_buffer("counts", torch.arange(5))
            self.register_buffer("mask", torch.tensor([True, False]))
            self.names, self.scale = ["x", "y"], 0.5

        def forward(self, x):
            return x @ self.weight * self.scale

    class Nested(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Leaf()
            self.layers = torch.nn.ModuleList(
                [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4).bfloat16()])
            self.tied = torch.nn.Parameter(self.layers[0].weight.detach())
            self.layers[0].weight = self.tied
            self.register_buffer("view", torch.randn(6, 2)[::2].t())
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.layers[0](self.leaf(x)))

    class Types(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("float64", "float16", "int8", "uint8", "int16", "int32",
                         "complex64", "float8_e4m3fn"):
                tensor = torch.arange(4).to(getattr(torch, name))
                self.register_buffer(name, tensor)

        def forward(self, x):
            return x

    return {"nested": Nested, "types": Types, "one": Leaf}


def saved(folder, name, how):
    import torch

    torch.manual_seed(0)
    module = modules()[name]().eval()
    script = (torch.jit.trace(module, torch.randn(2, 3)) if how == "trace"
              else torch.jit.script(module))
    if how == "frozen":
        script = torch.jit.freeze(script)
    if how == "optimized":
        script = torch.jit.optimize_for_inference(script)
    torch.jit.save(script, folder / "module.pt")
    return folder / "module.pt", torch.jit.load(folder / "module.pt")


def read(folder, path):
    CKPT.ok("convert", path, folder / "out", "-q", "--to", "safetensors")
    return read_safetensors(folder / "out/model.safetensors")


def state_dict(folder, name, how):
    """Nested modules, buffers, shared tensors, views, dtypes."""
    from safetensors.torch import save_file

    path, loaded = saved(folder, name, how)
    want = {key: tensor.contiguous().clone()
            for key, tensor in loaded.state_dict().items()}
    check(len(want) >= 3, "nothing to compare")
    save_file(want, folder / "want.safetensors")
    got = read(folder, path)
    code = [key for key in got if key.startswith("CONSTANTS.")]
    check(how == "trace" or not code, str(code))
    compare({key: value for key, value in got.items() if key not in code},
            read_safetensors(folder / "want.safetensors"), how)


def constants_of(loaded):
    """Tensors of a frozen module's graph."""
    import torch

    found, graph = [], loaded.inlined_graph  # which its nodes don't keep
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "TensorType":
            value = node.output().toIValue()
            if isinstance(value, torch.Tensor):
                found.append(value)
    return found


def frozen(folder, how):
    """A frozen module has no attributes; its weights are its code's."""
    from safetensors.torch import load_file

    path, loaded = saved(folder, "nested", how)
    check_equal(list(loaded.state_dict()), [], "the frozen state_dict")
    CKPT.ok("convert", path, folder / "out", "-q", "--to", "safetensors")
    got = load_file(folder / "out/model.safetensors")
    want = constants_of(loaded)
    check(len(want) >= 3, "no constants")
    for tensor in want:
        check(any(one.dtype == tensor.dtype and one.shape == tensor.shape
                  and bool((one == tensor).all()) for one in got.values()),
              f"a constant is missing: {tuple(tensor.shape)}")
    check(all(name.startswith("CONSTANTS.") for name in got), sorted(got))


def peers_own(folder):
    import torch

    want = torch.jit.load(PEER).state_dict()
    got = read(folder, PEER)
    check_equal(sorted(got), sorted(want), "names")
    said = CKPT.inspect(PEER)
    check_equal(said["version"], "zip 3 of TorchScript", "the version")


def goes_to_torch(folder):
    """What is written is a state dict that weights-only loading takes."""
    import torch

    path, loaded = saved(folder, "nested", "script")
    CKPT.ok("convert", path, folder / "out", "-q", "--to", "torch")
    got = torch.load(folder / "out/pytorch_model.bin", weights_only=True)
    want = loaded.state_dict()
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check(torch.equal(got[name], tensor), name)


def damaged(folder):
    """A missing record and a flipped bit are found, not read past."""
    path, _ = saved(folder, "nested", "script")
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    for lost in [name for name in records if "/data/" in name][:2]:
        with zipfile.ZipFile(folder / "less.pt", "w") as archive:
            for name, content in records.items():
                if name != lost:
                    archive.writestr(name, content)
        result = CKPT.run("inspect", folder / "less.pt")
        check(result.code == 4 and lost.split("/", 1)[1] in result.err,
              str(result))
    content = bytearray(path.read_bytes())
    at = content.index(records["module/data/0"])
    content[at] ^= 1
    path.write_bytes(content)
    result = CKPT.run("convert", path, folder / "no", "--to", "safetensors")
    check(result.code == 4 and "CRC" in result.err, str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for how in ("script", "trace"):
        suite.add(f"a nested module: {how}", state_dict, "nested", how)
    for name in ("types", "one"):
        suite.add(f"a module: {name}", state_dict, name, "script")
    for how in ("frozen", "optimized"):
        suite.add(f"constants: {how}", frozen, how)
    suite.add("the golden", peers_own)
    suite.add("to torch", goes_to_torch)
    suite.add("damage", damaged)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
