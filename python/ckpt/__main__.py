"""`python -m ckpt` is the command line tool."""

from . import _main

_main()
