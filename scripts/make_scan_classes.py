#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes formats/scan/classes.json: the classes of libraries whose instances a
pickle makes without running anything of theirs. The libraries' own classes are
asked, not their documentation:

  scripts/make_scan_classes.py --path .venv/sklearn [--check]

A class is listed if it is made by the __new__ of a type of Python's, if BUILD
fills its __dict__ or calls a __setstate__ that is listed (and was read) below,
and if nothing else of it runs while a pickle is loaded: no __del__, no
__getattr__, and no method that APPEND, SETITEM or ADDITEMS calls. With --check
nothing is written: exit status 1 if the file isn't what it would be.
"""

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "formats/scan/classes.json"
PACKAGES = ("scipy.sparse", "sklearn", "torch.nn.modules", "torch.optim")
# Not parts of what is saved: plots, downloads, threads, tests.
SKIPPED = {"_mocking", "_plot", "callback", "conftest", "datasets",
           "experimental", "externals", "inspection", "parallel", "setup",
           "tests"}
# Read: each keeps what it is given, beside defaults for what older versions
# lacked, and calls nothing that the state holds.
SETSTATES = {
    "sklearn.base.BaseEstimator",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.isotonic.IsotonicRegression",
    "torch.nn.modules.activation.MultiheadAttention",
    "torch.nn.modules.adaptive.AdaptiveLogSoftmaxWithLoss",
    "torch.nn.modules.conv._ConvNd",
    "torch.nn.modules.module.Module",
    "torch.nn.modules.rnn.RNNBase",
    "torch.nn.modules.transformer.TransformerDecoderLayer",
    "torch.nn.modules.transformer.TransformerEncoderLayer",
    *(f"torch.optim.{module}.{name}" for module, name in (
        ("adadelta", "Adadelta"), ("adagrad", "Adagrad"), ("adam", "Adam"),
        ("adamax", "Adamax"), ("adamw", "AdamW"), ("asgd", "ASGD"),
        ("nadam", "NAdam"), ("optimizer", "Optimizer"), ("radam", "RAdam"),
        ("rmsprop", "RMSprop"), ("rprop", "Rprop"), ("sgd", "SGD"))),
}
NEWS = {object.__new__, dict.__new__, list.__new__, tuple.__new__}
CALLED = ("__del__", "__getattr__", "append", "extend", "add", "update",
          "__setitem__")
# What these do with an element was read, too.
READ = {
    ("scipy.sparse._index", "__setitem__"), ("scipy.sparse._lil", "__setitem__"),
    ("torch.nn.modules.module", "__getattr__"),
    *(("torch.nn.modules.container", name) for name in (
        "append", "extend", "add", "update", "__setitem__")),
}


def modules(package):
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, package + ".",
                                       onerror=lambda name: None):
        parts = found.name.split(".")
        if any(part in SKIPPED or part.lstrip("_").startswith("test")
               for part in parts):
            continue
        try:
            yield importlib.import_module(found.name)
        except Exception:  # what it needs is not installed
            continue


def runs_nothing(cls):
    if not any(cls.__new__ is new for new in NEWS):
        return False
    setstate = inspect.getattr_static(cls, "__setstate__", None)
    if setstate is not None:
        owner = next(c for c in cls.__mro__ if "__setstate__" in vars(c))
        if f"{owner.__module__}.{owner.__qualname__}" not in SETSTATES:
            return False
    for name in CALLED:
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        if owner not in (None, dict, list, tuple) and \
                (owner.__module__, name) not in READ:
            return False
    return True


def classes():
    """Names by module, and the modules in order."""
    found = {}
    for package in PACKAGES:
        for module in modules(package):
            for name, cls in vars(module).items():
                if inspect.isclass(cls) and name == cls.__qualname__ and \
                        cls.__module__ == module.__name__ and \
                        runs_nothing(cls):
                    found.setdefault(module.__name__, set()).add(name)
    return found


def ufuncs():
    import numpy
    return {name for name, value in vars(numpy).items()
            if isinstance(value, numpy.ufunc) and value.__name__ == name}


def source():
    import numpy
    import scipy
    import sklearn
    import torch

    versions = ", ".join(
        f"{name} {module.__version__.split('+')[0]}" for name, module in (
            ("numpy", numpy), ("scipy", scipy), ("scikit-learn", sklearn),
            ("torch", torch)))
    document = {
        "written by": "scripts/make_scan_classes.py",
        "of": versions,
        # Functions of arrays, element by element.
        "values": {"numpy": " ".join(sorted(ufuncs()))},
        "instances": {module: " ".join(sorted(names))
                      for module, names in sorted(classes().items())},
    }
    return json.dumps(document, indent=1) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sys.path[:0] = [str(Path(path).resolve()) for path in options.path]
    warnings.simplefilter("ignore")
    text = source()
    if options.check:
        sys.exit(text != TARGET.read_text())
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
