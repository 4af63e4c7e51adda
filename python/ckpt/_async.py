# SPDX-License-Identifier: Apache-2.0
"""A function that waits, as one that asyncio awaits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from . import _commands

if TYPE_CHECKING:
    from typing_extensions import ParamSpec
    P = ParamSpec("P")
R = TypeVar("R")


def awaitable(call: "Callable[P, R]") -> "Callable[P, Awaitable[R]]":
    """The call in a thread. A task that is cancelled ends the processes that it
    has begun, and waits until the call is over: they clean up, and what is
    being saved is whole or not there."""

    @functools.wraps(call)
    async def wait(*args: Any, **options: Any) -> Any:
        processes = _commands.Running()
        context = contextvars.copy_context()
        context.run(_commands.running.set, processes)
        thread = asyncio.get_running_loop().run_in_executor(
            None, functools.partial(context.run, call, *args, **options))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            processes.end()
            await asyncio.wait([thread])
            thread.exception()  # it was interrupted, as it was told
            raise

    return wait
