# Decides APEX_CPP_HAS_CUDA from APEX_CPP_CUDA and what the machine has, and switches the CUDA language on.
set(APEX_CPP_HAS_CUDA OFF)
if(NOT APEX_CPP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "APEX_CPP_CUDA is '${APEX_CPP_CUDA}': use AUTO, ON or OFF")
endif()
if(APEX_CPP_CUDA STREQUAL "OFF")
  return()
endif()

find_program(APEX_CPP_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT CMAKE_CUDA_COMPILER AND APEX_CPP_NVCC)
  set(CMAKE_CUDA_COMPILER "${APEX_CPP_NVCC}")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(APEX_CPP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "APEX_CPP_CUDA=ON, but no nvcc was found: put it on PATH, set CUDA_HOME or CMAKE_CUDA_COMPILER, "
                        "or choose APEX_CPP_CUDA=OFF, which needs no CUDA toolkit")
  endif()
  return()
endif()

# Must be set before torch is looked for: without it and without a GPU, torch asks nvcc for architectures that nvcc 13 no
# longer knows. CMake's own choice of architecture is off: torch makes the flags.
if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  if(DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST "$ENV{TORCH_CUDA_ARCH_LIST}")
  else()
    set(TORCH_CUDA_ARCH_LIST "9.0")
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
set(APEX_CPP_HAS_CUDA ON)
