# SPDX-License-Identifier: Apache-2.0
"""More of what people type by mistake: the rows of mistakes_test.py, continued.

First what is damaged, incomplete or another tool's, as it happens on clusters;
then what people type who know Megatron, torchrun, ripgrep, rclone and Hugging
Face's hub better than ckpt.
"""

import json
import os
import shutil
import subprocess

import mistakes_scene as scene
from mistakes_scene import make_scene, mistake, write
from support import DATA, Skip, check, check_equal, read_header


def without(path, word):
    """The safetensors file again, without tensors of that name."""
    header, base = read_header(path)
    data = path.read_bytes()[base:]
    kept, body = {}, b""
    for name, row in header.items():
        if word in name or name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        kept[name] = {**row, "data_offsets": [len(body),
                                              len(body) + end - begin]}
        body += data[begin:end]
    kept["__metadata__"] = header.get("__metadata__", {"format": "pt"})
    text = json.dumps(kept).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def make_more(at):
    make_scene(at)
    one = next((at / "llama").glob("*.safetensors"))
    for part in ("unet", "vae"):
        write(at / f"diffusion/{part}/diffusion_pytorch_model.safetensors",
              one.read_bytes())
    write(at / "diffusion/model_index.json", "{}")
    write(at / "engine/config.json", json.dumps(
        {"producer": {"name": "modelopt"}, "architecture": "LlamaForCausalLM",
         "dtype": "float16", "mapping": {"world_size": 2, "tp_size": 2}}))
    for rank in (0, 1):
        write(at / f"engine/rank{rank}.safetensors", one.read_bytes())
    write(at / "plan_file/rank0.engine", b"ptrt" + bytes(64))
    shutil.copytree(at / "tp4", at / "last_gone")
    shutil.rmtree(at / "last_gone/step_100/model/pp_00/tp_03")
    shutil.copytree(at / "gpt", at / "stale")
    write(at / "stale/latest_checkpointed_iteration.txt", "9\n")
    shutil.copytree(at / "gpt", at / "no_common")
    next((at / "no_common").glob("iter_*/common.pt")).unlink()
    shutil.copytree(DATA / "dcp/fsdp2_w2_adamw/ckpt", at / "dcp")
    shutil.copytree(at / "dcp", at / "no_meta")
    (at / "no_meta/.metadata").unlink()
    shutil.copytree(DATA / "hf/qwen3_moe_bf16/ckpt", at / "moe")
    shutil.copytree(at / "moe", at / "expert_gone")
    without(next((at / "expert_gone").glob("*.safetensors")),
            "layers.0.mlp.experts.1.up_proj")
    shutil.copytree(at / "llama", at / "headless")
    without(next((at / "headless").glob("*.safetensors")), "lm_head")
    shutil.copytree(at / "llama", at / "no_config")
    (at / "no_config/config.json").unlink()
    write(at / "two/model-00001-of-00002.safetensors", one.read_bytes())
    write(at / "two/model.safetensors.index.json", json.dumps(
        {"metadata": {}, "weight_map": {
            "lm_head.weight": "model-00001-of-00002.safetensors",
            "x": "model-00002-of-00002.safetensors"}}))
    write(at / "two/config.json", "{}")
    shutil.copytree(at / "runs", at / "stray")
    write(at / "stray/old.safetensors", one.read_bytes()[:-100])
    write(at / "models--org--name/blobs/0123", "x")
    write(at / "a dir/model.safetensors", one.read_bytes())
    write(at / "hidden/.cache/x", "x")
    write(at / "wandb/files/config.yaml", "a: 1")
    write(at / "params.npz.zip", b"PK\x05\x06" + bytes(18))


