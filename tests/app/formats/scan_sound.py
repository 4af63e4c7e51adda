# SPDX-License-Identifier: Apache-2.0
"""Sound files, by the library that writes them and the loader that takes them.
A maker yields (name, path, load) for each file."""

import json
import pickle
import tarfile

from scan_hostile import load_pickle, load_torch, needs


def of_numpy():
    import numpy as np

    kinds = ("f4", "f8", "i1", "i4", "i8", "u2", "?", "c8", "M8[s]", "S5",
             "U7", "f2")
    for kind in kinds:
        yield f"array-{kind}", np.zeros((3, 2), kind)
        yield f"scalar-{kind}", np.zeros(1, kind)[0]
        yield f"masked-{kind}", np.ma.masked_array(np.zeros(3, kind),
                                                   [0, 1, 0])
    yield "fields", np.zeros(3, [("a", "f4"), ("b", "i8", 2)])
    yield "records", np.rec.array(np.zeros(3, [("a", "f4")]))
    yield "dtype", np.dtype("f4")
    yield "objects", np.array([1, "a", None], object)
    yield "fortran", np.asfortranarray(np.zeros((3, 4)))
    yield "random", np.random.default_rng(1)
    yield "random state", np.random.RandomState(1)
    for name in ("PCG64", "MT19937", "Philox", "SFC64", "PCG64DXSM"):
        yield f"generator {name}", np.random.Generator(
            getattr(np.random, name)(1))
        yield f"bits {name}", getattr(np.random, name)(1)
    yield "seeds", np.random.SeedSequence(5)
    yield "state", {"np": np.random.get_state()}


def of_torch():
    import torch

    layer = torch.nn.Linear(3, 3)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64,
                  torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield f"tensor-{dtype}", torch.zeros(3).to(dtype)
    yield "parameter", torch.nn.Parameter(torch.ones(2))
    yield "state", layer.state_dict()
    yield "size", {"shape": torch.Size([1, 2]), "dtype": torch.float32,
                   "device": torch.device("cpu")}
    yield "generator", {"rng": torch.get_rng_state()}
    optimizers = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "NAdam",
                  "RAdam", "Adamax", "ASGD", "Rprop", "Adadelta")
    for name in optimizers:
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
        layer(torch.ones(3)).sum().backward()
        optimizer.step()
        yield f"states of {name}", optimizer.state_dict()
        yield f"whole {name}", optimizer
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        yield f"schedule of {name}", schedule.state_dict()
    for module in (layer, torch.nn.LayerNorm(4), torch.nn.Embedding(3, 2),
                   torch.nn.Sequential(layer, torch.nn.ReLU()),
                   torch.nn.Conv2d(1, 1, 2), torch.nn.GRU(2, 2),
                   torch.nn.MultiheadAttention(4, 2),
                   torch.nn.TransformerEncoderLayer(4, 2, 8)):
        yield f"module {type(module).__name__}", module


def of_pandas():
    import pandas as pd

    for kind in ("float64", "int32", "string", "category", "bool",
                 "datetime64[ns]", "Int64", "object"):
        yield f"series {kind}", pd.Series([1, 0, 1]).astype(kind)
        yield f"frame {kind}", pd.DataFrame({"a": [1, 0]}).astype(kind)
    yield "index", pd.MultiIndex.from_tuples([(1, "a"), (2, "b")])
    yield "range", pd.RangeIndex(5)
    yield "times", pd.date_range("2026-01-01", periods=3, tz="UTC")


