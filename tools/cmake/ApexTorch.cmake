# Target apex_torch: LibTorch and OpenMP as the libraries use them. The project's build and the installed package include this file after
# setting APEX_CPP_HAS_CUDA and finding OpenMP and Torch (with CUDA) or TorchCPU (without).
if(TARGET apex_torch)
  return()
endif()
add_library(apex_torch INTERFACE IMPORTED GLOBAL)
if(APEX_CPP_HAS_CUDA)
  target_link_libraries(apex_torch INTERFACE ${TORCH_LIBRARIES})
  # GNU ld looks for the libraries of LibTorch's libraries in the CUDA toolkit's folder first, where an older NCCL may be.
  get_filename_component(_nccl "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/lib" ABSOLUTE)
  if(EXISTS "${_nccl}")
    target_link_options(apex_torch INTERFACE "LINKER:-rpath-link,${_nccl}")
  endif()
else()
  target_link_libraries(apex_torch INTERFACE TorchCPU::TorchCPU)
endif()
# at::parallel_for is an inline template: compiled without OpenMP it silently runs serially. Only the flag is taken from FindOpenMP, because
# its target links the compiler's libgomp, and libtorch's own copy must be loaded.
target_compile_options(apex_torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>")
target_link_options(apex_torch INTERFACE "${OpenMP_CXX_FLAGS}")
