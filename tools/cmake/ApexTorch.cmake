# Target apex_torch: LibTorch and OpenMP as the libraries use them. Included by our own build and by the installed package,
# after APEX_CPP_HAS_CUDA is set and Torch (with CUDA) or TorchCPU (without) and OpenMP were found.
if(TARGET apex_torch)
  return()
endif()
add_library(apex_torch INTERFACE IMPORTED GLOBAL)
if(APEX_CPP_HAS_CUDA)
  target_link_libraries(apex_torch INTERFACE ${TORCH_LIBRARIES})
else()
  target_link_libraries(apex_torch INTERFACE TorchCPU::TorchCPU)
endif()
# at::parallel_for is an inline template: without OpenMP in our own files it runs serially, and says nothing. The flag alone
# is taken from FindOpenMP: its target names the compiler's libgomp, but the one beside libtorch is to be loaded.
target_compile_options(apex_torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>")
target_link_options(apex_torch INTERFACE "${OpenMP_CXX_FLAGS}")
