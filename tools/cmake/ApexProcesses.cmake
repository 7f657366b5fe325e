# What the two files that include c10d's backends need beyond LibTorch.

# LibTorch's wheel has no Gloo headers. Each Gloo header that ProcessGroupGloo.hpp includes is replaced by gloo_declarations.h,
# unless LibTorch has its own.
find_path(APEX_CPP_GLOO_INCLUDE_DIR gloo/context.h HINTS ${TORCH_INCLUDE_DIRS} ${TorchCPU_INCLUDE_DIRS} NO_DEFAULT_PATH)
if(NOT APEX_CPP_GLOO_INCLUDE_DIR)
  set(stand_ins "${CMAKE_CURRENT_BINARY_DIR}/gloo_headers")
  foreach(header algorithm common/error context rendezvous/store transport/device)
    file(CONFIGURE OUTPUT "${stand_ins}/gloo/${header}.h"
      CONTENT "#include <apex_cpp/torch_compat/gloo_declarations.h>\n")
  endforeach()
  set_source_files_properties(parallel/processes/gloo.cpp PROPERTIES INCLUDE_DIRECTORIES "${stand_ins}")
endif()
set_source_files_properties(parallel/processes/gloo.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)  # only this file sees these headers

# The version must be that of libtorch_cuda: the wheel's nvidia-nccl package is beside torch; a CUDA toolkit may also have it.
if(APEX_CPP_HAS_CUDA)
  find_path(APEX_CPP_NCCL_INCLUDE_DIR nccl.h
    HINTS "${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include" ${CUDAToolkit_INCLUDE_DIRS} ${CUDA_INCLUDE_DIRS})
  if(APEX_CPP_NCCL_INCLUDE_DIR)
    set_source_files_properties(parallel/processes/nccl.cpp PROPERTIES
      INCLUDE_DIRECTORIES "${APEX_CPP_NCCL_INCLUDE_DIR}" COMPILE_DEFINITIONS APEX_CPP_HAS_NCCL
      SKIP_UNITY_BUILD_INCLUSION ON)
  else()
    message(STATUS "apex_cpp: no nccl.h: processes talk through Gloo alone")
  endif()
endif()
