"""Records tensors rounded to FP8 with scales: record.py [--check] FILE

Writes FILE (safetensors), which needs torch 2.11 and torchao 0.18.0. With --check it computes everything anew from the inputs in FILE and
compares; this needs only torch, and compares with torchao too if that is installed. quantize_test.cpp compares the library with FILE.

The rule: a block's scale is the largest power of two with which its largest magnitude is within the format, but at most 2^126; values are
those of torch's cast. What is recorded is made by the rule (`exponent_of`, `cast`), and each case is compared, block by block, with
  torchao            tensorwise scaling with power-of-two scales for `whole`, and rowwise scaling, with each block as one row, for
                     blocks of 128; to_mx with ScaleCalculationMode.RCEIL for blocks of 32; for the recipes `current` and `mx` also
                     its linear layers, emulated
  TransformerEngine  its documented rules, written anew with torch's operators: CurrentScaling and Float8BlockScaling with
                     power-of-two scales, MXFP8BlockScaling
They differ from the rule in these blocks and in no others (`compare` fails if one is missing or comes up):
  torchao, `whole` and 128: magnitudes below 1e-12 count as 1e-12, so scales end at 2^48 (E4M3) and 2^55 (E5M2), and smaller
                     values lose bits
  torchao, 32:       where the scale would be 2^127 or more, for magnitudes of at most 1.75 * 2^-119 (E4M3) and 1.75 * 2^-112
                     (E5M2), it stores 2^127 and multiplies by 1, so all values become 0
  TransformerEngine: there the scale is 2^127. The values are the same, since bfloat16 has no finer steps. (On a GPU its MXFP8
                     multiplies by 1 like torchao; that is not restated.)
  Inf:               torchao makes all values of the block NaN, as the rule does, but its to_mx keeps Inf and makes values up to
                     2^117 zeros. TransformerEngine takes the scale 1 (MXFP8: 2^-127) and saturates; not compared
  NaN:               torchao makes all values of the block NaN. TransformerEngine keeps the NaN alone; not compared
No input has magnitudes of 1.9375 * 2^127 (E4M3) or 1.875 * 2^127 (E5M2) and more: they round to 2^128, which is Inf in bfloat16.

FILE holds
  inputs/NAME                    bfloat16. NAME+factors: the input is rows 100 to 229 and columns 30 to 229 of `square`, times these
  NAME/FORMAT/BLOCKS/exponents   int8: the scales are 2 to these, [matrices, blocks of rows, blocks of columns] or [1]; -128: NaN
  NAME/FORMAT/BLOCKS/bytes       uint8: the FP8 values, 0x7f for NaN; up to 1024 elements
  NAME/FORMAT/BLOCKS/sums        int32, of larger inputs: for each row the sum of byte * (1 + column)
  linear/RECIPE/y, dx, dw        float64: for each row the sum of value * (1 + column), exact. y = x w^T, dx = g w and dw = g^T x are
                                 products of rounded operands, with blocks along the dimension that the product sums over
                                 (`RECIPES`). x, w and g are rows 0 to 63, 64 to 191 and 192 to 223 of `square`, g as [64, 128]
  linear/RECIPE/decibels         float64: the signal-to-noise ratios of y, dx and dw against products of the unrounded operands"""
import argparse
import json
import math
import pathlib
import sys

