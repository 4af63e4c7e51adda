# SPDX-License-Identifier: Apache-2.0
"""`python -m ckpt` is the command line tool."""

from . import _main

_main()