R = "reshard tp4 out --tp 8 "
# Other tools' name for an option, the command, and the name here.
OPTIONS = (
    ("--tensor-model-parallel-size 8", "reshard tp4 out", "--tp"),
    ("--target-tensor-parallel-size 8", "reshard tp4 out", "--tp"),
    ("--tp-size 8", "reshard tp4 out", "--tp"),
    ("--pipeline-model-parallel-size 2", "reshard tp4 out", "--pp"),
    ("--world-size 2", "reshard tp4 out", "--dp"),
    ("--expert-model-parallel-size 2", "reshard tp4 out", "--ep"),
    ("--format safetensors", "convert tp4 out", "--to"),
    ("--output-format safetensors", "convert tp4 out", "--to"),
    ("--saver mcore", "convert tp4 out", "--to"),
    ("--source-format dcp", "inspect tp4", "--from"),
    ("--force", "convert tp4 out --to safetensors", "--overwrite"),
    ("--yes", "reshard tp4 out --tp 8", "--overwrite"),
    ("--bf16", "unshard tp4 out.pt", "--dtype"),
    ("--torch_dtype bfloat16", "unshard tp4 out.pt", "--dtype"),
    ("--workers 8", "unshard tp4 out.pt", "--threads"),
    ("--num-workers 8", "verify tp4", "--threads"),
    ("--max-memory 4G", "unshard tp4 out.pt", "--max-mem"),
    ("--filter x", "inspect tp4", "--keys"),
    ("--include x", "diff tp4 tp4", "--keys"),
    ("--ignore x", "verify tp4", "--exclude"),
    ("--dryrun", "reshard tp4 out --tp 8", "--dry-run"),
    ("--plan", "reshard tp4 out --tp 8", "--dry-run"),
    ("--silent", "verify tp4", "--quiet"),
    ("--continue", "unshard tp4 out.pt", "--resume"),
    ("--shard-size 5GB", "unshard tp4 out.pt", "--max-shard-size"),
    ("--check", "unshard tp4 out.pt", "--verify"),
    ("--sha256", "inspect tp4", "--digest"),
    ("--weights-only", "unshard tp4 out.pt", "--model-only"),
    ("--summary", "inspect tp4", "--stats"),
    ("--gpu", "reshard tp4 out --tp 8", "--device"),
    ("--bwlimit 1M", "unshard tp4 out.pt", "--max-rate"),
)
# (command line, exit status, in the first line, in the hint)
ROWS = (
    # the 111 mistakes that the first table lacks
    ("convert tp4 out --to megatron", 2, 'unknown format "megatron"',
     "megatron_torch_dist"),
    ("convert llama out --to pt", 2, 'unknown format "pt"',
     "did you mean torch?"),
    ("inspect tp4/*", 3, "tp4/*: no such file", "without quotes"),
    ("inspect plan_file", 3, "plan_file: not a recognized checkpoint",
     "TensorRT-LLM engine"),
    ("inspect plan_file/rank0.engine", 3, "this is a TensorRT engine",
     "that it was built from"),
    ("inspect last_gone", 4, "last_gone/step_100: ", "files are missing"),
    ("inspect no_common", 3, "no_common/iter_0000007/common.pt: is missing",
     "--from dcp"),
    ("inspect no_meta", 4, "no .metadata", "use an earlier checkpoint"),
    ("inspect diffusion", 3, "diffusion: not a recognized checkpoint",
     "below it are: unet (safetensors), vae (safetensors)"),
    ("convert expert_gone out --to megatron_torch_dist", 5,
     "1 tensor missing: model.layers.0.mlp.experts.1.up_proj.weight",
     "--allow-missing"),
    ("convert headless out --to megatron_torch_dist", 5,
     "1 tensor missing: lm_head.weight", "--set tie=true"),
    ("convert no_config out --to megatron_torch_dist", 5,
     "no_config: the model's family is not known", "--family"),
    ("inspect two", 4, "1 of the 2 files that weight_map names is missing: "
     "model-00002-of-00002.safetensors", "fetch the missing files again"),
    ("inspect stray", 4, "stray/old.safetensors: the header describes",
     "below it are: run1 (safetensors), run2 (safetensors), run3"),
    ("inspect models--org--name/blobs", 3, "not a recognized checkpoint",
     "open models--org--name"),
    ("inspect models--org--name/refs", 3, "not a recognized checkpoint",
     "open models--org--name"),
    (R + "--device cuda", 7, "--device cuda", ""),
    ("inspect /dev/fd/0", 3, "/dev/fd/0: a checkpoint can't be read from a "
     "pipe", "save it to a file"),
    ("unshard tp4 /dev/full", 2, "/dev/full: a device", "--dry-run"),
    ("reshard gpt out --tp 3", 5, "which 3 tensor-parallel ranks do not",
     "sizes that divide every tensor: 1, 2, 4"),
    # a part of a checkpoint, or what lies beside one
    ("inspect tp4/model.yaml", 3, "not a recognized checkpoint",
     "a checkpoint is its directory: tp4 (fairseq2)"),
    ("inspect llama/config.json", 3, "not a recognized checkpoint",
     "a checkpoint is its directory: llama (safetensors)"),
    ("inspect gpt/iter_0000007/metadata.json", 3, "not a recognized",
     "its directory: gpt/iter_0000007 (megatron_torch_dist)"),
    ("inspect gpt/latest_checkpointed_iteration.txt", 3, "not a recognized",
     "its directory: gpt (megatron_torch_dist)"),
    ("inspect llama/model.safetensors/", 3, "no such file or directory",
     "did you mean llama/model.safetensors?"),
    ("inspect wandb", 3, "wandb: not a recognized checkpoint",
     "is it the right path?"),
    ("inspect tp4 --from safetensors", 3, "tp4: no .safetensors file",
     "without --from the format is detected"),
    ("inspect ~/x", 3, "~/x: no such file", '"$HOME"/x'),
    # URLs
    ("inspect hf://", 3, "hf://: not a whole URL", "hf://ORG/NAME"),
    ("inspect hf://org", 3, "hf://org: not a whole URL", "hf://ORG/NAME"),
    ("inspect s3://", 3, "s3://: not a whole URL", "s3://BUCKET/PATH"),
    ("inspect s3:///runs/x", 3, "s3:///runs/x: not a whole URL",
     "s3://BUCKET/PATH"),
    ("inspect file:/tmp/x", 3, "file:/tmp/x: no such file",
     "did you mean file:///tmp/x?"),
    ("convert tp4 s3:/b/m --to dcp", 2, "begins like a URL",
     "did you mean s3://b/m? A path of that name: ./s3:/b/m"),
    ("unshard tp4 file:/tmp/x", 2, "begins like a URL",
     "did you mean file:///tmp/x?"),
    ("inspect hf:org/name", 3, "hf:org/name: no such file",
     "did you mean hf://org/name?"),
    ("inspect https:/host/x", 3, "no such file",
     "did you mean https://host/x?"),
    ("inspect https://huggingface.co/org/name", 3, "a page to look at",
     "hf://org/name"),
    ("fetch https://huggingface.co/org/name/tree/main out", 3,
     "a page to look at", "hf://org/name"),
    ("fetch llama out", 2, "llama: is not a URL", "cp -r"),
    ("fetch hf://org/name", 2, "DIR is required", "usage: ckpt fetch URL DIR"),
    # targets
    ("unshard tp4 out.safetensor", 2, "out.safetensor: ckpt does not write",
     "did you mean .safetensors?"),
    ("unshard tp4 out.SAFETENSORS", 2, "endings are lower case",
     "out.safetensors"),
    ("unshard tp4 out.PT", 2, "out.PT: endings are lower case", "out.pt"),
    ("convert llama out.safetensors --to dcp", 2,
     "out.safetensors: --to dcp does not fit", "name a directory"),
    ("reshard tp4 file/out --tp 8", 2, "file: is a file, not a directory",
     "choose a target in a directory"),
    ("convert llama host:/out --to dcp", 2, "path on another machine",
     "not over ssh"),
    ("merge llama llama host:out", 2, "path on another machine", "./host:out"),
    ("unshard tp4 s3:bucket/out", 2, "begins like a URL",
     "did you mean s3://bucket/out?"),
    ("reshard tp4 gs:bucket/out --tp 8", 2, "begins like a URL",
     "did you mean gs://bucket/out?"),
    ("demo host:out", 2, "path on another machine", "not over ssh"),
    ("inspect host:/model", 3, "no such file", "rsync"),
    ("fetch https://localhost/x host:out", 2, "path on another machine",
     "not over ssh"),
    ("convert llama out --to dcp --dry", 2, "unknown option --dry",
     "--dry-run"),
    ("reshard tp4 nowhere/deep/out --tp 8", 3,
     "nowhere/deep: the directory of the target is missing",
     "mkdir -p nowhere/deep"),
    ("convert llama out --to safetensors --tp 2", 5,
     "safetensors can't hold tp=2", "leave --tp out, or"),
    ("reshard gpt out --ep 2", 5, "--ep 2: the model has no experts",
     "leave --ep out"),
    ("reshard tp4 out -o plan.json", 2, "-o writes a plan", "SRC DST"),
    # arguments
    ("convert --src tp4 --dst out", 2, "unknown option --src",
     "paths have no option: ckpt convert SRC DST"),
    ("convert tp4 --output out --to dcp", 2, "unknown option --output",
     "paths have no option: ckpt convert SRC DST"),
    ("diff tp4 llama gpt", 2, "unexpected argument 'gpt'", "usage: ckpt diff"),
    ("verify tp4 --rtol 1", 2, "compare two checkpoints", "ckpt verify A B"),
    ("show llama", 2, "NAME is required", "usage: ckpt show PATH NAME"),
    ("show llama model.norm.weight[a]", 2, "'a' is not a number", "NumPy"),
    ("show llama model.norm.weigth[0", 3, "no tensor or object named",
     "did you mean model.norm.weight?"),
    ("show llama model.norm.weight[0:4:0]", 2, "a step below 1", "NumPy"),
    ("inspect tp4 --keys [", 2, "'[' is not closed", "for a bracket"),
    ("inspect tp4 --keys=", 2, "--keys needs a value", "--help"),
    ("inspect tp4 -vv -q", 2, "--verbose can't go with --quiet", ""),
    (R + "--tp 4", 2, "--tp is given more than once", ""),
    ("reshard tp4 out --tp two", 2, "--tp 'two': expected a number", "4:8"),
    ("reshard tp4 out --tp 1.5", 2, "--tp '1.5': expected a number", "4:8"),
    (R + "--if-exists maybe", 2, "--if-exists 'maybe': expected", ""),
    (R + "--max-rate fast", 2, '--max-rate: invalid size "fast"', "5GB"),
    ("convert llama out --to dcp --dialect hff", 2,
     "--dialect 'hff': expected hf, mcore", "did you mean hf?"),
    ("convert llama out --to dcp --dialect mcore --family nope", 2,
     "unknown family 'nope'", "`ckpt family list`"),
    # other commands
    ("scan nothing", 3, "nothing: no such file or directory", ""),
    ("salvage nothing out", 3, "nothing: no such file or directory", ""),
    ("salvage tp4 tp4", 2, "would replace the source", "write beside it"),
    ("view nothing", 3, "nothing: no such file or directory", ""),
    ("ls nothing", 3, "nothing: no such file or directory", ""),
    ("ls tp4 -e (", 2, "-e '('", "a backslash"),
    ("run nothing.json", 3, "nothing.json: no such file or directory", ""),
    ("run llama", 4, "llama: not a plan of ckpt", "-n -o plan.json"),
    # the hint names no file that exists: following it would replace that one
    ("run bad.json", 4, "bad.json: not a plan of ckpt", "-n -o plan.json"),
    ("family show lama", 2, "unknown family 'lama'", "did you mean 'llama'?"),
    ("family chek llama", 2, "ACTION 'chek': expected list, show, check, infer",
     "did you mean check?"),
    ("family check tp4", 5, "no config.json names the model's family",
     "--family NAME"),
    ("man insepct", 2, "unknown command 'insepct'", "did you mean inspect?"),
    ("completion tcsh", 2, "SHELL 'tcsh': expected bash, zsh, fish", ""),
    ("inspect tp4 --html s3://b/a.html", 2, "--html writes a file of this",
     "copy it there"),
    ("inspect tp4 --trace https://host/t", 2, "--trace writes a file of this",
     "copy it there"),
    ("reshard tp4 out --tp 8 -n -o hf://a/b", 2, "--plan-file writes a file",
     "copy it there"),
    ("view llama --port 99999", 2, "--port '99999': expected 0 to 65535", ""),
    ("view llama --port abc", 2, "--port 'abc': expected 0 to 65535", ""),
    ("doctor nowhere", 3, "nowhere: no such file or directory", ""),
    ("doctor notes.txt", 2, "notes.txt: not a directory", "would be"),
    # numbers, ranges and words that are nearly right
    ("verify tp4 tp4 --rtol abc", 2, "--rtol 'abc': expected a number, 0 or "
     "more", ""),
    ("verify tp4 tp4 --rtol -1", 2, "--rtol '-1': expected a number, 0 or more",
     ""),
    ("verify tp4 tp4 --atol nan", 2, "--atol 'nan': expected a number", ""),
    ("verify tp4 --quick --deep", 2, "--quick reads no tensor", "--quick out"),
    ("inspect tp4 --layers=", 2, "--layers needs a value", ""),
    ("inspect tp4 --layers 0-", 2, "--layers 0-: a layer number is missing",
     "0-15,20"),
    ("inspect tp4 --layers -3", 2, "--layers -3: a layer number is missing",
     "0-15,20"),
    ("reshard tp4 out --tp 4:", 2, "--tp '4:': expected a number", "4:8"),
    ("reshard tp4 out --tp :8", 2, "--tp ':8': expected a number", "4:8"),
    ("reshard tp4 out --tp 4:8:16", 2, "--tp '4:8:16': expected a number",
     "4:8"),
    ("reshard tp4 out --tp 99999999999999999999", 2, "expected a number from 1",
     "4:8"),
    (R + "--max-mem 99999999999999999999G", 2, "is more than 64 bits hold",
     "5GB"),
    ("unshard tp4 out.pt --dtype=", 2, "--dtype needs a value", ""),
    ("unshard tp4 out.pt --model-only --optim-only", 2,
     "--model-only can't go with --optim-only", ""),
    ("convert llama out --to safetensors --adapter-weight 2", 2,
     "--adapter-weight goes with --adapter DIR", "--adapter DIR"),
    ("ls tp4 -e [a", 2, "-e '[a'", "a backslash"),
    ("family list extra", 2, "unexpected argument 'extra'",
     "ckpt family show extra"),
    ("inspect -- tp4 -q", 2, "unexpected argument '-q'", "usage: ckpt inspect"),
    ("convert llama out --to SAFETENSORS", 2, 'unknown format "SAFETENSORS"',
     "did you mean safetensors?"),
    ("convert tp4 out --to megatron_legacy --tp 8 --pp 3", 5,
     "2 layers for 3 pipeline stages", "--pp 2 is the most"),
    ("inspect llama --keys * --exclude *", 5, "leaves none of the 21 tensors",
     "--exclude *: 21 of 21 tensors"),
    ("show llama model.layers.*.weight", 3, "no tensor or object named",
     "ckpt ls llama 'model.layers.*.weight'"),
    ("show gpt args.num_layers", 3, "no tensor or object named",
     "ckpt show gpt args"),
    # a variable of a script that is not set
    *((line, 2, what + ": the path is empty", "variable of the script")
      for line, what in (
        ("inspect ''", "PATH"), ("verify llama ''", "OTHER"),
        ("reshard '' out --tp 2", "SRC"), ("reshard tp4 '' --tp 2", "DST"),
        ("diff '' llama", "A"), ("inspect llama --html ''", "--html"),
        ("reshard tp4 out --tp 8 -n -o ''", "--plan-file"),
        ("unshard llama out.pt --rename ''", "--rename"),
        ("salvage llama out --like ''", "--like"))),
    # pages
    ("inspect tp4 --html nodir/x.html", 3, "nodir: the directory of the page "
     "is missing", "mkdir -p nodir"),
    ("diff tp4 tp4 --html tp4", 2, "tp4: --html: is a directory",
     "tp4/page.html"),
    ("inspect tp4 --html llama/config.json", 5, "is not a page", "new file"),
    ("--versoin", 2, "unknown option '--versoin'",
     "did you mean ckpt --version?"),
    ("inspect htps://host/run", 2, "htps:// is not a scheme",
     "did you mean https://host/run?"),
    ("inspect s3a://b/run", 2, "s3a:// is not a scheme",
     "did you mean s3://b/run?"),
    ("unshard llama out --rename {\"a\":\"b\"}", 5,
     "--rename: 'a' matches no tensor", "a name here: "),
    ("show llama model.norm.weight[0:4", 2,
     "model.norm.weight[0:4: the slice has no ']'", "as in NumPy"),
    ("show llama model.norm", 3, "no tensor or object named 'model.norm'",
     "did you mean model.norm.weight?"),
    ("help nope", 2, "unknown command 'nope'", "one of inspect, ls"),
)
WORKS = (
    "ls tp4 -e \\d\\.self_attn", "ls tp4 -e (?i)NORM", "ls tp4 -e (?:q|k)_proj",
    "inspect -- tp4", "inspect stale", "inspect llama/", "inspect steps/step_100",
    "inspect two/model-00001-of-00002.safetensors", "inspect dcp/.metadata",
    "unshard tp4 out.ckpt", "unshard tp4 out.pt --resume", "reshard tp4 out",
    "reshard gpt out --tp 2 --pp 3", "verify tp4 tp4",
    "inspect gpt/iter_0000007/common.pt", "reshard tp4 out --tp=8",
)


