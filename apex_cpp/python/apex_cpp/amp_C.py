"""Apex's extension module amp_C, by the kernels of apex_cpp: its functions, its arguments in its order, CPU and CUDA tensors.

What each does, its dtypes, flags and errors: the headers apex_cpp/amp_C/*.h beside this file. Bad arguments are ValueError or
RuntimeError, raised before anything is changed. The kernels for CUDA tensors have run on an H200 and an H100, from C++.
"""

import pathlib

import torch

import apex_cpp

torch.ops.load_library(pathlib.Path(apex_cpp.library_path) / "libapex_cpp_operators.so")

__all__ = [  # noqa: F822 (set below)
    "multi_tensor_adagrad",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_axpby",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
    "multi_tensor_l2norm_scale",
    "multi_tensor_lamb",
    "multi_tensor_lamb_mp",
    "multi_tensor_lamb_stage1_cuda",
    "multi_tensor_lamb_stage2_cuda",
    "multi_tensor_lars",
    "multi_tensor_novograd",
    "multi_tensor_scale",
    "multi_tensor_sgd",
    "multi_tensor_unscale_l2norm",
    "update_scale_hysteresis",
]

globals().update({name: getattr(torch.ops.apex_cpp, name) for name in __all__})
