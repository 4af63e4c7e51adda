# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other formats than transformers', with one tensor changed.

The files are loaded and saved again by torch, tensor by tensor: `tensors` is
what each file has by name, and `write` stores a changed set of them.
"""

import pickle
import shutil

from support import DATA

# Of each dialect whose names are translated, one that its owner's code wrote;
# Megatron's arguments name no family there, and where ckpt writes them, they do.
CASES = {
    "Megatron's ranks": ("megatron_legacy/lm_llama_pp2_bf16", "mp_rank_*/*.pt"),
    "Megatron's index": ("megatron_torch_dist/gpt_tp2_pp2_v0161", ".metadata"),
    "Meta": ("meta/llama", "*.pth"),
    "fairseq2": ("fairseq2_native/llama_tied_blocking", "sdp_*.pt"),
    "OLMo-core": ("olmo_core_dcp/hf_llama", ".metadata"),
}
MADE = {
    "ckpt's ranks": ("megatron_legacy", "mp_rank_*/*.pt"),
    "ckpt's index": ("megatron_torch_dist", ".metadata"),
    "ckpt's OLMo-core": ("olmo_core", ".metadata"),
}


class TorchFiles:
    """Files of torch.save, each with dicts of tensors somewhere in it."""

    def __init__(self, paths):
        import torch

        self.trees = {path: torch.load(path, weights_only=False,
                                       map_location="cpu") for path in paths}

    @staticmethod
    def leaves(tree, above=()):
        """(path, dict) of each tensor."""
        import torch

        for key, value in tree.items():
            if isinstance(value, torch.Tensor):
                yield (*above, key), tree
            elif isinstance(value, dict):
                yield from TorchFiles.leaves(value, (*above, key))

    def places(self):
        """name -> the dicts that it is in, and its key there."""
        found = {}
        for tree in self.trees.values():
            for path, holder in self.leaves(tree):
                if path[0] not in ("rng_state", "optimizer", "fs2"):
                    found.setdefault(".".join(map(str, path)), []).append(
                        (holder, path[-1]))
        return found

    def write(self):
        import torch

        for path, tree in self.trees.items():
            torch.save(tree, path)


class Index(pickle.Unpickler):
    """OLMo-core's index has objects of its own, which hold what torch's do."""

    def find_class(self, module, name):
        if module.startswith("olmo_core"):
            return type(name, (), {"transform_descriptors": None})
        return super().find_class(module, name)


class DcpFolder:
    """torch.distributed.checkpoint's folder: what torch loads of it."""

    def __init__(self, metadata):
        import torch
        from torch.distributed.checkpoint import FileSystemReader, load

        class Reader(FileSystemReader):
            def read_metadata(self):
                with open(metadata, "rb") as file:
                    return Index(file).load()

        self.folder = metadata.parent
        reader = Reader(str(self.folder))
        rows = reader.read_metadata().state_dict_metadata
        self.state = {name: torch.empty(row.size, dtype=row.properties.dtype)
                      for name, row in rows.items()
                      if hasattr(row, "properties")}
        load(self.state, storage_reader=reader, no_dist=True)

    def places(self):
        return {name: [(self.state, name)] for name in self.state}

    def write(self):
        from torch.distributed.checkpoint import FileSystemWriter, save

        for path in self.folder.glob("*.distcp"):
            path.unlink()
        save(self.state, storage_writer=FileSystemWriter(str(self.folder)),
             no_dist=True)


def copied(ckpt, folder, case):
    """The case in a folder of its own, and what of it can be changed."""
    if case in MADE:
        to, pattern = MADE[case]
        ckpt.ok("convert", DATA / "hf/llama/ckpt", folder, "--to", to,
                "--no-manifest")
    else:
        source, pattern = CASES[case]
        shutil.copytree(DATA / source / "ckpt", folder)
    paths = sorted(folder.rglob(pattern))
    if pattern == ".metadata":
        return DcpFolder(paths[0])
    return TorchFiles(paths)
