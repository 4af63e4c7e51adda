#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/orbax with orbax-checkpoint on two CPU devices:
jax_orbax.py OUT [CASE]. Needs jax and orbax-checkpoint; made with 0.12.8 and jax 0.10.2.

expected.safetensors holds the tree's arrays as numpy has them.
"""

import json
import os
import shutil
import struct
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import tensorstore  # noqa: E402

NAMES = {"float32": "F32", "bfloat16": "BF16", "int32": "I32", "int64": "I64",
         "float64": "F64", "float16": "F16"}


def tree():
    mesh = jax.make_mesh((2,), ("x",))
    rows = jax.NamedSharding(mesh, jax.P("x"))
    columns = jax.NamedSharding(mesh, jax.P(None, "x"))
    key = jax.random.key(3)
    kernel = jax.random.normal(key, (6, 4), jnp.float32)
    bias = jnp.arange(4, dtype=jnp.bfloat16) - 1.5
    return {
        "params": {"dense": {"kernel": jax.device_put(kernel, rows),
                             "bias": bias},
                   "out": jax.device_put(kernel.T.astype(jnp.float16),
                                         columns)},
        "opt_state": [{"mu": jnp.zeros((6, 4)), "count": np.int32(9)}, None],
        "step": 7, "name": "run", "rate": 0.25,
    }


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from leaves(child, (*path, str(i)))
    elif value is not None and not isinstance(value, str):
        yield ".".join(path), np.asarray(value)


def write_expected(path, value):
    header, data = {}, b""
    for name, array in leaves(value):
        end = len(data) + array.nbytes
        header[name] = {"dtype": NAMES[str(array.dtype)],
                        "shape": list(array.shape),
                        "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# Orbax's own default is the database; MaxText asks for zarr 3.
CASES = {
    "pytree_zarr2": {"use_ocdbt": False, "use_zarr3": False},
    "pytree_zarr3": {"use_ocdbt": False, "use_zarr3": True},
    "pytree_ocdbt": {"use_ocdbt": True, "use_zarr3": False},
    "pytree_ocdbt_zarr3": {"use_ocdbt": True, "use_zarr3": True},
    "pytree_ocdbt_deep": {"use_ocdbt": True, "use_zarr3": True},
}


def shard(path, array):
    """The array again, in shards of several chunks, some past its edge."""
    codecs = [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2, 2],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}},
                   {"name": "zstd", "configuration": {"level": 3}}]}}]
    store = tensorstore.open({
        "driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {"shape": list(array.shape), "data_type": "float16",
                     "chunk_grid": {"name": "regular", "configuration": {
                         "chunk_shape": [4, 4]}}, "codecs": codecs}},
        create=True, delete_existing=True).result()
    store[:2].write(array[:2]).result()
    store[2:].write(array[2:]).result()


def deepen(path):
    """The database again, with nodes of a few keys, and values outside of
    them, as in one of many gigabytes."""
    def database(config):
        return tensorstore.KvStore.open({
            "driver": "ocdbt", "base": f"file://{path}/", **config}).result()

    old = database({})
    values = {key: old.read(key).result().value for key in old.list().result()}
    for name in ("d", "ocdbt.process_0"):
        shutil.rmtree(path / name)
    (path / "manifest.ocdbt").unlink()
    new = database({"config": {"max_decoded_node_bytes": 200,
                               "max_inline_value_bytes": 20}})
    for key, value in values.items():
        new.write(key, value).result()


def main(out, *names):
    for name in names or CASES:
        folder = Path(out).resolve() / name
        folder.mkdir(parents=True)
        value = tree()
        save = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**CASES[name]))
        save.save(folder / "ckpt", value)
        if name == "pytree_zarr3":
            shard(folder / "ckpt/params.out", np.asarray(value["params"]["out"]))
        if name == "pytree_ocdbt_deep":
            deepen(folder / "ckpt")
        # It names the folder of then.
        (folder / "ckpt/commit_success.txt").unlink()
        write_expected(folder / "expected.safetensors", value)


if __name__ == "__main__":
    main(*sys.argv[1:])
