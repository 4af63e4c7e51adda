# SPDX-License-Identifier: Apache-2.0
"""Quantized weights as their makers describe them, in plain torch: random
codes and scales, and the numbers that they stand for.

Each function returns (parts, name, number, config): the tensors of a checkpoint
by the ends of their names, the name of the weight, its numbers in f32, and
config.json's quantization_config. Transcribed from the public descriptions of
DeepSeek V3's fp8, compressed-tensors 0.20, gpt-oss's mxfp4 (OCP MX), GPTQ as
AutoGPTQ packs it and AWQ's gemm.
"""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # columns in nibbles 0, 1, … of a word


def spread(scales, blocks, shape):
    """Each scale over its block, cut to the shape."""
    for dim, block in enumerate(blocks):
        scales = scales.repeat_interleave(block, dim)
    return scales[tuple(slice(size) for size in shape)]


def fp8_codes(g, *shape):
    import torch

    codes = torch.randint(0, 256, shape, generator=g, dtype=torch.int32)
    codes = codes.masked_fill(codes % 128 == 127, 3).to(torch.uint8)  # no NaN
    return codes.view(torch.float8_e4m3fn)


def some_scales(g, *shape):
    import torch

    return torch.rand(shape, generator=g) * 0.03 + 0.0001


def fp8_block(g, rows, columns, block=(128, 128), dtype="float32"):
    """DeepSeek: weight_scale_inv [ceil(rows/a), ceil(columns/b)]."""
    import torch

    codes = fp8_codes(g, rows, columns)
    grid = [-(-size // b) for size, b in zip((rows, columns), block)]
    if dtype == "float8_e8m0fnu":
        scales = torch.randint(110, 125, grid, generator=g).to(
            torch.uint8).view(torch.float8_e8m0fnu)
    else:
        scales = some_scales(g, *grid).to(getattr(torch, dtype))
    number = codes.float() * spread(scales.float(), block, (rows, columns))
    return ({"weight": codes, "weight_scale_inv": scales}, "weight", number,
            {"quant_method": "fp8", "activation_scheme": "dynamic",
             "fmt": "e4m3", "weight_block_size": list(block)})


def compressed(kind, bits=8, block=None, group=None):
    weights = {"num_bits": bits, "type": "float" if kind == "fp8" else "int",
               "symmetric": True, "strategy": "channel"}
    if block:
        weights |= {"strategy": "block", "block_structure": list(block)}
    if group:
        weights |= {"strategy": "group", "group_size": group}
    return {"quant_method": "compressed-tensors",
            "format": "float-quantized" if kind == "fp8" else "int-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"],
                                          "weights": weights}}}


def fp8_scaled(g, rows, columns, scales, dtype="bfloat16"):
    """compressed-tensors: one scale, one for each row, or blocks."""
    import torch

    codes = fp8_codes(g, rows, columns)
    shape = {"tensor": (1,), "scalar": (), "channel": (rows, 1),
             "rows": (rows,)}.get(scales)
    block = None
    if shape is None:
        block = (128, 128)
        shape = tuple(-(-size // 128) for size in (rows, columns))
    values = some_scales(g, *shape).to(getattr(torch, dtype))
    wide = values.float()
    if scales == "rows":
        wide = wide[:, None]
    if block:
        wide = spread(wide, block, (rows, columns))
    parts = {"weight": codes, "weight_scale": values}
    if scales == "tensor":
        parts["input_scale"] = torch.ones(1)
    return (parts, "weight", codes.float() * wide,
            compressed("fp8", block=block))


def int8(g, rows, columns, zeros, group=None):
    import torch

    codes = torch.randint(-128, 128, (rows, columns), generator=g).to(
        torch.int8)
    groups = -(-columns // group) if group else 1
    scales = some_scales(g, rows, groups).to(torch.bfloat16)
    wide = scales.float().repeat_interleave(group or columns, 1)[:, :columns]
    number = codes.float()
    parts = {"weight": codes, "weight_scale": scales}
    if zeros:
        points = torch.randint(-128, 128, (rows, groups), generator=g).to(
            torch.int8)
        parts["weight_zero_point"] = points
        number = number - points.float().repeat_interleave(
            group or columns, 1)[:, :columns]
    return (parts, "weight", number * wide,
            compressed("int8", group=group))


def mxfp4(g, experts, rows, groups):
    """gpt-oss: e2m1 pairs, the lower half first; the model has them
    transposed."""
    import torch

    blocks = torch.randint(0, 256, (experts, rows, groups, 16),
                           generator=g).to(torch.uint8)
    scales = torch.randint(90, 140, (experts, rows, groups),
                           generator=g).to(torch.uint8)
    table = torch.tensor(E2M1 + tuple(-x for x in E2M1))
    pairs = torch.stack([table[(blocks & 15).long()],
                         table[(blocks >> 4).long()]], -1)
    number = pairs.reshape(experts, rows, groups, 32)
    number = number * torch.exp2(scales.float() - 127)[..., None]
    number = number.reshape(experts, rows, groups * 32).transpose(1, 2)
    return ({"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales},
            "gate_up_proj", number.contiguous(), {"quant_method": "mxfp4"})


def words(codes, per, order=None):
    """int32 words, each of `per` codes along the last dimension."""
    import torch

    bits = 32 // per
    codes = codes.reshape(*codes.shape[:-1], -1, per)
    if order:
        codes = codes[..., list(order)]
    shifts = torch.arange(per) * bits
    packed = (codes.long() << shifts).sum(-1)
    return packed.to(torch.uint32).view(torch.int32)


def gptq(g, rows, columns, bits=4, group=128, desc_act=False, version="gptq",
         dtype="float16"):
    """[in / per, out] words; version 1 stores zeros minus one."""
    import torch

    per = 32 // bits
    groups = -(-columns // group)
    codes = torch.randint(0, 1 << bits, (columns, rows), generator=g)
    zeros = torch.randint(1, 1 << bits, (groups, rows), generator=g)
    scales = some_scales(g, groups, rows).to(getattr(torch, dtype))
    order = torch.arange(columns) // group
    if desc_act:
        order = order[torch.randperm(columns, generator=g)]
    number = (codes - zeros[order]).float() * scales[order].float()
    stored = zeros - (1 if version == "gptq" else 0)
    parts = {"qweight": words(codes.T, per).T.contiguous(),
             "qzeros": words(stored, per), "scales": scales,
             "g_idx": order.to(torch.int32)}
    return (parts, "weight", number.T.contiguous(),
            {"quant_method": "gptq", "bits": bits, "group_size": group,
             "desc_act": desc_act, "sym": False, "checkpoint_format": version})


def awq(g, rows, columns, group=128):
    """[in, out / 8] words, nibbles in AWQ's order; zeros as they are."""
    import torch

    groups = -(-columns // group)
    codes = torch.randint(0, 16, (columns, rows), generator=g)
    zeros = torch.randint(0, 16, (groups, rows), generator=g)
    scales = some_scales(g, groups, rows).half()
    order = torch.arange(columns) // group
    number = (codes - zeros[order]).float() * scales[order].float()
    parts = {"qweight": words(codes, 8, AWQ_ORDER),
             "qzeros": words(zeros, 8, AWQ_ORDER), "scales": scales}
    return (parts, "weight", number.T.contiguous(),
            {"quant_method": "awq", "bits": 4, "group_size": group,
             "zero_point": True, "version": "gemm"})
