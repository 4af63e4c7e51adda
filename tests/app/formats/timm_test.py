#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""timm's own checkpoints, converted and loaded by timm: folders as its save for
the Hub makes them, and training's checkpoints, which have the weights beside
their moving average.

timm imports torchvision for augmentations. None of that is used here, and a
build of it that fits torch's for CPUs is no package of the registry: names of it
are made up where they are asked for.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

from support import Skip, Suite, check, check_equal

HOMES = [Path(sys.prefix) / name
         for name in ("timm", "hub_loaders", "transformers_5.12.1", "loaders")]
CKPT = None  # set by prepare
MODELS = {"resnet10t": {}, "vit_tiny_patch16_224": {"depth": 2}}


class Name(type):
    """A class whose members are their own names: InterpolationMode.NEAREST."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = Name(name, (), {})
        setattr(self, name, found)
        return found


class NoTorchvision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        pass


def timm_of():
    if not HOMES[0].is_dir():
        raise Skip("timm is not installed (scripts/test.sh does it)")
    try:
        import torchvision  # noqa: F401
    except Exception:
        sys.meta_path.insert(0, NoTorchvision())
    import timm

    return timm


def model_of(name, seed=5):
    import torch

    timm = timm_of()
    torch.manual_seed(seed)
    model = timm.create_model(name, num_classes=4, **MODELS[name])
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return model.eval()


def same(found, wanted):
    import torch

    found, wanted = found.state_dict(), wanted.state_dict()
    check_equal(sorted(found), sorted(wanted), "names")
    for name, tensor in wanted.items():
        check(torch.equal(found[name], tensor), name)


def test_hub(folder, name, safe, target):
    timm = timm_of()
    from timm.models._hub import save_for_hf

    model = model_of(name)
    save_for_hf(model, folder / "in", model_args=MODELS[name],
                safe_serialization=safe)
    CKPT.ok("convert", folder / "in", folder / "out", "--to", target)
    found = timm.create_model(f"local-dir:{folder / 'out'}", pretrained=True)
    same(found, model)
    CKPT.ok("verify", folder / "in", folder / "out")


def test_training(folder, name, part):
    """CheckpointSaver's: two models, of which one is asked for."""
    import torch

    timm_of()
    from timm.models import load_checkpoint
    from timm.utils import CheckpointSaver, ModelEmaV2

    model = model_of(name)
    average = ModelEmaV2(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    (folder / "run").mkdir()
    CheckpointSaver(model, optimizer, model_ema=average,
                    checkpoint_dir=str(folder / "run"),
                    recovery_dir=str(folder / "run")).save_checkpoint(3, 0.5)
    source = folder / "run/model_best.pth.tar"
    refused = CKPT.run("convert", source, folder / "no", "--to", "safetensors")
    check(refused.code != 0 and "state_dict_ema" in refused.err, str(refused))
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors", "--part",
            part)
    found = model_of(name, seed=6)
    load_checkpoint(found, str(folder / "out/model.safetensors"), strict=True)
    same(found, average.module if part == "state_dict_ema" else model)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path[1:1] = [str(home) for home in HOMES]
    for name in MODELS:
        for safe in (True, False):
            for target in ("safetensors", "torch"):
                suite.add(f"{name} for the Hub, {safe} to {target}", test_hub,
                          name, safe, target)
        for part in ("state_dict", "state_dict_ema"):
            suite.add(f"{name} in training, {part}", test_training, name, part)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
