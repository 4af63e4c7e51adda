# SPDX-License-Identifier: Apache-2.0
"""The functions of ckpt for asyncio: each works in a thread of its own. A task
that is cancelled ends its command. Written by scripts/make_reference.py.

    async with asyncio.TaskGroup() as group:
        group.create_task(ckpt.aio.convert("a", "b", to="dcp"))
"""

from __future__ import annotations

from . import _functions
from ._async import awaitable
from ._checkpoint import load as _load
from ._checkpoint import open_checkpoint
from ._commands import digest as _digest
from ._commands import fingerprint as _fingerprint
from ._commands import run as _run
from ._save import save as _save

open = awaitable(open_checkpoint)
load = awaitable(_load)
save = awaitable(_save)
run = awaitable(_run)
digest = awaitable(_digest)
fingerprint = awaitable(_fingerprint)
inspect = awaitable(_functions.inspect)
ls = awaitable(_functions.ls)
view = awaitable(_functions.view)
show = awaitable(_functions.show)
convert = awaitable(_functions.convert)
reshard = awaitable(_functions.reshard)
unshard = awaitable(_functions.unshard)
merge = awaitable(_functions.merge)
verify = awaitable(_functions.verify)
diff = awaitable(_functions.diff)
scan = awaitable(_functions.scan)
salvage = awaitable(_functions.salvage)
fetch = awaitable(_functions.fetch)
sync = awaitable(_functions.sync)
edit = awaitable(_functions.edit)
prune = awaitable(_functions.prune)
family = awaitable(_functions.family)
run_plan = awaitable(_functions.run_plan)
wait = awaitable(_functions.wait)
watch = awaitable(_functions.watch)
demo = awaitable(_functions.demo)
doctor = awaitable(_functions.doctor)
man = awaitable(_functions.man)
completion = awaitable(_functions.completion)