def of_sklearn():
    import numpy as np
    from sklearn import (cluster, decomposition, ensemble, linear_model,
                         naive_bayes, neighbors, pipeline, preprocessing, svm,
                         tree)

    x, y = np.random.default_rng(1).random((20, 3)), np.arange(20) % 2
    for model in (linear_model.LogisticRegression(), svm.SVC(),
                  linear_model.LinearRegression(), linear_model.Ridge(),
                  linear_model.Lasso(), naive_bayes.GaussianNB(),
                  tree.DecisionTreeClassifier(), svm.LinearSVC(),
                  ensemble.RandomForestClassifier(n_estimators=3),
                  ensemble.GradientBoostingClassifier(n_estimators=3),
                  neighbors.KNeighborsClassifier(), decomposition.PCA(2),
                  cluster.KMeans(2), preprocessing.StandardScaler(),
                  preprocessing.MinMaxScaler(), preprocessing.OneHotEncoder(),
                  pipeline.make_pipeline(preprocessing.StandardScaler(),
                                         linear_model.LogisticRegression())):
        yield type(model).__name__, model.fit(x, y)


LIBRARIES = {"numpy": of_numpy, "torch": of_torch, "pandas": of_pandas,
             "scikit-learn": of_sklearn}
MODULES = {"pandas": "pandas", "scikit-learn": "sklearn", "joblib": "joblib"}


def written(library, write, load, ending):
    """Each value of a library in one kind of file."""
    def make(folder):
        if library in MODULES:
            needs(MODULES[library])
        for number, (name, value) in enumerate(LIBRARIES[library]()):
            path = folder / f"{number}{ending}"
            if "float8" in name and load is not load_torch:
                continue  # torch can't load its own pickle of it
            try:
                write(value, path)
            except (TypeError, pickle.PicklingError):
                path.unlink(missing_ok=True)  # not of this protocol
                continue
            yield name, path, load
    return make


def by_pickle(protocol):
    return lambda value, path: path.write_bytes(pickle.dumps(value, protocol))


def by_torch(value, path):
    import torch
    torch.save(value, path)


def by_joblib(compress):
    def write(value, path):
        needs("joblib").dump(value, path, compress=compress)
    return write


def load_joblib(path):
    return needs("joblib").load(path)


# ------------------------------------------------------------------ archives
def torch_modules():
    import torch
    from torch import nn

    yield nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (2, 3)
    yield nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), (1, 1, 6, 6)
    yield nn.LayerNorm(4), (2, 4)
    yield nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (1, 3, 4)
    yield nn.Sequential(nn.Dropout(0.1), nn.GELU(), nn.Softmax(-1)), (2, 4)
    yield nn.Bilinear(2, 2, 2), None
    yield nn.GRU(3, 2), (4, 1, 3)
    yield torch.nn.Embedding(4, 2), None


def scripts(folder):
    """TorchScript: scripted and traced."""
    import torch

    for number, (module, shape) in enumerate(torch_modules()):
        module.eval()
        kinds = {"script": torch.jit.script(module)}
        if shape:
            kinds["trace"] = torch.jit.trace(
                module, torch.ones(shape), check_trace=False)
        for kind, made in kinds.items():
            path = folder / f"{kind}{number}.pt"
            made.save(str(path))
            yield f"{kind} {type(module).__name__}", path, torch.jit.load


def exported(folder):
    import torch

    for number, (module, shape) in enumerate(torch_modules()):
        if not shape or number > 4:
            continue
        sizes = ({0: torch.export.Dim("n", min=2, max=99)},) \
            if number in (0, 2) else None
        path = folder / f"{number}.pt2"
        torch.export.save(torch.export.export(
            module.eval(), (torch.ones(max(shape[0], 2), *shape[1:]),),
            dynamic_shapes=sizes), path)
        yield type(module).__name__, path, torch.export.load


def packages(folder):
    """torch.package without modules of its own."""
    import torch
    import torch.package as tp

    for number, value in enumerate((
            [1, "a"], {"w": torch.ones(2)}, torch.nn.Linear(2, 2).state_dict(),
            torch.nn.Linear(2, 2))):
        path = folder / f"{number}.pt"
        with tp.PackageExporter(str(path)) as exporter:
            exporter.extern("**")
            exporter.save_pickle("d", "d.pkl", value)
        yield type(value).__name__, path, lambda path: \
            tp.PackageImporter(str(path)).load_pickle("d", "d.pkl")


