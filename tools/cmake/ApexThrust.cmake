# Finds Thrust's headers: beside torch, where tools/setup installs the nvidia-cuda-cccl package, or in a CUDA toolkit. Thrust is compiled
# into the library; users of the library do not need it.
if(APEX_CPP_HAS_CUDA)
  set(torch_folder "${TORCH_INSTALL_PREFIX}")
else()
  get_filename_component(torch_folder "${TorchCPU_CMAKE_DIR}/../../.." ABSOLUTE)
endif()
find_path(APEX_CPP_THRUST_INCLUDE_DIR thrust/system/omp/execution_policy.h
  HINTS "${torch_folder}/../nvidia/cu13" ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include/cccl include
  DOC "Folder of thrust/")
if(NOT APEX_CPP_THRUST_INCLUDE_DIR)
  message(FATAL_ERROR "Thrust's headers were not found: run tools/setup, install NVIDIA's Python package nvidia-cuda-cccl beside "
                      "torch, or a CUDA toolkit, or set APEX_CPP_THRUST_INCLUDE_DIR to the folder of thrust/")
endif()
mark_as_advanced(APEX_CPP_THRUST_INCLUDE_DIR)
