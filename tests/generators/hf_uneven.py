# SPDX-License-Identifier: Apache-2.0
"""The types of transformers whose layers differ by design: those of which ckpt,
by names and shapes alone, says that a whole model has lost tensors. Writes
"uneven" in models/families/hf_words.json.

    .venv/bin/python tests/generators/hf_uneven.py CKPT [CLASS ...]

Each class of an Auto mapping is made without memory, as its configuration's
defaults have it, and its names and shapes become a sparse file. Empty the list
first, or those on it are never refused. With names of classes: only says which.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from hf_words import OUT, classes, kind_of, made, too_long, write_table

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16",
          "float64": "F64", "int64": "I64", "int32": "I32", "int8": "I8",
          "uint8": "U8", "bool": "BOOL", "complex64": "C64"}
SECONDS = 60  # of processor


def save(model, name, folder):
    header, end, seen = {}, 0, set()
    for key, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:  # tied
            continue
        seen.add(id(tensor))
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[key] = {"dtype": DTYPES[str(tensor.dtype).split(".")[1]],
                       "shape": list(tensor.shape),
                       "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    model.config.architectures = [name]
    (folder / "config.json").write_text(
        json.dumps(model.config.to_dict(), default=str))


def refused(ckpt, name, model, folder):
    """What ckpt says of the class as it is; "" if it is whole."""
    save(model, name, folder)
    done = subprocess.run([ckpt, "convert", folder, folder / "out", "--to",
                           "safetensors", "-n"], capture_output=True, text=True)
    return done.stderr if done.returncode == 5 else ""


def structural(said):
    """True for what names and shapes say, not a family's rules."""
    return (" and others up to " in said or " layers, and config" in said or
            "tensors missing" in said or "tensor missing" in said)


def main():
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(50)
    signal.signal(signal.SIGPROF, too_long)
    ckpt, *names = sys.argv[1:]
    uneven = set()
    for name in names or classes():
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            model = made(kind_of(name), own_depth=True)
            with tempfile.TemporaryDirectory() as folder:
                said = refused(ckpt, name, model, Path(folder))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:100], flush=True)
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if said:
            print(f"{name}: {said}"[:300], flush=True)
        if structural(said):
            uneven.add(model.config.model_type)
    if not names:
        table = json.loads(OUT.read_text())
        write_table(table["words"], sorted(uneven))


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1")
    main()