def numpys(folder):
    import numpy

    def load(path):
        found = numpy.load(path, allow_pickle=True)
        return dict(found) if path.suffix == ".npz" else found

    for number, (name, value) in enumerate(of_numpy()):
        array = numpy.asarray(value)
        for ending, save in ((".npy", numpy.save), (".npz", numpy.savez),
                             (".z.npz", numpy.savez_compressed)):
            path = folder / f"{number}{ending}"
            save(path, array)
            yield name + ending, path, load


def safetensors(folder):
    import torch
    from safetensors.torch import load_file, save_file

    for number, dtype in enumerate((torch.float32, torch.bfloat16, torch.int8,
                                    torch.float8_e4m3fn, torch.bool)):
        path = folder / f"{number}.safetensors"
        save_file({"w": torch.zeros(4, 2).to(dtype)}, path, {"format": "pt"})
        yield str(dtype), path, load_file


# ------------------------------------------------------------ configurations
CONFIGS = (
    {"target": "nemo.collections.nlp.models.language_modeling.gpt.GPTModel",
     "tokenizer": {"library": "sentencepiece", "model": "nemo:a.model"},
     "optim": {"name": "fused_adam", "lr": 1e-4}},
    {"model": {"_target_": "torch.nn.Linear", "in_features": 2,
               "out_features": 2}},
    {"optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True,
                   "lr": 0.1}},
    {"layers": [{"_target_": "torch.nn.ReLU"},
                {"_target_": "torch.nn.modules.linear.Identity"}]},
    {"hydra": {"launcher": {"_target_": "hydra._internal.core_plugins."
                            "basic_launcher.BasicLauncher"}}},
    {"lora": {"target": "model.layers.0.self_attn", "target_modules": ["q"]}},
    {"data": {"_target_": "torch.utils.data.TensorDataset", "_args_": []}},
    {"dtype": {"_target_": "torch.nn.Identity"}},
)


def configs(ending):
    def make(folder):
        yaml, hydra = needs("yaml", "hydra.utils")
        for number, tree in enumerate(CONFIGS):
            path = folder / f"{number}{ending}"
            text = json.dumps(tree) if ending == ".json" else \
                yaml.safe_dump(tree)
            path.write_text(text)
            if ending == ".nemo":
                path.rename(folder / "model_config.yaml")
                with tarfile.open(path, "w") as out:
                    out.add(folder / "model_config.yaml", "model_config.yaml")
                (folder / "model_config.yaml").unlink()

            def load(path, text=text):
                tree = yaml.safe_load(text)
                tree.pop("target", None)  # NeMo is not installed
                tree.pop("hydra", None)
                hydra.instantiate(tree)
            yield str(tree)[:40], path, load
    return make


def keras_files(folder):
    keras = needs("keras")
    layers = keras.layers
    for number, body in enumerate((
            [layers.Dense(4, activation="relu"), layers.Dense(2)],
            [layers.Dropout(0.1), layers.LayerNormalization()],
            [layers.Reshape((3, 1)), layers.Conv1D(2, 2), layers.Flatten()])):
        for ending in (".keras", ".h5"):
            path = folder / f"{number}{ending}"
            keras.Sequential([keras.Input((3,)), *body]).save(path)
            yield f"{number}{ending}", path, keras.saving.load_model


