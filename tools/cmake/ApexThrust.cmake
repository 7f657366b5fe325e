# Finds Thrust's headers: beside torch, where tools/setup installs the nvidia-cuda-cccl package, or in a CUDA toolkit. Thrust is compiled
# into the library; users of the library do not need it. Older Thrusts, such as Debian's libthrust-dev, lack the file that is looked for. It
# is not looked for in /usr/include: as -isystem that folder would hide stdlib.h from the standard library.
find_path(APEX_CPP_THRUST_INCLUDE_DIR cuda/std/__cccl/version.h
  HINTS "${torch_folder}/../nvidia/cu13" ENV CUDA_HOME ENV CUDA_PATH
  PATHS /usr/local/cuda
  PATH_SUFFIXES include/cccl include
  NO_CMAKE_SYSTEM_PATH
  DOC "Folder of thrust/")
if(NOT APEX_CPP_THRUST_INCLUDE_DIR)
  # The same headers for every processor.
  string(CONCAT url "https://files.pythonhosted.org/packages/ab/fb/0384bb2129bed6b1b39f8e44471c615ab5ab29b7e55817538a1d390d8f84/"
    "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
  apex_fetch(Thrust "run tools/setup, install NVIDIA's Python package nvidia-cuda-cccl beside torch, or a CUDA toolkit" "${url}"
    e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649 DOWNLOAD_NAME cccl.zip)
  set(APEX_CPP_THRUST_INCLUDE_DIR "${Thrust_folder}/nvidia/cu13/include/cccl")
endif()
mark_as_advanced(APEX_CPP_THRUST_INCLUDE_DIR)
