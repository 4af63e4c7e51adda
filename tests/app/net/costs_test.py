#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of each format costs to read from a store: requests, bytes
and round trips that wait for each other, no more than what lies there explains."""

import time

import remote_test as remote
from object_server import Objects
from support import DATA, Suite, check, check_equal

# A format of the program that is not here fails. Of those with two, the second
# holds its files in another way.
CASES = {
    "orbax": ["orbax/pytree_zarr2/ckpt"],
    "fairseq2": ["fairseq2_native/llama_tp2dp2_fsdp2/ckpt"],
    "megatron_legacy": ["megatron_legacy/llama_te_tp2_pp2/ckpt"],
    "megatron_torch_dist": [
        "megatron_torch_dist/gpt_optim_tied_buckets_tp2_pp2_v0161/ckpt"],
    "megatron_zarr": ["megatron_zarr/gpt_zarr_optim_model_space_v0090/ckpt"],
    "olmo_core": ["olmo_core_dcp/trainer_fsdptp_w4/ckpt"],
    "olmo_core_v1": ["olmo_core_v1/checkpointer_mixed_w4/ckpt"],
    "dcp": ["dcp/tp2_fsdp2_w4/ckpt", "dcp/zstd_w2/ckpt"],
    "modelopt": ["modelopt/sharded_qwen3_idle_ranks_w4/ckpt"],
    "meta": ["meta/llama/ckpt"],
    "vllm": ["vllm/tp2/ckpt"],
    "safetensors": ["hf/llama"],
    "deepspeed": ["deepspeed/zero2_dp4/ckpt",
                  "deepspeed/zero2_dp4/other/universal"],
    "torch": ["torch_pt/sharded_bin"],
    "run": ["runs/nanotron_tp2"],
}
# What no golden holds: made by the peers that their own tests need.
# One file whose header is read page by page: tests/app/formats/gguf_test.py.
# Arrays are one file, too, or are read one after the other: numpy_test.py.
ELSEWHERE = {"gguf", "nemo", "numpy", "megatron_fsdp_dtensor",
             "megatron_local"}

# Rounds that opening takes, one after the other: an index, what it names, the
# files beside it; and the look at the end.
ROUNDS = 12
AT_ONCE = 8  # requests of a round, at least, where there are many
PAGE = 100  # names of a listing's page


class Timed(Objects):
    """Notes when each request came and was answered."""

    def answer(self, handler, request, fault):
        came, before = time.monotonic(), request.sent
        super().answer(handler, request, fault)
        self.spans.append((came, time.monotonic(), handler.command,
                           request.path, request.sent - before))


def rounds_of(spans):
    """The most requests none of which came before another was answered."""
    count, end = 0, -1.0
    for came, answered, *_ in sorted(spans, key=lambda span: span[1]):
        if came >= end:
            count, end = count + 1, answered
    return count


def cost(folder, root, words, delay):
    """(files, their bytes, listings, other requests, their bytes, rounds)"""
    files = {p.relative_to(root).as_posix(): p.read_bytes()
             for p in root.rglob("*") if p.is_file()}
    # Pages that don't hold all, as those of 1,000 names don't of real ones.
    with Timed({f"m/x/{k}": v for k, v in files.items()}, page=PAGE,
               delay=delay) as server:
        server.spans = []
        places = {"URL": "s3://b/m/x", "FILE": "s3://b/m/x/m.pt",
                  "OUT": folder / "out"}
        remote.run(*[places.get(w, w) for w in words],
                   env=server.env).want(0)
        spans = list(server.spans)
    objects = [span for span in spans if "list-type" not in span[3]]
    return (len(files), sum(map(len, files.values())),
            len(spans) - len(objects), len(objects),
            sum(span[4] for span in objects), rounds_of(objects))


COMMANDS = {
    "verify": ["verify", "URL"],
    "convert": ["convert", "URL", "OUT", "--to", "safetensors", "-q",
                "--model-only", "--no-fsync", "--no-manifest", "--overwrite"],
}


def test_cost(folder, case):
    root = DATA / case
    for name, words in COMMANDS.items():
        files, size, lists, requests, sent, rounds = cost(
            folder, root, words, 0.01)
        told = (f"{name} of {files} files, {size} bytes: {lists} listings, "
                f"{requests} other requests, {sent} bytes, {rounds} rounds")
        print(f"  {told}", flush=True)
        # The checkpoint, what is beside it, and the look at the end.
        check(lists <= 12 + 3 * (files // PAGE), told)
        # Each file once, large ones in blocks of 64 KiB; what is looked at
        # again by its name.
        check(requests <= files + 8 + (size >> 16), told)
        check(sent <= size * 1.02 + 4096, told)
        most = ROUNDS + requests / AT_ONCE
        # A machine with other work makes rounds of a burst, unless answers take
        # longer than it does.
        for delay in (0.05, 0.2, 0.5):
            if rounds <= most:
                break
            rounds = min(rounds, cost(folder, root, words, delay)[5])
        check(rounds <= most, f"{told}; at the least {rounds}")


# Sizes of records, and how many of them.
RECORDS = {1 << 10: 1500, 64 << 10: 80, 100 << 10: 80, 200 << 10: 40,
           1 << 20: 8}


def test_records(folder, size, to, *options):
    """No record is a request of its own where all bytes are wanted, whatever
    its size. (Each item of a DCP is an archive, whose ends are; so is what a
    manifest has a digest of beside tensors. Neither waits for another.)"""
    model = folder / "m.safetensors"
    remote.write_model(model, {f"layers.{i}.w": size
                               for i in range(RECORDS[size])})
    kept = folder / "kept" / ("m.pt" if to == "torch" else "")
    kept.parent.mkdir(exist_ok=True)
    remote.ok("convert", model, kept, "--to", to, "-q", "--no-fsync",
              *options)
    manifest = not options
    for name, words in {"inspect": ["inspect", "URL"], **COMMANDS}.items():
        if to != "torch" and name == "inspect":
            continue
        if manifest:
            words = [{"URL": "FILE"}.get(word, word) for word in words]
        _, bytes_, _, requests, sent, rounds = cost(
            folder, folder / "kept", words, 0.01)
        told = (f"{name} of {RECORDS[size]} records of {size >> 10} KiB: "
                f"{requests} requests, {sent} of {bytes_} bytes, "
                f"{rounds} rounds")
        print(f"  {told}", flush=True)
        items = 0 if to == "torch" else RECORDS[size]
        # 64 samples tell whether it is of this file.
        samples = manifest * (64 + RECORDS[size])
        check(requests <= ROUNDS + (bytes_ >> 21) + items + samples, told)
        check(sent <= bytes_ * 1.02 + 4096 * (1 + samples), told)
        if name == "inspect":
            check(sent <= 64 * RECORDS[size] + (1 << 20), told)
        most = ROUNDS + requests / AT_ONCE
        for delay in (0.05, 0.2):
            if rounds <= most:
                break
            rounds = min(rounds, cost(folder, folder / "kept", words, delay)[5])
        check(rounds <= most, f"{told}; at the least {rounds}")


def test_all_formats(_):
    done = remote.run("convert", "x", "y", "--to", "nope")
    names = done.err.partition("hint: formats: ")[2].split()
    check(len(names) > 10, str(done))
    check_equal(sorted(set(CASES) | ELSEWHERE),
                sorted(name.strip(",") for name in names), "formats")


def main():
    suite = Suite(__doc__)
    suite.add("formats", test_all_formats)
    for name, cases in CASES.items():
        for case in cases:
            suite.add(f"{name} {case}", test_cost, case)
    for size in RECORDS:
        for to in ("torch", "dcp") if size >= 100 << 10 else ("torch",):
            suite.add(f"records {size >> 10} KiB {to}", test_records, size, to,
                      "--no-manifest")
    suite.add("records beside a manifest", test_records, 200 << 10, "torch")

    def prepare(_, ckpt):
        remote.CKPT = ckpt
        remote.need_net(ckpt)
    suite.main(prepare)


if __name__ == "__main__":
    main()