def option(folder, words, line, meant):
    """Another tool's option, where the command has an equivalent."""
    mistake(folder, f"{line} {words}", 2, f"unknown option {words.split()[0]}",
            f"did you mean {meant}?")


def said(line):
    return scene.run(line).want(0).err


def parts_are_said(folder):
    """inspect says that a file is one of several, and names the whole."""
    check_equal(said("inspect two/model-00001-of-00002.safetensors"),
                "note: model-00001-of-00002.safetensors is file 1 of 2; the "
                "whole is two\n", "stderr")
    check_equal(said("inspect llama/model.safetensors"), "", "stderr")


def same_topology_is_said(folder):
    """reshard without a size copies, and says that it does."""
    err = said("reshard tp4 out")
    scene.clean()
    check("note: the topology stays tp=4: --tp, --pp, --dp and --ep change it"
          in err, err)


def denied(folder):
    """What one may not read: its owner can be looked up."""
    if os.geteuid() != 0:
        raise Skip("only root can become somebody else")
    path = folder / "model.safetensors"
    llama = scene.SCENE / "llama"
    shutil.copy(next(llama.glob("*.safetensors")), path)
    path.chmod(0)
    for above in (folder, folder.parent):
        above.chmod(0o755)
    done = scene.CKPT.run("inspect", path, user="nobody").want(6)
    check_equal(done.err, f"error: {path}: cannot open: Permission denied\n"
                "hint: ls -ld shows whose it is: ask its owner, or run as a "
                "user who may\n", "stderr")


