"""apex_cpp as Python installs it: a C++ library for LibTorch, and Apex's amp_C on its kernels.

    cmake -DCMAKE_PREFIX_PATH="$(python -c 'import apex_cpp; print(apex_cpp.cmake_prefix_path)')" ...

`cmake_prefix_path`: the folder of this library's CMake package and that of the torch beside it, separated by a semicolon.
`pkg_config_path`: the folder of apex_cpp.pc. `library_path`: that of the libraries.
`apex_cpp.amp_C`: the functions of Apex's extension module, for CPU and CUDA tensors; `import amp_C` is the same.
`apex_cpp.training_state`: weights, optimizer state and loss scale for C++ programs, and from them.
`apex_cpp.without_gpu()`: Apex's Python code on a machine without a GPU.

Importing it does not import torch.
"""

import importlib
import importlib.metadata
import importlib.util
import pathlib

__version__ = importlib.metadata.version("apex-cpp")


def _minor(version):
    return ".".join(version.split(".")[:2])


def _installed_torch():
    """The version of the torch that this interpreter would import."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _folder():
    """The folder that was built for the torch that is installed: a library runs with the minor version that it was built with."""
    here = pathlib.Path(__file__).parent
    built_for = sorted(path.name.removeprefix("torch-") for path in here.glob("torch-*"))
    torch = _installed_torch()
    if torch is not None and _minor(torch) in built_for:
        return here / f"torch-{_minor(torch)}"
    found = "no torch is installed" if torch is None else f"torch {torch} is installed"
    raise ImportError(
        f"apex-cpp {__version__} was built for torch {', '.join(built_for)}, and {found}: pip install 'torch=={built_for[-1]}.*', "
        "or take an apex-cpp built for the torch that is there"
    )


_root = _folder()
_torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent

library_path = str(_root / "lib")
pkg_config_path = str(_root / "lib" / "pkgconfig")
cmake_prefix_path = f"{_root};{_torch / 'share' / 'cmake'}"


def without_gpu():
    """On a machine without a GPU: a context in which what asks for a CUDA device gets the CPU. See apex_cpp.no_gpu."""
    from apex_cpp import no_gpu

    return no_gpu.without_gpu()


def __getattr__(name):
    """The submodules, which import torch: when a program first asks for one."""
    if name in ("amp_C", "no_gpu", "training_state"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
