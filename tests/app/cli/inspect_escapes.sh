# SPDX-License-Identifier: Apache-2.0
# Names with terminal escapes and newlines can't drive the terminal.
ckpt inspect bad/pickle/key_escape_sequences.pt
ckpt inspect bad/pickle/global_escape_sequences.pt --objects
