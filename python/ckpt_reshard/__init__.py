# SPDX-License-Identifier: Apache-2.0
"""The package ckpt under the name of its distribution, which no other has:

    import ckpt_reshard as ckpt
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, Optional

import ckpt


class _Same(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """ckpt_reshard.dcp is ckpt.dcp: one module, not two of one file."""

    def find_spec(self, name: str, path: Any = None, target: Any = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        if not name.startswith("ckpt_reshard."):
            return None
        return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec
                      ) -> ModuleType:
        name = "ckpt" + spec.name[len("ckpt_reshard"):]
        module = importlib.import_module(name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


sys.meta_path.insert(0, _Same())
sys.modules[__name__] = ckpt
