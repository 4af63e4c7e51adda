# SPDX-License-Identifier: Apache-2.0
"""Weights that the libraries themselves quantized, and their own dequantize.

A kind has a maker, which returns (tensors, config, sidecars): one module of
random weights as its library stores it. `numbers` is what the library makes of
such tensors under such a configuration, by the weights' names; it raises where
the library does.
"""

import contextlib
import io
import json
import sys
import types
from pathlib import Path

from support import Skip

STEM = "model.layers.0.mlp.down_proj."
NAME = STEM + "weight"


@contextlib.contextmanager
def peer(folder, what):
    """Imports from a peer's own folder."""
    path = Path(sys.prefix) / folder
    if not path.is_dir():
        raise Skip(f"{what} is not installed (scripts/test.sh does it)")
    import torch
    torch.compiler.set_stance("force_eager")  # bitsandbytes compiles
    sys.path.insert(0, str(path))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except ImportError as error:
        raise Skip(f"{what}: {error}") from error
    finally:
        sys.path.remove(str(path))


def random(shape, dtype, seed=0):
    import torch

    g = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=g) * 0.1).to(getattr(torch, dtype))


class Bitsandbytes:
    """quantize_4bit and QuantState, as transformers saves them. Numbers by its
    plain implementation, which CUDA's follows: its kernel for processors takes
    blocks to end with rows (0.50.2)."""

    def __init__(self, kind, dtype, shape, block=64, nested=True,
                 storage="uint8"):
        self.kind, self.dtype, self.shape = kind, dtype, shape
        self.block, self.nested, self.storage = block, nested, storage

    def make(self):
        import torch
        with peer("bitsandbytes", "bitsandbytes"):
            from bitsandbytes.functional import quantize_4bit
        codes, state = quantize_4bit(
            random(self.shape, self.dtype), blocksize=self.block,
            compress_statistics=self.nested, quant_type=self.kind,
            quant_storage=getattr(torch, self.storage))
        return {NAME: codes, **{f"{NAME}.{key}": value for key, value in
                                state.as_dict(packed=True).items()}}, {
            "quant_method": "bitsandbytes", "load_in_4bit": True,
            "load_in_8bit": False, "_load_in_4bit": True,
            "_load_in_8bit": False, "bnb_4bit_quant_type": self.kind,
            "bnb_4bit_use_double_quant": self.nested,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": self.storage,
            "llm_int8_threshold": 6.0, "llm_int8_skip_modules": None,
            "llm_int8_has_fp16_weight": False,
            "llm_int8_enable_fp32_cpu_offload": False}, {}

    def numbers(self, tensors, config):
        import torch
        with peer("bitsandbytes", "bitsandbytes"):
            from bitsandbytes.backends.default.ops import (
                _dequantize_blockwise_compute)
            from bitsandbytes.backends.utils import _get_4bit_code
            from bitsandbytes.functional import QuantState
        state = QuantState.from_dict(
            {k[len(NAME) + 1:]: v for k, v in tensors.items()
             if k.startswith(NAME + ".")}, torch.device("cpu"))
        absmax = state.absmax
        if state.nested:
            absmax = state.offset + _dequantize_blockwise_compute(
                absmax, state.state2.absmax, state.state2.code,
                state.state2.blocksize, torch.float32)
        codes = tensors[NAME].view(-1).view(torch.uint8)
        pairs = torch.stack([codes >> 4, codes & 15], -1).view(-1)
        count = state.shape.numel()
        return {NAME: _dequantize_blockwise_compute(
            pairs[:count], absmax, _get_4bit_code(state.quant_type,
                                                  torch.device("cpu")),
            state.blocksize, state.dtype).view(state.shape)}


class BitsandbytesInt8:
    def make(self):
        import torch
        weight = random((48, 64), "float32")
        scale = weight.abs().amax(1)
        codes = (weight / scale[:, None] * 127).round().to(torch.int8)
        return {NAME: codes, STEM + "SCB": scale,
                STEM + "weight_format": torch.tensor(0, dtype=torch.uint8)}, {
            "quant_method": "bitsandbytes", "load_in_4bit": False,
            "load_in_8bit": True, "llm_int8_threshold": 6.0}, {}

    def numbers(self, tensors, config):
        import torch
        with peer("bitsandbytes", "bitsandbytes"):
            from bitsandbytes.functional import int8_vectorwise_dequant
        if tensors.get(STEM + "weight_format", torch.zeros(())).item() != 0:
            raise ValueError("rows in another order")
        return {NAME: int8_vectorwise_dequant(tensors[NAME],
                                              tensors[STEM + "SCB"])}


