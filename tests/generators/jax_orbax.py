#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/orbax with orbax-checkpoint on two CPU devices:
jax_orbax.py OUT. Needs jax and orbax-checkpoint; made with 0.12.8 and jax 0.10.2.

expected.safetensors holds the tree's arrays as numpy has them.
"""

import json
import os
import struct
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

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


def main(out):
    out = Path(out).resolve()
    out.mkdir(parents=True)
    value = tree()
    save = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, use_zarr3=False))
    save.save(out / "ckpt", value)
    (out / "ckpt/commit_success.txt").unlink()  # names the folder of then
    write_expected(out / "expected.safetensors", value)


if __name__ == "__main__":
    main(sys.argv[1])
