# The CPU part of a LibTorch that may be a CUDA build, without requiring a CUDA toolkit (TorchConfig.cmake does).
# Finds the same installation as find_package(Torch): via Torch_DIR, or via torch.utils.cmake_prefix_path in CMAKE_PREFIX_PATH.
# Result: target TorchCPU::TorchCPU. libtorch_cpu finds the few CUDA libraries that the wheel's build needs by its own rpath.
find_path(TorchCPU_CMAKE_DIR TorchConfig.cmake
  HINTS ${Torch_DIR} ENV Torch_DIR ${CMAKE_PREFIX_PATH} ENV CMAKE_PREFIX_PATH
  PATH_SUFFIXES Torch share/cmake/Torch
  DOC "Folder of LibTorch's TorchConfig.cmake")
if(TorchCPU_CMAKE_DIR)
  get_filename_component(_torch_root "${TorchCPU_CMAKE_DIR}/../../.." ABSOLUTE)
  find_library(TorchCPU_LIBRARY torch_cpu HINTS "${_torch_root}/lib" NO_DEFAULT_PATH)
  find_library(TorchCPU_C10_LIBRARY c10 HINTS "${_torch_root}/lib" NO_DEFAULT_PATH)
  set(TorchCPU_INCLUDE_DIRS "${_torch_root}/include" "${_torch_root}/include/torch/csrc/api/include")
  # In a function, because the file sets PACKAGE_VERSION, which may be a variable of the program.
  function(_apex_cpp_read_torch_version)
    include("${TorchCPU_CMAKE_DIR}/TorchConfigVersion.cmake")
    set(TorchCPU_VERSION "${PACKAGE_VERSION}" PARENT_SCOPE)
  endfunction()
  if(EXISTS "${TorchCPU_CMAKE_DIR}/TorchConfigVersion.cmake")
    _apex_cpp_read_torch_version()
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchCPU
  REQUIRED_VARS TorchCPU_LIBRARY TorchCPU_C10_LIBRARY TorchCPU_INCLUDE_DIRS VERSION_VAR TorchCPU_VERSION
  REASON_FAILURE_MESSAGE "LibTorch was not found: set CMAKE_PREFIX_PATH to Python's torch.utils.cmake_prefix_path")
mark_as_advanced(TorchCPU_CMAKE_DIR TorchCPU_LIBRARY TorchCPU_C10_LIBRARY)

if(TorchCPU_FOUND AND NOT TARGET TorchCPU::TorchCPU)
  add_library(TorchCPU::c10 SHARED IMPORTED)
  set_target_properties(TorchCPU::c10 PROPERTIES IMPORTED_LOCATION "${TorchCPU_C10_LIBRARY}")
  add_library(TorchCPU::TorchCPU SHARED IMPORTED)
  set_target_properties(TorchCPU::TorchCPU PROPERTIES
    IMPORTED_LOCATION "${TorchCPU_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TorchCPU_INCLUDE_DIRS}"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES TorchCPU::c10)
endif()