class CompressedTensors:
    """Its compressors, of the format that the configuration names."""

    def __init__(self, form, weights, shape=(48, 128), dtype="bfloat16"):
        self.form, self.weights = form, weights
        self.shape, self.dtype = shape, dtype

    @staticmethod
    def library(config):
        with peer("compressed_tensors", "compressed-tensors"):
            from compressed_tensors.compressors.base import BaseCompressor
            from compressed_tensors.quantization import QuantizationScheme
        scheme = dict(config["config_groups"]["group_0"])
        return (BaseCompressor.get_value_from_registry(config["format"]),
                QuantizationScheme(**scheme))

    def make(self):
        import torch
        config = {
            "quant_method": "compressed-tensors", "format": self.form,
            "quantization_status": "compressed", "ignore": ["lm_head"],
            "global_compression_ratio": None, "kv_cache_scheme": None,
            "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": self.weights,
                "input_activations": None, "output_activations": None}}}
        from transformers_test import transformers
        transformers()
        kind, scheme = self.library(config)
        weight = random(self.shape, self.dtype)
        group = self.weights.get("group_size") or self.shape[1]
        groups = weight.float().view(self.shape[0], -1, group)
        state = {"weight": weight}
        if self.form == "pack-quantized":
            half = 1 << (self.weights["num_bits"] - 1)
            low, high = groups.amin(-1), groups.amax(-1)
            if self.weights["symmetric"]:
                scale = torch.maximum(high, -low) / (half - .5)
            else:
                scale = (high - low) / (2 * half - 1)
                state["weight_zero_point"] = (
                    -half - low / scale).round().clamp(-half, half - 1).to(
                    torch.int8)
            state["weight_scale"] = scale.to(weight.dtype)
        else:
            outer = torch.tensor([448 * 6]) / weight.float().abs().max()
            state["weight_scale"] = (groups.abs().amax(-1) / 6 * outer).to(
                torch.float8_e4m3fn).float()
            state["weight_global_scale"] = outer
        state = kind.compress(state, scheme)
        return {STEM + k: v.contiguous() for k, v in state.items()}, config, {}

    def numbers(self, tensors, config):
        kind, scheme = self.library(config)
        state = kind.decompress({k[len(STEM):]: v for k, v in tensors.items()
                                 if k.startswith(STEM)}, scheme)
        return {NAME: state["weight"]}


