# SPDX-License-Identifier: Apache-2.0
"""What hostile files call: each touches the file that $MARKER names."""

import cProfile
import code
import ctypes
import functools
import importlib
import operator
import os
import pdb
import posix
import profile
import pty
import runpy
import subprocess
import time
import timeit
import trace

SHELL = 'touch "$MARKER"'
CODE = "open(__import__('os').environ['MARKER'], 'w')"


class Call:
    """Pickled as a call."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def calls():
    """Name and object of each way to run something."""
    words = ["/bin/sh", "-c", SHELL]
    yield "os.system", Call(os.system, SHELL)
    yield "posix.system", Call(posix.system, SHELL)
    yield "os.popen", Call(os.popen, SHELL)
    yield "os.execv", Call(os.execv, "/bin/sh", words)
    yield "os.spawnv", Call(os.spawnv, os.P_WAIT, "/bin/sh", words)
    for name in ("Popen", "call", "run", "check_call", "check_output",
                 "getoutput", "getstatusoutput"):
        args = (SHELL,) if name.startswith("get") else (words,)
        yield f"subprocess.{name}", Call(getattr(subprocess, name), *args)
    yield "eval", Call(eval, CODE)
    yield "exec", Call(exec, CODE)
    yield "timeit.timeit", Call(timeit.timeit, CODE, "pass",
                                time.perf_counter, 1)
    yield "pdb.run", Call(pdb.run, CODE)
    yield "cProfile.run", Call(cProfile.run, CODE)
    yield "profile.run", Call(profile.run, CODE)
    yield "runpy._run_code", Call(runpy._run_code,
                                  Call(compile, CODE, "x", "exec"), {})
    yield "pty.spawn", Call(pty.spawn, words)
    yield "map", Call(list, Call(map, os.system, [SHELL]))
    yield "filter", Call(list, Call(filter, os.system, [SHELL]))
    yield "partial", Call(operator.call,
                          Call(functools.partial, os.system, SHELL))
    yield "reduce", Call(functools.reduce, eval, [CODE, {}])
    yield "methodcaller", Call(Call(operator.methodcaller, "system", SHELL),
                               Call(importlib.import_module, "os"))
    yield "getattr", Call(Call(getattr, Call(__import__, "os"), "system"),
                          SHELL)
    yield "attrgetter", Call(Call(Call(operator.attrgetter, "system"),
                                  Call(__import__, "os")), SHELL)
    yield "code", Call(code.InteractiveInterpreter.runsource,
                       Call(code.InteractiveInterpreter), CODE)
    yield "trace", Call(trace.Trace.run, Call(trace.Trace, 0, 0), CODE)
    yield "ctypes", Call(Call(getattr, Call(ctypes.CDLL, None), "system"),
                         SHELL.encode())