def reasons_at_v(folder):
    """-v prints a line for each format tried, before the error."""
    lines = scene.run("inspect logs -v").want(3).err.splitlines()
    tried = [l for l in lines if l.startswith("note: not ")]
    check(len(tried) >= 13, "\n".join(lines))
    check_equal(len(lines), len(tried) + 2, "lines")


def stale_tracker_is_said(folder):
    err = said("inspect stale")
    check("names iter_0000009, which is not a complete checkpoint; "
          "iter_0000007 is read" in err, err)


NAMES = ("plain", "a b", "it's", '"', "$HOME", "`id`", "a;b", "a&b", "*", "a\\b",
         "~x", "=x", "!x", "{a,b}", "x\ny", "x\x1b[31m", "-x", "@x", "#x", "ü",
         "\u202ex", "(x)", "<x", "a\tb", "%x", "s3:x")
# Files whose names aren't UTF-8 exist, too.
NAMES += (os.fsdecode(b"\xff x"),)


def next_steps(folder, name):
    """What a message says to run next works when pasted into a shell, whatever
    the path's name."""
    (folder / "bin").mkdir()
    (folder / "bin/ckpt").symlink_to(scene.CKPT.path)
    at = folder / "at"
    at.mkdir()
    here = name if name[0] not in "-@" and ":" not in name else "./" + name

    def pasted(done, mark, end=""):
        line = next(l for l in done.err.splitlines() if mark in l)
        words = line.split(mark, 1)[1].removesuffix(end)
        ran = subprocess.run(
            ["bash", "-c", words], cwd=at, text=True, capture_output=True,
            env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"})
        check_equal(ran.returncode, 0, f"{words!r}: {ran.stderr}")

    def run(*args):
        return scene.CKPT.run(*args, cwd=at)
    llama = scene.SCENE / "llama"
    pasted(run("convert", llama, here, "--to", "safetensors").want(0),
           "; next: ")
    pasted(run("convert", llama, here, "--to", "safetensors", "--verify",
               "--overwrite").want(0), "verified; next: ")
    pasted(run("show", here, "zzz").want(3), "hint: ", " lists the tensors")
    if name[0] != "-" and name[0] != "@":
        pasted(run(name).want(2), "what it holds: ")
    pasted(run("convert", llama, here + "_/deep/out", "--to", "dcp").want(3),
           "hint: ")
    check((at / (name + "_") / "deep").is_dir(), "mkdir -p made another one")


def part_is_its_whole(folder):
    """A torch file in a Megatron checkpoint belongs to that, not to DCP."""
    step = scene.SCENE / "gpt/iter_0000007"
    whole, index, data = (
        scene.CKPT.inspect(p)
        for p in (step, step / ".metadata", step / "__1_0.distcp"))
    check_equal(index["format"], "megatron_torch_dist", "format")
    for part in (index, data):
        for key in whole:
            if key not in ("root", "found_in", "assumptions", "notes"):
                check_equal(part.get(key), whole[key], key)


def add_cases(suite):
    for words, line, meant in OPTIONS:
        suite.add(f"option {words}", option, words, line, meant)
    for case in (parts_are_said, same_topology_is_said, stale_tracker_is_said,
                 reasons_at_v, denied, part_is_its_whole):
        suite.add(case.__name__, case)
    for name in NAMES:
        suite.add(f"next steps of {name!r}", next_steps, name)