def nvfp4():
    """ModelOpt's class alone: its packages import much that is not needed."""
    root = Path(sys.prefix) / "modelopt"

    def anything(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

    quantization = "modelopt.torch.quantization"
    bare = ("modelopt", "modelopt.torch", quantization, *(
        f"{quantization}.{name}" for name in (
            "qtensor", "utils", "backends", "backends.utils")))
    if quantization + ".qtensor" not in sys.modules:
        for name in bare:
            module = types.ModuleType(name)
            module.__path__ = [str(root / name.replace(".", "/"))]
            module.__getattr__ = anything
            sys.modules[name] = module
    with peer("modelopt", "ModelOpt"):
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import (
            NVFP4QTensor)
    return NVFP4QTensor


class Modelopt:
    """NVFP4QTensor's numbers of random codes."""

    def make(self):
        import torch

        nvfp4()
        g = torch.Generator().manual_seed(3)
        outer = torch.tensor(0.0123)
        return {NAME: torch.randint(0, 256, (48, 64), generator=g).byte(),
                STEM + "weight_scale": (torch.rand(
                    (48, 8), generator=g) * 400).to(torch.float8_e4m3fn),
                STEM + "weight_scale_2": outer,
                STEM + "input_scale": outer * 2}, {
            "quant_method": "modelopt", "quant_algo": "NVFP4",
            "producer": {"name": "modelopt", "version": "0.47"},
            "kv_cache_scheme": None, "ignore": ["lm_head"],
            "config_groups": {"group_0": {
                "weights": {"num_bits": 4, "type": "float", "group_size": 16,
                            "dynamic": False},
                "input_activations": None, "targets": ["Linear"]}}}, {}

    def numbers(self, tensors, config):
        import torch

        codes = tensors[NAME]
        tensor = nvfp4()(torch.Size((codes.shape[0], codes.shape[1] * 2)),
                         torch.float32, codes)
        return {NAME: tensor.dequantize(
            torch.float32, scale=tensors[STEM + "weight_scale"],
            double_scale=tensors[STEM + "weight_scale_2"],
            block_sizes={-1: 16})}


class Mlx:
    """mlx.core.quantize, and configurations as mlx-lm writes them. Numbers are
    those of scales in f32: in bf16, MLX rounds the product before the sum."""

    def __init__(self, bits, group, dtype, own=False):
        self.bits, self.group, self.dtype, self.own = bits, group, dtype, own

    def make(self):
        import numpy
        import torch
        with peer("mlx", "MLX"):
            import mlx.core as mx
        weight = mx.array(random((48, 256), "float32").numpy()).astype(
            getattr(mx, self.dtype))
        parts = mx.quantize(weight, group_size=self.group, bits=self.bits)
        tensors = {NAME: torch.from_numpy(numpy.array(parts[0]))}
        for end, part in (("scales", parts[1]), ("biases", parts[2])):
            tensors[STEM + end] = torch.from_numpy(numpy.array(part.astype(
                mx.float32))).to(getattr(torch, self.dtype))
        config = {"group_size": self.group, "bits": self.bits,
                  "mode": "affine"}
        if self.own:
            config = {"group_size": 32, "bits": 2, "mode": "affine",
                      STEM[:-1]: config}
        return tensors, config, {}

    def numbers(self, tensors, config):
        import numpy
        import torch
        with peer("mlx", "MLX"):
            import mlx.core as mx
        config = config.get(STEM[:-1], config)
        scales, biases = (
            mx.array(tensors[STEM + end].float().numpy())
            for end in ("scales", "biases"))
        made = mx.dequantize(
            mx.array(tensors[NAME].numpy()), scales, biases,
            group_size=config["group_size"], bits=config["bits"],
            mode=config.get("mode", "affine"))
        return {NAME: torch.from_numpy(numpy.array(made.astype(mx.float32)))}


class Quanto:
    def __init__(self, kind, dtype):
        self.kind, self.dtype = kind, dtype

    def make(self):
        import torch
        with peer("optimum_quanto", "optimum-quanto"):
            from optimum import quanto
            layer = torch.nn.Sequential(torch.nn.Linear(64, 48, bias=False))
            layer.to(getattr(torch, self.dtype))
            quanto.quantize(layer, weights=quanto.qtypes[self.kind])
            quanto.freeze(layer)
            state = layer.state_dict()
        return {STEM + k[2:]: v.detach().clone() for k, v in state.items()}, \
            None, {"quanto_qmap.json": json.dumps({STEM[:-1]: {
                "weights": self.kind, "activations": "none"}})}

    def numbers(self, tensors, config):
        with peer("optimum_quanto", "optimum-quanto"):
            from optimum import quanto
            codes = tensors[NAME + "._data"]
            weight = quanto.WeightQBytesTensor.load_from_state_dict(
                dict(tensors), NAME + ".", quanto.qtypes[self.kind], 0,
                codes.shape, codes.stride(), None, [])
            return {NAME: weight.dequantize()}


def pack(bits, **more):
    return {"num_bits": bits, "type": "int", "symmetric": True,
            "strategy": "group", "group_size": 32, "dynamic": False,
            "actorder": None, "observer": "minmax", **more}


KINDS = {
    "bnb nf4": Bitsandbytes("nf4", "bfloat16", (64, 128)),
    "bnb nf4 f16": Bitsandbytes("nf4", "float16", (64, 128)),
    "bnb nf4 f32 plain": Bitsandbytes("nf4", "float32", (64, 128), 128, False),
    "bnb nf4 odd": Bitsandbytes("nf4", "bfloat16", (33, 97)),
    "bnb nf4 rows end in blocks": Bitsandbytes("nf4", "bfloat16", (33, 96)),
    "bnb fp4": Bitsandbytes("fp4", "bfloat16", (300, 192), 64),
    "bnb nf4 in bf16": Bitsandbytes("nf4", "bfloat16", (64, 128),
                                    storage="bfloat16"),
    "bnb int8": BitsandbytesInt8(),
    "ct int4": CompressedTensors("pack-quantized", pack(4)),
    "ct int4 f16": CompressedTensors("pack-quantized", pack(4), (40, 96),
                                     "float16"),
    "ct int4 channel": CompressedTensors("pack-quantized", pack(
        4, strategy="channel", group_size=None), (40, 100)),
    "ct int4 zeros": CompressedTensors("pack-quantized",
                                       pack(4, symmetric=False), (44, 96)),
    "ct int8": CompressedTensors("pack-quantized", pack(8)),
    "ct int3": CompressedTensors("pack-quantized", pack(3)),
    "ct int6 zeros": CompressedTensors("pack-quantized",
                                       pack(6, symmetric=False)),
    "ct nvfp4": CompressedTensors("nvfp4-pack-quantized", {
        "num_bits": 4, "type": "float", "symmetric": True,
        "strategy": "tensor_group", "group_size": 16, "dynamic": False}),
    "modelopt nvfp4": Modelopt(),
    **{f"mlx {bits}": Mlx(bits, 64, "bfloat16")
       for bits in (2, 3, 4, 5, 6, 8)},
    "mlx f16": Mlx(4, 32, "float16"),
    "mlx own": Mlx(6, 128, "bfloat16", True),
    "quanto qint8": Quanto("qint8", "bfloat16"),
    "quanto qfloat8": Quanto("qfloat8", "float32"),
}