# As models of different kinds have them, in our words.
TEMPLATES = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' "
    "+ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "{{ bos_token }}{%- for message in messages %}{%- if (message.role == "
    "'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}"
    "{%- endif %}[INST] {{ message.content | trim }} [/INST]{%- endfor %}",
    "{%- set ns = namespace(found=false, last=messages|length - 1) -%}"
    "{%- for m in messages[::-1] %}{%- set i = messages|length - 1 - "
    "loop.index0 %}{%- if not ns.found and m.role == 'user' and "
    "messages[i].content is string %}{%- set ns.found = true %}"
    "{%- set ns.last = i %}{%- endif %}{%- endfor -%}{{ messages[ns.last]"
    "['content'] }}",
    "{%- if tools %}{{ '# Tools\\n' }}{%- for tool in tools %}"
    "{{ tool.function | tojson(indent=4) }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}{%- if message.tool_calls is defined %}"
    "{%- for call in message.tool_calls %}{%- set call = call.function %}"
    "{{ '<tool_call>' ~ call.name ~ (call.arguments | tojson) }}{%- endfor %}"
    "{%- else %}{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>' "
    "}}{%- endif %}{%- endfor %}",
    "{%- macro render(value, depth=0) -%}{%- for key, item in "
    "value.items() %}{{ '  ' * depth ~ key ~ ': ' ~ item }}{%- endfor %}"
    "{%- endmacro -%}{%- for message in messages if message.role != 'system' "
    "%}{{ render(message) }}{%- endfor %}{{ (messages | selectattr('role', "
    "'equalto', 'user') | map(attribute='content') | list)[0] }}",
    "{%- set roles = {'user': '<|user|>', 'assistant': '<|bot|>'} %}"
    "{%- for message in messages %}{%- set role = message['role'] %}"
    "{{ roles[role] ~ message['content'].split('</think>')[-1].lstrip('\\n') "
    "}}{%- endfor %}{# __class__ in a comment #}",
)


def templates(kind):
    def make(folder):
        import jinja2

        for number, text in enumerate(TEMPLATES):
            path = folder / str(number)
            if kind == "gguf":
                path = path.with_suffix(".gguf")
                writer = needs("gguf").GGUFWriter(str(path), "llama")
                writer.add_token_list([b"a", b"b"])
                writer.add_chat_template(text)
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.close()
            else:
                path.mkdir()
                (path / "tokenizer_config.json").write_text(
                    json.dumps({"chat_template": text}))
                (path / "chat_template.jinja").write_text(text)

            def load(path, text=text):
                jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]) \
                    .from_string(text).render(messages=[
                        {"role": "user", "content": "x"}])
            yield f"{kind} {number}", path, load
    return make


def folders(folder):
    """Models as transformers saves them."""
    transformers = needs("transformers")
    small = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 16,
             "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 2, "head_dim": 4}
    for name in ("Llama", "Qwen2", "Mistral"):
        config = getattr(transformers, name + "Config")(**small)
        path = folder / name
        getattr(transformers, name + "ForCausalLM")(config).save_pretrained(
            path)
        # What other models have: code elsewhere that nobody brings along.
        text = json.loads((path / "config.json").read_text())
        text["auto_map"] = {"AutoConfig": "configuration_absent.Config"}
        (path / "config.json").write_text(json.dumps(text))
        yield name, path, transformers.AutoModelForCausalLM.from_pretrained


def groups():
    for library in LIBRARIES:
        for protocol in (0, 2, 4, 5):
            yield f"pickle {protocol} of {library}", written(
                library, by_pickle(protocol), load_pickle, ".pkl")
        yield f"torch.save of {library}", written(library, by_torch,
                                                  load_torch, ".pt")
        for compress in (0, ("zlib", 3), ("lz4", 3), ("xz", 3), ("lzma", 3),
                         ("bz2", 3)):
            name = compress[0] if compress else "plain"
            yield f"joblib, {name}, of {library}", written(
                library, by_joblib(compress), load_joblib, ".joblib")
    yield "numpy.save", numpys
    yield "safetensors", safetensors
    yield "torch.jit.save", scripts
    yield "torch.export.save", exported
    yield "torch.package", packages
    for ending in (".yaml", ".json", ".nemo"):
        yield f"configurations, {ending}", configs(ending)
    yield "Keras", keras_files
    for kind in ("folder", "gguf"):
        yield f"templates, {kind}", templates(kind)
    yield "transformers", folders
