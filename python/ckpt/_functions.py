# SPDX-License-Identifier: Apache-2.0
"""The commands with all of their options. Written by scripts/make_reference.py
from `ckpt COMMAND --help`."""

from __future__ import annotations

from typing import Any, Optional, Union

from ._commands import (Delta, Difference, Path, Served, Verdict, Written,
                        difference_of, document_of, served, verdict_of,
                        written_of)

# A text or a path, or several.
Words = Any

__all__ = ["inspect", "ls", "view", "show", "convert", "reshard", "unshard",
           "merge", "verify", "diff", "scan", "salvage", "fetch", "sync",
           "edit", "prune", "family", "run_plan", "wait", "watch", "demo",
           "doctor", "man", "completion"]


def inspect(path: Path, *, all: bool = False, tree: bool = False,
        shards: bool = False, objects: bool = False, stats: bool = False,
        spectral: bool = False, digest: bool = False, html: Words = None,
        plot: Words = None, keys: Words = None, exclude: Words = None,
        layers: Words = None, experts: Words = None, blocks: Words = None,
        part: Words = None, model_only: bool = False, optim_only: bool = False,
        from_: Words = None, family: Words = None, shard_dims: Words = None,
        flat_params: Words = None, trainer: Words = None,
        trainer_file: Words = None, assume_order: Words = None,
        restrict: bool = False, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> dict[str, Any]:
    """`ckpt inspect`: say what a checkpoint holds, from its headers alone.

    all: The steps of a training root, side by side
    tree: Names as a tree, with sums
    shards: Location of each shard
    objects: Non-tensor values
    stats: Range, norm, NaNs of every tensor (reads it)
    spectral: Spectral norm, ranks of each matrix (reads it)
    digest: Fingerprint of all, digest of each (reads it)
    html: Write a page to look at in a browser
    plot: Write a picture (SVG) of norms (reads it)
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("inspect", locals(), ("path",))


def ls(path: Path, *glob: str, long: bool = False, regex: Words = None,
        keys: Words = None, exclude: Words = None, layers: Words = None,
        experts: Words = None, blocks: Words = None, part: Words = None,
        model_only: bool = False, optim_only: bool = False,
        from_: Words = None, family: Words = None, shard_dims: Words = None,
        flat_params: Words = None, trainer: Words = None,
        trainer_file: Words = None, assume_order: Words = None,
        restrict: bool = False, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt ls`: list names: tensors of a checkpoint, steps of a training root.

    long: dtype, shape and bytes; size, age, parts
    regex: Only names in which this is found (exit status 1 if none)
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("ls", locals(), ("path", "glob"))


def view(path: Path, *, port: Union[int, str, None] = None, keys: Words = None,
        exclude: Words = None, layers: Words = None, experts: Words = None,
        blocks: Words = None, part: Words = None, model_only: bool = False,
        optim_only: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> Served:
    """`ckpt view`: look at a checkpoint in a browser on this machine.

    port: Of 127.0.0.1 (default: a free one)
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return served("view", locals(), ("path",))


def show(path: Path, name: str, *, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> dict[str, Any]:
    """`ckpt show`: print values: of a tensor or a part of it, or of an object.

    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("show", locals(), ("path", "name"))


def convert(source: Path, target: Path, *, keys: Words = None,
        exclude: Words = None, layers: Words = None, experts: Words = None,
        blocks: Words = None, part: Words = None, model_only: bool = False,
        optim_only: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        dry_run: bool = False, plan_file: Words = None, html: Words = None,
        overwrite: bool = False, if_exists: Words = None, resume: bool = False,
        trust_staging: bool = False, verify: bool = False, dtype: Words = None,
        quantize: Words = None, rename: Words = None,
        max_shard_size: Union[int, str, None] = None, no_fsync: bool = False,
        allow_overflow: Words = None, keep_unknown_globals: bool = False,
        ignore_checksums: bool = False, allow_replica_mismatch: bool = False,
        no_manifest: bool = False, with_optimizer: bool = False,
        delta: Words = None, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, to: Words = None,
        vocab_size: Union[int, str, None] = None, optim: Words = None,
        block_files: bool = False, fsdp_size: Union[int, str, None] = None,
        fuse_qkv: Words = None, tp: Union[int, str, None] = None,
        pp: Union[int, str, None] = None, dp: Union[int, str, None] = None,
        ep: Union[int, str, None] = None,
        make_vocab_size_divisible_by: Union[int, str, None] = None,
        pp_layout: Words = None, vpp: Union[int, str, None] = None,
        etp: Union[int, str, None] = None, transformer_impl: Words = None,
        dialect: Words = None, names: Words = None, family_file: Words = None,
        config_from: Words = None, tokenizer_from: Words = None,
        strict_config: bool = False, set: Words = None, tie: bool = False,
        untie: bool = False, drop: Words = None, allow_missing: Words = None,
        allow_unsaid: Words = None, adapter: Words = None,
        adapter_weight: Words = None,
        adapter_alpha: Union[int, str, None] = None,
        allow_nonfinite: bool = False, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt convert`: rewrite a checkpoint in another format.

    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    dry_run: Say what would be written; write nothing
    plan_file: With --dry-run: write the plan, for ckpt run FILE
    html: With --dry-run: write a page of which bytes go where
    overwrite: Replace DST, once the new one is whole, and files in the way
    if_exists: If DST exists: fail (default), skip, replace (as --overwrite)
    resume: Resume an interrupted run
    trust_staging: --resume does not read back what was written
    verify: Check source checksums, read the target back
    dtype: Cast floating-point tensors: f32, f16, bf16 ...; dequantize
        quantized ones
    quantize: Quantize weights: fp8-block (fp8 with 128x128 block scales); to
        GGUF q8_0, q4_0, q4_1, q5_0, q5_1, tq1_0, tq2_0
    rename: New names: a file of JSON, JSON, or 'a.=b.' for prefixes
    max_shard_size: Split files above this (5GB)
    no_fsync: Don't wait for the disk
    allow_overflow: Values too large for --dtype become the largest number, or
        infinite
    keep_unknown_globals: Also write pickled objects that would run code when
        loaded
    ignore_checksums: Copy bytes of SRC whose stored checksum is wrong
    allow_replica_mismatch: Use the first of replicas that differ
    no_manifest: Write no .ckpt-manifest.json; then digests are made only where
        something else asks for them
    with_optimizer: Optimizer state too, in one .safetensors file of a training
        step
    delta: Restore the files of a delta that diff made of SRC without loss
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    to: Format of the target (default: by the ending of DST, or the source's)
    vocab_size: Unpadded vocabulary size
    optim: Form of Megatron's optimizer state: fully_reshardable is what
        megatron-core 0.15 and later load at any topology
    block_files: modelopt: files of a block's parts, not of ranks
    fsdp_size: fsdp_size of the verl job that will resume: the ranks that hold
        one copy of model and optimizer. Fewer than --dp: HYBRID_SHARD
    fuse_qkv: fuse_qkv of the torchtitan job that will resume, which trains
        queries, keys and values as one: true (default) or false, as its
        configuration's fuse_qkv
    tp: Tensor-parallel ranks: 8, or 4:8 for 4 to 8
    pp: Pipeline stages
    dp: Data-parallel shards (FSDP, ZeRO)
    ep: Expert-parallel ranks
    make_vocab_size_divisible_by: Rows are padded to a multiple of N times tp
        (default: 128)
    pp_layout: Layers of each pipeline stage: 9,8,8,7
    vpp: megatron_legacy: virtual stages of each pipeline rank
    etp: Tensor-parallel ranks of experts (default: tp)
    transformer_impl: Module implementation of the layers: transformer_engine,
        or local
    dialect: Names and arrangement of the target: hf, mcore, meta, fairseq2,
        olmo_core, keep (default: the format's)
    names: transformers' names: hub, transformers4 (both as they are
        published), transformers5 (its modules', experts stacked)
    family_file: Rules of a family that ckpt does not know
    config_from: Directory with the config.json and tokenizer of the model
    tokenizer_from: Tokenizer of a GGUF target: a directory, a GGUF file, none
    strict_config: Refuse a config.json with keys that are not known
    set: Override a number of the model: nh=32
    tie: The output layer is the embedding: it has to equal it
    untie: The output layer is a tensor of its own
    drop: Tensors that the conversion may leave out
    allow_missing: Tensors that may be missing
    allow_unsaid: Facts of the model that the target may lose: names as in
        errors and `inspect -v`
    adapter: A LoRA adapter to add to the weights, of any library and in any
        format; several in order
    adapter_weight: How much of it, 1 if not given; one for each --adapter
    adapter_alpha: Its alpha, in the place of what its files say: the scale is
        alpha / rank
    allow_nonfinite: Add an adapter with NaN or infinite values, or sums of
        them
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("convert", locals(), ("source", "target"))


def reshard(source: Path, target: Path, *, keys: Words = None,
        exclude: Words = None, layers: Words = None, experts: Words = None,
        blocks: Words = None, part: Words = None, model_only: bool = False,
        optim_only: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        dry_run: bool = False, plan_file: Words = None, html: Words = None,
        overwrite: bool = False, if_exists: Words = None, resume: bool = False,
        trust_staging: bool = False, verify: bool = False, dtype: Words = None,
        quantize: Words = None, rename: Words = None,
        max_shard_size: Union[int, str, None] = None, no_fsync: bool = False,
        allow_overflow: Words = None, keep_unknown_globals: bool = False,
        ignore_checksums: bool = False, allow_replica_mismatch: bool = False,
        no_manifest: bool = False, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, to: Words = None,
        vocab_size: Union[int, str, None] = None, optim: Words = None,
        block_files: bool = False, fsdp_size: Union[int, str, None] = None,
        fuse_qkv: Words = None, tp: Union[int, str, None] = None,
        pp: Union[int, str, None] = None, dp: Union[int, str, None] = None,
        ep: Union[int, str, None] = None,
        make_vocab_size_divisible_by: Union[int, str, None] = None,
        pp_layout: Words = None, vpp: Union[int, str, None] = None,
        etp: Union[int, str, None] = None, transformer_impl: Words = None,
        verbose: bool = False, progress: Any = None) -> Written:
    """`ckpt reshard`: rewrite a checkpoint for another topology.

    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    dry_run: Say what would be written; write nothing
    plan_file: With --dry-run: write the plan, for ckpt run FILE
    html: With --dry-run: write a page of which bytes go where
    overwrite: Replace DST, once the new one is whole, and files in the way
    if_exists: If DST exists: fail (default), skip, replace (as --overwrite)
    resume: Resume an interrupted run
    trust_staging: --resume does not read back what was written
    verify: Check source checksums, read the target back
    dtype: Cast floating-point tensors: f32, f16, bf16 ...; dequantize
        quantized ones
    quantize: Quantize weights: fp8-block (fp8 with 128x128 block scales); to
        GGUF q8_0, q4_0, q4_1, q5_0, q5_1, tq1_0, tq2_0
    rename: New names: a file of JSON, JSON, or 'a.=b.' for prefixes
    max_shard_size: Split files above this (5GB)
    no_fsync: Don't wait for the disk
    allow_overflow: Values too large for --dtype become the largest number, or
        infinite
    keep_unknown_globals: Also write pickled objects that would run code when
        loaded
    ignore_checksums: Copy bytes of SRC whose stored checksum is wrong
    allow_replica_mismatch: Use the first of replicas that differ
    no_manifest: Write no .ckpt-manifest.json; then digests are made only where
        something else asks for them
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    to: Format of the target (default: by the ending of DST, or the source's)
    vocab_size: Unpadded vocabulary size
    optim: Form of Megatron's optimizer state: fully_reshardable is what
        megatron-core 0.15 and later load at any topology
    block_files: modelopt: files of a block's parts, not of ranks
    fsdp_size: fsdp_size of the verl job that will resume: the ranks that hold
        one copy of model and optimizer. Fewer than --dp: HYBRID_SHARD
    fuse_qkv: fuse_qkv of the torchtitan job that will resume, which trains
        queries, keys and values as one: true (default) or false, as its
        configuration's fuse_qkv
    tp: Tensor-parallel ranks: 8, or 4:8 for 4 to 8
    pp: Pipeline stages
    dp: Data-parallel shards (FSDP, ZeRO)
    ep: Expert-parallel ranks
    make_vocab_size_divisible_by: Rows are padded to a multiple of N times tp
        (default: 128)
    pp_layout: Layers of each pipeline stage: 9,8,8,7
    vpp: megatron_legacy: virtual stages of each pipeline rank
    etp: Tensor-parallel ranks of experts (default: tp)
    transformer_impl: Module implementation of the layers: transformer_engine,
        or local
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("reshard", locals(), ("source", "target"))


def unshard(source: Path, target: Path, *, keys: Words = None,
        exclude: Words = None, layers: Words = None, experts: Words = None,
        blocks: Words = None, part: Words = None, model_only: bool = False,
        optim_only: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        dry_run: bool = False, plan_file: Words = None, html: Words = None,
        overwrite: bool = False, if_exists: Words = None, resume: bool = False,
        trust_staging: bool = False, verify: bool = False, dtype: Words = None,
        quantize: Words = None, rename: Words = None,
        max_shard_size: Union[int, str, None] = None, no_fsync: bool = False,
        allow_overflow: Words = None, keep_unknown_globals: bool = False,
        ignore_checksums: bool = False, allow_replica_mismatch: bool = False,
        no_manifest: bool = False, with_optimizer: bool = False,
        threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, to: Words = None,
        per_tensor: bool = False, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt unshard`: join all shards: one file, or a directory of whole tensors.

    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    dry_run: Say what would be written; write nothing
    plan_file: With --dry-run: write the plan, for ckpt run FILE
    html: With --dry-run: write a page of which bytes go where
    overwrite: Replace DST, once the new one is whole, and files in the way
    if_exists: If DST exists: fail (default), skip, replace (as --overwrite)
    resume: Resume an interrupted run
    trust_staging: --resume does not read back what was written
    verify: Check source checksums, read the target back
    dtype: Cast floating-point tensors: f32, f16, bf16 ...; dequantize
        quantized ones
    quantize: Quantize weights: fp8-block (fp8 with 128x128 block scales); to
        GGUF q8_0, q4_0, q4_1, q5_0, q5_1, tq1_0, tq2_0
    rename: New names: a file of JSON, JSON, or 'a.=b.' for prefixes
    max_shard_size: Split files above this (5GB)
    no_fsync: Don't wait for the disk
    allow_overflow: Values too large for --dtype become the largest number, or
        infinite
    keep_unknown_globals: Also write pickled objects that would run code when
        loaded
    ignore_checksums: Copy bytes of SRC whose stored checksum is wrong
    allow_replica_mismatch: Use the first of replicas that differ
    no_manifest: Write no .ckpt-manifest.json; then digests are made only where
        something else asks for them
    with_optimizer: Optimizer state too, in one .safetensors file of a training
        step
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    to: Container of a directory's files: safetensors or torch
    per_tensor: A directory with one file for each tensor
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("unshard", locals(), ("source", "target"))


def merge(source: Union[Path, list[Path]], target: Path, *,
        weights: Words = None, ema: Optional[float] = None,
        method: Words = None, base: Words = None,
        last: Union[int, str, None] = None, take: Words = None,
        density: Words = None, lambda_: Words = None, t: Words = None,
        seed: Union[int, str, None] = None, normalize: bool = False,
        no_normalize: bool = False, no_rescale: bool = False,
        exact: bool = False, allow_nonfinite: bool = False,
        with_optimizer: bool = False, keys: Words = None,
        exclude: Words = None, layers: Words = None, experts: Words = None,
        blocks: Words = None, part: Words = None, model_only: bool = False,
        optim_only: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        dry_run: bool = False, plan_file: Words = None, html: Words = None,
        overwrite: bool = False, if_exists: Words = None, resume: bool = False,
        trust_staging: bool = False, verify: bool = False, dtype: Words = None,
        quantize: Words = None, rename: Words = None,
        max_shard_size: Union[int, str, None] = None, no_fsync: bool = False,
        allow_overflow: Words = None, keep_unknown_globals: bool = False,
        ignore_checksums: bool = False, allow_replica_mismatch: bool = False,
        no_manifest: bool = False, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, to: Words = None,
        vocab_size: Union[int, str, None] = None, optim: Words = None,
        block_files: bool = False, fsdp_size: Union[int, str, None] = None,
        fuse_qkv: Words = None, tp: Union[int, str, None] = None,
        pp: Union[int, str, None] = None, dp: Union[int, str, None] = None,
        ep: Union[int, str, None] = None,
        make_vocab_size_divisible_by: Union[int, str, None] = None,
        pp_layout: Words = None, vpp: Union[int, str, None] = None,
        etp: Union[int, str, None] = None, transformer_impl: Words = None,
        dialect: Words = None, names: Words = None, family_file: Words = None,
        config_from: Words = None, tokenizer_from: Words = None,
        strict_config: bool = False, set: Words = None, tie: bool = False,
        untie: bool = False, drop: Words = None, allow_missing: Words = None,
        allow_unsaid: Words = None, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt merge`: average checkpoints, or put together what several learned.

    weights: One for each source, in their order (default: 1 each)
    ema: A moving average, in their order (e = D e + (1 - D) x)
    method: How they are merged, as mergekit defines it
    base: The model that all were trained from, for methods that compare with
        it
    last: The last N complete steps of a run: SRC is its folder
    take: Tensors that one source gives as they are: its path, or its number;
        without a method the others are the first's
    density: Share of the deltas that is kept: one, or one for each model
    lambda_: Factor of all deltas together
    t: slerp: 0 is the first, 1 the second (0.5)
    seed: Of the deltas that dare leaves out (0)
    normalize: Divide by the sum of the weights (linear, ties)
    no_normalize: Take the sum as it is
    no_rescale: dare: leave the deltas that are kept as they are
    exact: Compute in f64 instead of f32
    allow_nonfinite: Write values that are not finite
    with_optimizer: Average moments and main weights, too; all else is the last
        source's
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    dry_run: Say what would be written; write nothing
    plan_file: With --dry-run: write the plan, for ckpt run FILE
    html: With --dry-run: write a page of which bytes go where
    overwrite: Replace DST, once the new one is whole, and files in the way
    if_exists: If DST exists: fail (default), skip, replace (as --overwrite)
    resume: Resume an interrupted run
    trust_staging: --resume does not read back what was written
    verify: Check source checksums, read the target back
    dtype: Cast floating-point tensors: f32, f16, bf16 ...; dequantize
        quantized ones
    quantize: Quantize weights: fp8-block (fp8 with 128x128 block scales); to
        GGUF q8_0, q4_0, q4_1, q5_0, q5_1, tq1_0, tq2_0
    rename: New names: a file of JSON, JSON, or 'a.=b.' for prefixes
    max_shard_size: Split files above this (5GB)
    no_fsync: Don't wait for the disk
    allow_overflow: Values too large for --dtype become the largest number, or
        infinite
    keep_unknown_globals: Also write pickled objects that would run code when
        loaded
    ignore_checksums: Copy bytes of SRC whose stored checksum is wrong
    allow_replica_mismatch: Use the first of replicas that differ
    no_manifest: Write no .ckpt-manifest.json; then digests are made only where
        something else asks for them
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    to: Format of the target (default: by the ending of DST, or the source's)
    vocab_size: Unpadded vocabulary size
    optim: Form of Megatron's optimizer state: fully_reshardable is what
        megatron-core 0.15 and later load at any topology
    block_files: modelopt: files of a block's parts, not of ranks
    fsdp_size: fsdp_size of the verl job that will resume: the ranks that hold
        one copy of model and optimizer. Fewer than --dp: HYBRID_SHARD
    fuse_qkv: fuse_qkv of the torchtitan job that will resume, which trains
        queries, keys and values as one: true (default) or false, as its
        configuration's fuse_qkv
    tp: Tensor-parallel ranks: 8, or 4:8 for 4 to 8
    pp: Pipeline stages
    dp: Data-parallel shards (FSDP, ZeRO)
    ep: Expert-parallel ranks
    make_vocab_size_divisible_by: Rows are padded to a multiple of N times tp
        (default: 128)
    pp_layout: Layers of each pipeline stage: 9,8,8,7
    vpp: megatron_legacy: virtual stages of each pipeline rank
    etp: Tensor-parallel ranks of experts (default: tp)
    transformer_impl: Module implementation of the layers: transformer_engine,
        or local
    dialect: Names and arrangement of the target: hf, mcore, meta, fairseq2,
        olmo_core, keep (default: the format's)
    names: transformers' names: hub, transformers4 (both as they are
        published), transformers5 (its modules', experts stacked)
    family_file: Rules of a family that ckpt does not know
    config_from: Directory with the config.json and tokenizer of the model
    tokenizer_from: Tokenizer of a GGUF target: a directory, a GGUF file, none
    strict_config: Refuse a config.json with keys that are not known
    set: Override a number of the model: nh=32
    tie: The output layer is the embedding: it has to equal it
    untie: The output layer is a tensor of its own
    drop: Tensors that the conversion may leave out
    allow_missing: Tensors that may be missing
    allow_unsaid: Facts of the model that the target may lose: names as in
        errors and `inspect -v`
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("merge", locals(), ("source", "target"))


def verify(path: Path, other: Optional[Path] = None, *, against: Words = None,
        deep: bool = False, quick: bool = False, seal: bool = False,
        strict: bool = False, finite: bool = False,
        rtol: Optional[float] = None, atol: Optional[float] = None,
        keys: Words = None, exclude: Words = None, layers: Words = None,
        experts: Words = None, blocks: Words = None, part: Words = None,
        model_only: bool = False, optim_only: bool = False,
        from_: Words = None, family: Words = None, shard_dims: Words = None,
        flat_params: Words = None, trainer: Words = None,
        trainer_file: Words = None, assume_order: Words = None,
        restrict: bool = False, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> Verdict:
    """`ckpt verify`: prove that a checkpoint is whole, or that two are equal.

    against: Compare files with a list (SHA256SUMS) or a manifest
    deep: Read all bytes and compare replicas, manifest or not
    quick: Headers and sizes alone: read no tensor
    seal: Read all, and write a manifest beside what has no problem
    strict: Fail on warnings, and where nothing says what the whole is
    finite: Report NaN and infinite elements
    rtol: Two: values may differ by X * |b|
    atol: Two: values may differ by X
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return verdict_of("verify", locals(), ("path", "other"))


def diff(left: Path, right: Path, *, html: Words = None, write: Words = None,
        as_lora: Words = None, lossless: bool = False, to: Words = None,
        dtype: Words = None, overwrite: bool = False, dry_run: bool = False,
        no_fsync: bool = False, keys: Words = None, exclude: Words = None,
        layers: Words = None, experts: Words = None, blocks: Words = None,
        part: Words = None, model_only: bool = False, optim_only: bool = False,
        from_: Words = None, family: Words = None, shard_dims: Words = None,
        flat_params: Words = None, trainer: Words = None,
        trainer_file: Words = None, assume_order: Words = None,
        restrict: bool = False, threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, verbose: bool = False,
        progress: Any = None) -> Union[Difference, Delta]:
    """`ckpt diff`: say how two checkpoints differ.

    html: Write a page to look at in a browser
    write: Write B - A, as a checkpoint, and exit with 0
    as_lora: Write it as a LoRA of that rank: a folder of PEFT's
    lossless: Write what makes B's files again, byte for byte, from A
    to: Format of DELTA (default: by its ending, or safetensors)
    dtype: Dtype of DELTA: f32 (default), bf16, f16, f64
    overwrite: Replace DELTA, once the new one is whole, and files in the way
    dry_run: Say what would be written; write nothing
    no_fsync: Don't wait for the disk
    keys: Only tensors of these names
    exclude: No tensors or objects of these names
    layers: Only these layers (0-15,20) and what is in no layer; repeats make a
        deeper model; last:4 keeps the last 4, renumbered from 0
    experts: Only these experts (0-31,40), renumbered from 0
    blocks: Only tensors owned by these blocks (0-3,8); for modelopt once for
        each rank
    part: Only this model of several in a file, pipeline or step: ema, unet,
        critic
    model_only: The model alone: no state of training
    optim_only: Only optimizer state
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    verbose: Say what was chosen and why; -vv: each problem
    """
    return difference_of("diff", locals(), ("left", "right"))


def scan(*path: Path, max_mem: Union[int, str, None] = None,
        verbose: bool = False, progress: Any = None) -> Verdict:
    """`ckpt scan`: find what runs code when a file is loaded elsewhere.

    max_mem: Memory limit (default 1GiB)
    verbose: Say what was chosen and why; -vv: each problem
    """
    return verdict_of("scan", locals(), ("path",))


def salvage(source: Path, target: Path, *, partial: Words = None,
        like: Words = None, dry_run: bool = False, overwrite: bool = False,
        resume: bool = False, no_fsync: bool = False,
        no_manifest: bool = False, from_: Words = None, family: Words = None,
        shard_dims: Words = None, flat_params: Words = None,
        trainer: Words = None, trainer_file: Words = None,
        assume_order: Words = None, restrict: bool = False,
        threads: Union[int, str, None] = None,
        max_mem: Union[int, str, None] = None,
        max_rate: Union[int, str, None] = None, trace: Words = None,
        device: Words = None, io: Words = None, exchange: Words = None,
        exchange_buffer: Union[int, str, None] = None, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt salvage`: rebuild a sound checkpoint from a damaged one.

    partial: Write what is left, with zeros or NaN in the gaps
    like: An older or newer step of the same run: what was where
    dry_run: Only say what could be rebuilt
    overwrite: Replace DST when done
    resume: Resume an interrupted run
    no_fsync: Do not wait for the disk
    no_manifest: Write no .ckpt-manifest.json
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    threads: Worker threads (default: processors)
    max_mem: Memory limit (default 1GiB)
    max_rate: Bytes a second at most: 500MB
    trace: Write when each thread read, wrote, cast (Perfetto)
    device: cpu (default) or cuda
    io: Read payload by auto (default), buffered, direct, uring
    exchange: Under mpirun: auto reads each byte once, read writes each file
        from one rank, send does both by messages
    exchange_buffer: Largest message of --exchange send (default 4MiB); each
        rank holds 12 of them, a part of --max-mem
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("salvage", locals(), ("source", "target"))


def fetch(url: str, dir: Path, *, include: Words = None, exclude: Words = None,
        verify: bool = False, overwrite: bool = False, no_fsync: bool = False,
        max_rate: Union[int, str, None] = None, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt fetch`: copy the files below a URL, as they are; resumes where it stopped.

    include: Only files that match one of these
    exclude: No files that match one of these
    verify: Read the files once more from the disk, by the hub's sha256
    overwrite: Replace files in DIR that differ, once the new ones are whole
    no_fsync: Don't wait for the disk
    max_rate: Bytes a second at most: 500MB
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("fetch", locals(), ("url", "dir"))


def sync(source: Path, target: Path, *, include: Words = None,
        exclude: Words = None, delete_extra: bool = False,
        dry_run: bool = False, no_fsync: bool = False, overwrite: bool = False,
        max_rate: Union[int, str, None] = None, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt sync`: make one folder or bucket the same as another, by what differs.

    include: Only files that match one of these
    exclude: No files that match one of these
    delete_extra: Delete what DST has and SRC lacks, once all is copied
    dry_run: Compare, copy nothing
    no_fsync: Don't wait for the disk
    overwrite: Nothing more: what differs is replaced anyway
    max_rate: Bytes a second at most: 500MB
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("sync", locals(), ("source", "target"))


def edit(path: Path, *, set: Words = None, unset: Words = None,
        dry_run: bool = False, from_: Words = None, no_fsync: bool = False,
        verbose: bool = False, progress: Any = None) -> dict[str, Any]:
    """`ckpt edit`: change metadata in safetensors and GGUF headers, in place.

    set: Give a key this value; a key of GGUF keeps its type, a new one needs
        KEY:TYPE=VALUE (u32, f32, bool, str, arr:str ...)
    unset: Remove a key
    dry_run: Only say what would change
    from_: Format of the folder, instead of detecting it
    no_fsync: Do not wait for the disk
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("edit", locals(), ("path",))


def prune(root: Path, *, keep_last: Union[int, str, None] = None,
        keep_every: Words = None, keep_best: Words = None,
        delete: bool = False, dry_run: bool = False, from_: Words = None,
        trainer: Words = None, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt prune`: delete old steps of a run; without --delete, say which.

    keep_last: The newest N complete steps
    keep_every: Steps whose number is a multiple of K
    keep_best: The step with the best METRIC[:min|max] in trainer_state.json;
        of a loss, the least
    delete: Delete what does not stay
    dry_run: Delete nothing, even with --delete
    from_: Format of the steps, instead of detecting it
    trainer: Trainer that wrote the run, instead of detecting it
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("prune", locals(), ("root",))


def family(action: str, what: Optional[str] = None, *, family: Words = None,
        family_file: Words = None, draft: Words = None, set: Words = None,
        overwrite: bool = False, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt family`: list, show, check and draft model families.

    family: Check against this one
    family_file: A family of your own
    draft: infer: where the family's file goes
    set: Override a model parameter
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("family", locals(), ("action", "what"))


def run_plan(plan: Path, *, resume: bool = False, verbose: bool = False,
        progress: Any = None) -> Written:
    """`ckpt run`: run a plan that a dry run made, if nothing has changed since.

    resume: Resume an interrupted run
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("run", locals(), ("plan",))


def wait(path: Path, *, timeout: Union[int, str, None] = None,
        settle: Union[int, str, None] = None, from_: Words = None,
        family: Words = None, shard_dims: Words = None,
        flat_params: Words = None, trainer: Words = None,
        trainer_file: Words = None, assume_order: Words = None,
        restrict: bool = False, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt wait`: wait until a checkpoint is completely written.

    timeout: Give up after this long (default 1h)
    settle: No file has changed for this long (default 5s)
    from_: Format of the source, instead of detecting it
    family: Model family, where the files don't say: llama, qwen ...
    shard_dims: JSON of GLOB: dim, for names that no family explains
    flat_params: JSON of the parameters in each flat one of FSDP1
    trainer: Trainer that wrote the run; none: containers alone
    trainer_file: Trainers of your own, for reading and for --to run
    assume_order: How parameters are numbered in an optimizer keyed by index:
        module, decay, or a file of names
    restrict: Refuse pickled classes that weights-only loading refuses
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("wait", locals(), ("path",))


def watch(root: Path, *, do: Words = None, deep: bool = False,
        tries: Union[int, str, None] = None, once: bool = False,
        interval: Union[int, str, None] = None,
        settle: Union[int, str, None] = None, dry_run: bool = False,
        state: Words = None, from_: Words = None, trainer: Words = None,
        verbose: bool = False, progress: Any = None) -> dict[str, Any]:
    """`ckpt watch`: run a command for each new complete step of a run, once.

    do: The command; {step} is a step's path, {name} its name, {root} the root.
        It is split into words, and no shell reads it
    deep: Read all of a step before, not only its headers and sizes
    tries: Give up a step when its command has failed N times (default 3)
    once: Do what is there and end, with status 1 if any step failed
    interval: Look again after this long, if nothing is told sooner (default
        30s)
    settle: No file of a step has changed for this long (default 5s)
    dry_run: Only show the commands that would run now
    state: Where it is noted what was done (default: a file for this root and
        command in ~/.local/state/ckpt/watch)
    from_: Format of the steps, instead of detecting it
    trainer: Trainer that wrote the run, instead of detecting it
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("watch", locals(), ("root",))


def demo(dir: Path, *, dry_run: bool = False, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> Written:
    """`ckpt demo`: write a tiny model to try everything on.

    dry_run: Say what would be written; write nothing
    overwrite: Replace DIR, once the new one is whole
    verbose: Say what was chosen and why; -vv: each problem
    """
    return written_of("demo", locals(), ("dir",))


def doctor(dir: Optional[Path] = None, *, overwrite: bool = False,
        verbose: bool = False, progress: Any = None) -> dict[str, Any]:
    """`ckpt doctor`: say what this build, machine and file system can do.

    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("doctor", locals(), ("dir",))


def man(command: Optional[str] = None, *, dir: Words = None,
        overwrite: bool = False, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt man`: print the manual, or write it as pages for man(1).

    dir: Write all pages there
    overwrite: Replace a file that is in the way of one that is written
    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("man", locals(), ("command",))


def completion(shell: str, *, verbose: bool = False,
        progress: Any = None) -> dict[str, Any]:
    """`ckpt completion`: print the script by which a shell completes ckpt.

    verbose: Say what was chosen and why; -vv: each problem
    """
    return document_of("completion", locals(), ("shell",))
