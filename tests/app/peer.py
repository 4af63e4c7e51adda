# SPDX-License-Identifier: Apache-2.0
"""Programs beside the tests in which a peer lives. They import it once, which
takes longer than most jobs. Jobs come as lines of JSON, and each is answered
with null or with what went wrong.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

from support import Failure


def find(program):
    """Where a program lies beside the suites."""
    return next(Path(__file__).parent.rglob(program))


class Peer:
    """The caller's end of such a program, started when first needed."""

    def __init__(self, program, **environment):
        self.argv = [sys.executable, "-B",
                     str(find(program))]
        if "PYTHONPATH" in environment:  # beside the suites' own folders
            environment["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
        self.environment = dict(os.environ, OMP_NUM_THREADS="1", **environment)
        self.child = None

    def ask(self, job):
        if self.child is None:
            self.child = subprocess.Popen(
                self.argv, text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=self.environment)
        self.child.stdin.write(json.dumps(job) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            self.child = None
            raise Failure(f"{self.argv[-1]} ended")
        return json.loads(line)


def serve(prepare, run):
    """The program: imports by prepare(), then run(job) for each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    prepare()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


def program(main):
    """A rank that is a program: runs main() and ends at once. Threads of
    torch.distributed that still run while Python ends can abort it, which says
    nothing about what was loaded."""
    status = 0
    try:
        main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def on_processes(function, world, *args):
    """Runs function(rank, *args) on forked processes. None, or what went
    wrong."""
    import torch.multiprocessing as mp

    try:
        mp.start_processes(function, args, nprocs=world, start_method="fork")
    except Exception as error:
        lines = [x for x in str(error).splitlines() if x.strip()]
        return " | ".join(lines[-3:])
    return None
