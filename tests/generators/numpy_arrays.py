#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/data/numpy: arrays that NumPy saved, and the same as safetensors.

    numpy_arrays.py OUT

Both byte orders, both orders of elements, no dimension, no element, a folder in
a name. NumPy 2.4 wrote them.
"""

import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file


def main(out):
    chance = numpy.random.default_rng(7)
    arrays = {
        "layer/kernel": numpy.asfortranarray(
            chance.standard_normal((6, 5)).astype("f4")),
        "layer/bias": chance.standard_normal(5).astype(">f8"),
        "half": chance.standard_normal((2, 3, 4)).astype("f2"),
        "step": numpy.array(12, "i8"),
        "mask": numpy.array([[True, False, True]]),
        "ids": numpy.asfortranarray(
            chance.integers(-9, 9, (3, 4)).astype(">i4")),
        "empty": numpy.zeros((0, 3), "u1"),
    }
    out.mkdir(parents=True, exist_ok=True)
    numpy.savez_compressed(out / "arrays.npz", **arrays)
    save_file({name: numpy.ascontiguousarray(
        array.astype(array.dtype.newbyteorder("<"))).reshape(array.shape)
        for name, array in arrays.items()}, out / "arrays_expected.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
