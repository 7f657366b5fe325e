"""Compares the library with Python's safetensors package: each reads exactly what the other wrote, and of thousands of
damaged files the library accepts none that the package refuses.

usage: safetensors_package_test.py PROGRAM FOLDER    (PROGRAM: safetensors_files)
"""

import pathlib
import random
import subprocess
import sys

import safetensors
import safetensors.torch
import torch

PROGRAM, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
DTYPES = dict(safetensors.torch._TYPES)
DTYPES.update(F4=torch.float4_e2m1fn_x2, F8_E8M0=torch.float8_e8m0fnu)
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def data_of(tensor):
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def description(tensors, metadata):
    """What safetensors_files prints for the same content."""
    lines = ["metadata x%s x%s" % (key.encode().hex(), value.encode().hex()) for key, value in metadata.items()]
    for name, tensor in tensors.items():
        shape = "".join("%d," % size for size in tensor.shape)
        lines.append("tensor x%s %s [%s] x%s" % (name.encode().hex(), NAMES[tensor.dtype], shape, data_of(tensor).hex()))
    return "".join(line + "\n" for line in sorted(lines)) + "\n"


def read_by_package(path):
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
        metadata = {key: value for key, value in (file.metadata() or {}).items() if not key.startswith("apex_cpp.")}
    return description(tensors, metadata)


def check_equal(what, library_text, package_text):
    if library_text != package_text:
        sys.exit("%s differs.\nthe library's:\n%s\nthe package's:\n%s" % (what, library_text, package_text))


def values(dtype, count, seed):
    size = torch.empty(1, dtype=dtype).element_size()
    generator = random.Random(seed)
    numbers = [generator.randrange(2 if dtype == torch.bool else 256) for _ in range(size * count)]
    return torch.tensor(numbers, dtype=torch.uint8).view(dtype)


def sample():
    tensors = {}
    for seed, (name, dtype) in enumerate(DTYPES.items()):
        tensors["%s scalar" % name] = values(dtype, 1, seed).reshape(() if name != "F4" else (1,))
        tensors["%s.vector" % name] = values(dtype, 7, seed)
        tensors["\u20ac/%s\n\"matrix\"" % name] = values(dtype, 6, seed).reshape(2, 3)
        tensors["%s empty" % name] = torch.empty(3, 0, 2, dtype=dtype)
    return tensors


def package_reads_library_files():
    path = FOLDER / "library.safetensors"
    written = run("write", path)
    check_equal("the library's file, read by the package,", written, read_by_package(path))
    loaded = safetensors.torch.load_file(path)
    check_equal("the library's file, loaded whole,", run("describe", path).count("tensor "), len(loaded))
    return len(loaded)


def library_reads_package_files():
    count = 0
    for metadata in None, {}, {"format": "pt", "\u00e4": "line\nbreak"}:
        path = FOLDER / "package.safetensors"
        safetensors.torch.save_file(sample(), path, metadata=metadata)
        check_equal("the package's file", run("describe", path), description(sample(), metadata or {}))
        count += len(sample())
    return count


class Net(torch.nn.Module):
    """The model of safetensors_files."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.bn = torch.nn.BatchNorm1d(3)
        self.embedding = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5)
        self.head.weight = self.embedding.weight


def models_are_exchanged():
    """MODEL-08: what a model at O2 saves is FP32, and fits the same model in Python; tied weights go both ways."""
    path = FOLDER / "model.safetensors"
    written = run("write-model", path)
    net = Net()
    net.load_state_dict(safetensors.torch.load_file(path), strict=True)
    check_equal("the model's state_dict", written, description(net.state_dict(), {"format": "pt"}))
    run("write-model-once", path)
    strict = Net()
    safetensors.torch.load_model(strict, path, strict=True)
    check_equal("the model, loaded by load_model,", written, description(strict.state_dict(), {"format": "pt"}))
    # save_model writes one name of a tied weight. What comes back went through 16 bits; batch norm stays in 32.
    for parameter in net.parameters():
        torch.nn.init.uniform_(parameter)
    safetensors.torch.save_model(net, path)
    if len(safetensors.torch.load_file(path)) >= len(net.state_dict()):
        sys.exit("save_model wrote the tied weight twice: the test has lost its point")
    expected = {name: tensor if name.startswith("bn.") else tensor.half().float() for name, tensor in net.state_dict().items()}
    check_equal("the package's model", run("load-model", path), description(expected, {"format": "pt"}))
    return len(expected)


def small_files():
    """Headers and data of files that are right, to damage."""
    files = []
    for tensors, metadata in [({"a": values(torch.float32, 2, 1), "b": values(torch.uint8, 3, 2)}, {"k": "v"}),
                              ({"x": torch.zeros(0, 2), "y": values(torch.int64, 1, 3).reshape(())}, None)]:
        blob = safetensors.torch.save(tensors, metadata)
        length = int.from_bytes(blob[:8], "little")
        files.append((blob[8:8 + length], blob[8 + length:]))
    return files


def damaged(generator, header, data):
    for _ in range(generator.choice((1, 1, 2, 3))):
        at = generator.randrange(len(header))
        kind = generator.randrange(5)
        if kind == 0:
            header = header[:at] + bytes([generator.choice(b'0123456789{}[]",: \x00\xff')]) + header[at + 1:]
        elif kind == 1:
            header = header[:at] + header[at + generator.randrange(1, 9):]
        elif kind == 2:
            other = generator.randrange(len(header))
            header = header[:at] + header[other:other + generator.randrange(1, 60)] + header[at:]
        elif kind == 3:
            data = data[:generator.randrange(len(data) + 1)]
        else:
            data += bytes(generator.randrange(1, 5))
    length = len(header) + generator.choice((0, 0, 0, 0, -1, 1, 8, 1 << 40))
    return length.to_bytes(8, "little") + header + data


def damaged_files_agree(count):
    generator = random.Random(20)
    paths = []
    for i in range(count):
        paths.append(FOLDER / ("damaged%d" % i))
        paths[-1].write_bytes(damaged(generator, *generator.choice(small_files())))
    descriptions = run("describe", *paths).split("\n\n")[:-1]
    accepted = 0
    for path, library_text in zip(paths, descriptions, strict=True):
        if not library_text.startswith("error"):
            accepted += 1
            check_equal("the damaged file %s" % path.name, library_text.strip("\n") + "\n\n", read_by_package(path).strip("\n") + "\n\n")
        path.unlink()
    if not 0 < accepted < count / 2:
        sys.exit("%d of %d damaged files were accepted: the test has lost its point" % (accepted, count))
    return accepted


def main():
    print("%d tensors written by the library and read by the package" % package_reads_library_files())
    print("%d tensors written by the package and read by the library" % library_reads_package_files())
    print("a model's %d tensors exchanged" % models_are_exchanged())
    print("3000 damaged files; the package reads the same from the %d that the library accepts" % damaged_files_agree(3000))


main()
