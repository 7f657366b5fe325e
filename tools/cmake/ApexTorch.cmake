# Target apex_torch: LibTorch and OpenMP as the libraries use them. The project's build and the installed package include this file after
# setting APEX_CPP_HAS_CUDA and finding OpenMP and Torch (with CUDA) or TorchCPU (without).
if(TARGET apex_torch)
  return()
endif()
add_library(apex_torch INTERFACE IMPORTED GLOBAL)
if(APEX_CPP_HAS_CUDA)
  target_link_libraries(apex_torch INTERFACE ${TORCH_LIBRARIES})
  set(_apex_torch "${Torch_VERSION}")
  # GNU ld looks for the libraries of LibTorch's libraries in the CUDA toolkit's folder first, where an older NCCL may be.
  get_filename_component(_nccl "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/lib" ABSOLUTE)
  if(EXISTS "${_nccl}")
    target_link_options(apex_torch INTERFACE "LINKER:-rpath-link,${_nccl}")
  endif()
else()
  target_link_libraries(apex_torch INTERFACE TorchCPU::TorchCPU)
  set(_apex_torch "${TorchCPU_VERSION}")
endif()
# Headers of LibTorch 2.14 need C++20, though its TorchConfig.cmake says C++17.
set(APEX_CPP_CXX_STANDARD 17)
if(NOT _apex_torch VERSION_LESS 2.14)
  set(APEX_CPP_CXX_STANDARD 20)
endif()
target_compile_features(apex_torch INTERFACE cxx_std_${APEX_CPP_CXX_STANDARD})
# at::parallel_for is an inline template: compiled without OpenMP it silently runs serially. Only the flag is taken from FindOpenMP, because
# its target links the compiler's libgomp, and libtorch's own copy must be loaded.
target_compile_options(apex_torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>")
target_link_options(apex_torch INTERFACE "${OpenMP_CXX_FLAGS}")
# g++ compiles LibTorch's binaries. From version 18 on, Clang gives some templates other names, among them Tensor::const_data_ptr<float>
# (https://github.com/pytorch/pytorch/issues/169926). Programs that call one then link only with Clang's older names.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  include(CheckCXXSourceCompiles)
  include(CMakePushCheckState)
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_LIBRARIES apex_torch)
  check_cxx_source_compiles("#include <ATen/core/Tensor.h>
    int main() { return at::Tensor().const_data_ptr<float>() != nullptr; }" APEX_CPP_TORCH_HAS_NAMES_OF_CLANG_18)
  cmake_pop_check_state()
  if(NOT APEX_CPP_TORCH_HAS_NAMES_OF_CLANG_18)
    target_compile_options(apex_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fclang-abi-compat=17>)
  endif()
endif()
