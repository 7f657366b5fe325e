"""The name of Apex's extension module, under which Apex's Python code imports it: apex_cpp.amp_C.

Where NVIDIA's own extension is installed as well, that one answers, and a warning says so: it has what was there before. With
APEX_CPP_AMP_C=1 in the environment it is apex_cpp's all the same.
"""

import importlib.machinery
import importlib.util
import os
import sys
import warnings


def _nvidias():
    """The extension module amp_C that this package, found first, hides."""
    for folder in sys.path:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder or os.curdir, "amp_C" + suffix)
            if os.path.exists(path):
                return path
    return None


_extension = _nvidias()
if _extension is None or os.environ.get("APEX_CPP_AMP_C") == "1":
    from apex_cpp.amp_C import *  # noqa: F401, F403
else:
    warnings.warn(
        f"amp_C: NVIDIA Apex's own extension {_extension} is installed beside apex-cpp, and is used. For apex-cpp's, which takes CPU "
        "tensors as well, write `from apex_cpp import amp_C`, or set APEX_CPP_AMP_C=1",
        stacklevel=2,
    )
    _spec = importlib.util.spec_from_file_location("amp_C", _extension)
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["amp_C"] = _module
    _spec.loader.exec_module(_module)