import torch
from torch.nn.functional import pad

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
BLOCKS = {"whole": (0, 0), "1x128": (1, 128), "128x1": (128, 1), "128x128": (128, 128), "1x32": (1, 32), "32x1": (32, 1)}
RECIPES = {
    "current": {"formats": ("e4m3", "e5m2"), "along_rows": "whole", "along_columns": "whole", "weight": "whole"},
    "block128": {"formats": ("e4m3", "e4m3"), "along_rows": "1x128", "along_columns": "128x1", "weight": "128x128"},
    "mx": {"formats": ("e4m3", "e4m3"), "along_rows": "1x32", "along_columns": "32x1", "weight": None},
}
LARGEST_EXPONENT, NAN_EXPONENT, NAN_BYTE = 126, -128, 0x7F
LARGEST_WITH_BYTES = 1024
FACTORS = "+factors"
STORED = {torch.float64: "F64", torch.int32: "I32", torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8"}


def largest_of(name):
    return torch.finfo(FORMATS[name]).max


# Inputs


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(seed, least, *shape):
    """Magnitudes from 2^least to 1, all equally likely on a logarithmic scale."""
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.exp2(least * uniform) * normal(seed + 1, *shape).sign()


def with_largest(seed, value, *shape):
    """Smaller values, and -value in the middle."""
    x = (spread(seed, -12, *shape) * value / 2).bfloat16().flatten()
    x[x.numel() // 2] = -value
    return x.view(shape)


def neighbour(x, bits):
    """The bfloat16 values so many steps further from 0."""
    return (x.bfloat16().view(torch.int16) + bits).view(torch.bfloat16)


def ties(name):
    """Values half-way between FP8 neighbours, and their own neighbours; each block holds the format's largest, so its scale is 1."""
    values = torch.arange(128, dtype=torch.uint8).view(FORMATS[name]).double()
    values = values[values.isfinite()]
    middles = ((values[1:] + values[:-1]) / 2).bfloat16()
    found = torch.cat([middles, neighbour(middles, 1), neighbour(middles, -1)])
    found = torch.cat([found, -found])
    x = torch.full((32, 32), largest_of(name), dtype=torch.bfloat16)
    others = (torch.arange(32)[:, None] + torch.arange(32)) % 32 != 0
    x[others] = found[torch.arange(int(others.sum())) % len(found)]
    return x


def rows_of(largest):
    return torch.cat([with_largest(seed, value, 1, 32) for seed, value in enumerate(largest)])


def edges():
    """Rows whose largest magnitudes are powers of two, 1.75 times these, or neighbours of these."""
    mantissas = [1.0, 1.75 - 2**-7, 1.75, 1.75 + 2**-7, 2 - 2**-7]
    return rows_of([mantissa * 2.0**exponent for mantissa in mantissas for exponent in (-100, -20, 0, 1, 60, 126)])


def least():
    """Rows with the smallest magnitudes of bfloat16, where scales end."""
    powers = [2.0**exponent for exponent in range(-133, -110, 3)]
    limits = [1.75 * 2.0**exponent for exponent in range(-131, -110)]
    above = [(1.75 + 2**-7) * 2.0**exponent for exponent in (-119, -112)]
    return rows_of(powers + limits + above)


def square():
    """Operands of a linear layer, x, w and g, and 32 rows of wide spread. Rows and columns of an operand have unequal magnitudes, and
    those of the other operand the inverse, so that every part of a product counts, and other blocks give other errors."""
    of_m, of_n, of_k = (torch.exp2(torch.arange(size) // 32 + torch.arange(size) % 2 * 8.0) for size in (64, 128, 256))
    x = normal(1, 64, 256) * of_m[:, None] / of_k
    w = normal(2, 128, 256) * of_n[:, None] * of_k / 2**12
    g = normal(3, 64, 128) / of_m[:, None] / of_n
    return torch.cat([x, w, g.view(32, 256), spread(4, -30, 32, 256)])


def zeros():
    x = normal(5, 5, 40)
    x[1], x[3], x[:, 7], x[:, 11] = 0.0, -0.0, 0.0, -0.0
    return x


def nonfinite():
    x = normal(6, 6, 160)
    x[0, 3], x[2, 130], x[4, 70], x[4, 71] = math.inf, -math.inf, math.nan, math.inf
    return x


def make_inputs():
    made = {
        "square": square(),
        "rows" + FACTORS: torch.exp2(torch.arange(130.0) * 7 % 41 - 20)[:, None],
        "tiny": normal(10, 5, 40) * 1e-6,
        "unit": normal(11, 5, 40),
        "large": normal(12, 5, 40) * 1e4,
        "huge": normal(13, 5, 40) * 2.0**100,
        "spread": spread(14, -40, 32, 32) * 2.0**20,
        "batched": normal(15, 3, 17, 64) * torch.exp2(torch.arange(3.0) * 9)[:, None, None],
        "zeros": zeros(),
        "all_zeros": torch.zeros(5, 40),
        "ties_e4m3": ties("e4m3"),
        "ties_e5m2": ties("e5m2"),
        "below": with_largest(16, 1.75 - 2**-7, 5, 40),
        "exact": with_largest(17, 1.75, 5, 40),
        "above": with_largest(18, 1.75 + 2**-7, 5, 40),
        "edges": edges(),
        "subnormal": normal(19, 5, 40) * 2.0**-130,
        "least": least(),
        "nonfinite": nonfinite(),
    }
    return {name: x.bfloat16() for name, x in made.items()}


def values_of(inputs, name):
    if name.endswith(FACTORS):
        return inputs["square"][100:230, 30:230] * inputs[name]
    return inputs[name]


# The rule


def as_rows(x, blocks):
    """Each block as a row, filled up with zeros."""
    rows, columns = blocks
    if rows == 0:
        return x.reshape(1, -1)
    matrices = x.reshape(-1, *x.shape[-2:])
    filled = pad(matrices, (0, -x.shape[-1] % columns, 0, -x.shape[-2] % rows))
    parts = filled.view(len(filled), filled.shape[1] // rows, rows, filled.shape[2] // columns, columns)
    return parts.permute(0, 1, 3, 2, 4).reshape(-1, rows * columns)


def from_rows(found, shape, blocks):
    """The inverse of as_rows."""
    rows, columns = blocks
    if rows == 0:
        return found.reshape(shape)
    grid = (math.prod(shape[:-2]), *grid_of(shape, blocks))
    parts = found.view(*grid, rows, columns).permute(0, 1, 3, 2, 4)
    return parts.reshape(grid[0], grid[1] * rows, grid[2] * columns)[:, :shape[-2], :shape[-1]].reshape(shape)


def grid_of(shape, blocks):
    return [-(-size // block) for size, block in zip(shape[-2:], blocks)]


def exponent_of(magnitude, largest, limit=LARGEST_EXPONENT):
    """The largest e with magnitude * 2^e <= largest, at most the limit."""
    if magnitude == 0:
        return 0
    if not math.isfinite(magnitude):
        return NAN_EXPONENT
    (part, exponent), (largest_part, largest_exponent) = math.frexp(magnitude), math.frexp(largest)
    return min(largest_exponent - exponent - (part > largest_part), limit)


def cast(rows, scales, name):
    largest = largest_of(name)
    return (rows.double() * scales.double()[:, None]).clamp(-largest, largest).to(FORMATS[name])


def magnitudes_of(rows):
    return rows.abs().amax(1).float()


def rounded_rows(rows, name):
    """The exponents of the scales, and FP8 values."""
    exponents = torch.tensor([exponent_of(magnitude, largest_of(name)) for magnitude in magnitudes_of(rows).tolist()])
    scales = torch.where(exponents == NAN_EXPONENT, math.nan, torch.exp2(exponents.double()))
    return exponents, cast(rows, scales, name)


def rounded(x, name, blocks):
    """The values that FP8 stands for, in float64."""
    exponents, found = rounded_rows(as_rows(x, BLOCKS[blocks]), name)
    return from_rows(found.double() * torch.exp2(-exponents.double())[:, None], x.shape, BLOCKS[blocks])


# Other libraries


def of_torchao(rows, name, blocks):
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_training_tensor import LinearMMConfig, hp_tensor_and_scale_to_float8
    from torchao.float8.float8_utils import tensor_to_scale
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import get_fp_scale, to_mx

    if "32" in blocks:
        scales, found = to_mx(rows.contiguous(), FORMATS[name], 32, ScaleCalculationMode.RCEIL)
        return 1 / get_fp_scale(scales).double().flatten(), found
    if blocks == "whole":
        scales = tensor_to_scale(rows, FORMATS[name], round_scales_to_power_of_2=True)
    else:
        by_row = {"scaling_granularity": ScalingGranularity.AXISWISE, "axiswise_dim": -1}
        scales = tensor_to_scale(rows, FORMATS[name], round_scales_to_power_of_2=True, **by_row)
    found = hp_tensor_and_scale_to_float8(rows, scales, FORMATS[name], LinearMMConfig())
    return scales.double().flatten(), found._data


def of_transformer_engine(rows, name, blocks):
    largest, magnitudes = largest_of(name), magnitudes_of(rows)
    if "32" in blocks:
        # The exponent of the inverse scale, rounded up, as E8M0.
        bits = (magnitudes * torch.tensor(1 / largest, dtype=torch.float32)).view(torch.int32)
        exponents, mantissas = bits >> 23, bits & 0x7FFFFF
        up = (mantissas > 0) & ~((exponents == 0) & (mantissas <= 0x400000))
        scales = torch.exp2(127.0 - (exponents + up.int()).double())
    else:
        scales = torch.full_like(magnitudes, largest).div(magnitudes).clamp(max=torch.finfo(torch.float32).max)
        scales = (scales.view(torch.int32) & 0x7F800000).view(torch.float32).double()
        scales = torch.where(magnitudes == 0, 1.0, scales)
    return scales, cast(rows, scales, name)


def same(a, b):
    return (a == b) | (a.isnan() & b.isnan())


def affected(peer, name, blocks, magnitudes):
    """The blocks that differ, by the list above."""
    unlimited = torch.tensor([exponent_of(magnitude, largest_of(name), 1000) for magnitude in magnitudes.tolist()])
    if peer == "torchao" and "32" not in blocks:
        return unlimited > exponent_of(1e-12, largest_of(name))
    return unlimited > LARGEST_EXPONENT


def compare(case, rows, name, blocks, peers):
    """Compares scales and values with other libraries': returns the numbers of compared and of different blocks for each."""
    exponents, found = rounded_rows(rows, name)
    our_scales = torch.exp2(exponents.double())
    magnitudes, counts = magnitudes_of(rows), {}
    for peer, function in peers.items():
        scales, theirs = function(rows, name, blocks)
        expected = affected(peer, name, blocks, magnitudes)
        other_scales = (scales != our_scales) & magnitudes.isfinite() & (magnitudes > 0)
        other_values = ~same(found.double() / our_scales[:, None], theirs.double() / scales[:, None]).all(1)
        if peer == "torchao":
            excused = expected | (magnitudes.isinf() if "32" in blocks else False)
        else:
            excused = ~magnitudes.isfinite()
        if not torch.equal(other_scales, expected) or (other_values & ~excused).any():
            sys.exit(f"{case}: {peer} differs in other blocks than expected")
        counts[peer] = (len(rows), int(expected.sum()))
    return counts


# What is recorded


def combinations(name, x):
    """The formats and blocks of an input."""
    is_one_block = x.dim() == 2 and max(x.shape) <= 128  # of 128 x 128
    for form in FORMATS:
        if name.startswith("ties_") and form not in name:
            continue
        for blocks in BLOCKS:
            if is_one_block and blocks == "128x128":
                continue
            if form == "e5m2" and not name.startswith("ties_") and blocks in ("1x128", "128x128", "32x1"):
                continue
            yield form, blocks


def weighted_sums(rows):
    return (rows * (1 + torch.arange(rows.shape[-1]))).sum(-1)


def record_case(x, name, blocks, case, peers, totals):
    rows = as_rows(x, BLOCKS[blocks])
    exponents, found = rounded_rows(rows, name)
    for peer, (compared, different) in compare(case, rows, name, blocks, peers).items():
        kind = "blocks of 32" if "32" in blocks else "blocks of 128 and whole tensors"
        total = totals.setdefault(f"{peer}, {kind}", [0, 0])
        total[0] += compared
        total[1] += different
    codes = torch.where(found.double().isnan(), NAN_BYTE, found.view(torch.uint8))
    codes = from_rows(codes, x.shape, BLOCKS[blocks])
    grid = [1] if blocks == "whole" else [math.prod(x.shape[:-2]), *grid_of(x.shape, BLOCKS[blocks])]
    result = {f"{case}/exponents": exponents.to(torch.int8).view(grid)}
    if x.numel() <= LARGEST_WITH_BYTES:
        result[f"{case}/bytes"] = codes
    else:
        result[f"{case}/sums"] = weighted_sums(codes.reshape(-1, x.shape[-1]).long()).int()
    return result


def linear_of_torchao(x, w, g, recipe):
    """y, dx and dw of torchao's layers, which emulate FP8 in bfloat16 on a CPU; None where they need a GPU."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    if recipe == "block128":
        return None
    x, weight = x.clone().requires_grad_(), torch.nn.Parameter(w.clone())
    if recipe == "current":
        layer = torch.nn.Sequential(torch.nn.Linear(w.shape[1], w.shape[0], bias=False, dtype=w.dtype))
        layer[0].weight = weight
        convert_to_float8_training(layer, config=Float8LinearConfig(emulate=True, round_scales_to_power_of_2=True))
        y, weight = layer(x), layer[0].weight
    else:
        y = _to_mxfp8_then_scaled_mm(x, weight, KernelPreference.EMULATED, ScaleCalculationMode.RCEIL)
    y.backward(g)
    return {"y": y, "dx": x.grad, "dw": weight.grad}


def product(a, b):
    """Exact in float64 in any order, or an error."""
    result, backwards = a @ b, a.flip(1) @ b.flip(0)
    assert torch.equal(result, backwards)
    return result


def record_linear(x, w, g, recipe, peers):
    row, column, weight = (RECIPES[recipe][key] for key in ("along_rows", "along_columns", "weight"))
    forward, backward = RECIPES[recipe]["formats"]
    products = {
        "y": product(rounded(x, forward, row), rounded(w, forward, weight or row).T),
        "dx": product(rounded(g, backward, row), rounded(w, forward, weight or column)),
        "dw": product(rounded(g, backward, column).T, rounded(x, forward, column)),
    }
    theirs = linear_of_torchao(x, w, g, recipe) if "torchao" in peers else None
    for key in theirs or ():  # equal but for sums in float32, which may round another way to bfloat16
        if (products[key].bfloat16() != theirs[key]).double().mean() > 0.001:
            sys.exit(f"linear/{recipe}/{key}: torchao's differs")
    x, w, g = x.double(), w.double(), g.double()
    exact = {"y": x @ w.T, "dx": g @ w, "dw": g.T @ x}
    decibels = [20 * torch.log10(exact[key].norm() / (exact[key] - found).norm()) for key, found in products.items()]
    result = {f"linear/{recipe}/{key}": weighted_sums(found) for key, found in products.items()}
    return {**result, f"linear/{recipe}/decibels": torch.stack(decibels)}


def record(inputs, peers):
    result = {f"inputs/{name}": x for name, x in inputs.items()}
    totals = {}
    for name in inputs:
        x = values_of(inputs, name)
        for form, blocks in combinations(name, x):
            result |= record_case(x, form, blocks, f"{name.removesuffix(FACTORS)}/{form}/{blocks}", peers, totals)
    x, w, g = inputs["square"][:64], inputs["square"][64:192], inputs["square"][192:224].view(64, 128)
    for recipe in RECIPES:
        result |= record_linear(x, w, g, recipe, peers)
    for kind, (compared, different) in totals.items():
        print(f"{kind}: {compared} blocks compared, {different} differ as expected")
    return result


# Files


def bytes_of(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def write(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        begin, data = len(data), data + bytes_of(tensor)
        header[name] = {"dtype": STORED[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def read(path):
    stored = path.read_bytes()
    begin = 8 + int.from_bytes(stored[:8], "little")
    header = json.loads(stored[8:begin])
    dtypes = {name: dtype for dtype, name in STORED.items()}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, end = (begin + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(stored[first:end]), dtype=dtypes[entry["dtype"]]).view(entry["shape"])
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    peers = {"torchao": of_torchao, "TransformerEngine": of_transformer_engine}
    try:
        import torchao
    except ImportError:
        if not arguments.check:
            raise
        del peers["torchao"]
    if not arguments.check:
        versions = {"torch": torch.__version__.split("+")[0], "torchao": torchao.__version__, "rules": "TransformerEngine's, restated"}
        write(arguments.file, record(make_inputs(), peers), versions)
        return
    recorded = read(arguments.file)
    fresh = record({name.removeprefix("inputs/"): x for name, x in recorded.items() if name.startswith("inputs/")}, peers)
    names = {**fresh, **recorded}
    different = [name for name in names if name not in fresh or name not in recorded or bytes_of(fresh[name]) != bytes_of(recorded[name])]
    print(f"{len(fresh)} tensors with torch {torch.__version__}, compared with {' and '.join(peers)}, different: {different or 'none'}")
    sys.exit(bool(different) or not fresh)


main()
