# The architectures chosen for CUDA code on machines with given GPUs and a given nvcc; scripts stand in for nvidia-smi and nvcc. Run by
# ctest.
cmake_minimum_required(VERSION 3.25)
include("${SOURCE_DIR}/tools/cmake/ApexCudaArchitectures.cmake")

set(bin "${WORK_DIR}/bin")
file(REMOVE_RECURSE "${bin}")
set(ENV{PATH} "${bin}:/usr/bin:/bin")

function(write_program name)
  list(JOIN ARGN "\n" text)
  file(WRITE "${bin}/${name}" "#!/bin/sh\n${text}\n")
  file(CHMOD "${bin}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

# A nvidia-smi that answers exactly this query.
function(gpus)
  set(lines "[ \"$*\" = '--query-gpu=compute_cap --format=csv,noheader' ] || exit 2")
  foreach(gpu IN LISTS ARGN)
    list(APPEND lines "echo '${gpu}'")
  endforeach()
  write_program(nvidia-smi ${lines})
endfunction()

function(expect without_gpu expected)
  apex_default_architectures(chosen "${bin}/nvcc" "${without_gpu}")
  if(NOT chosen STREQUAL expected)
    message(SEND_ERROR "expected '${expected}', got '${chosen}'")
  endif()
endfunction()

set(all "7.5;8.0;9.0;10.0;11.0;12.0+PTX")
# The list of nvcc 13; it is not sorted.
write_program(nvcc "for i in 75 80 86 89 90 100 110 103 120 121; do echo sm_$i; done")

expect(ALL "${all}")              # no nvidia-smi
expect(8.0+PTX 8.0+PTX)
write_program(nvidia-smi "echo 'NVIDIA-SMI has failed: 12.4' >&2" "exit 9")
expect(ALL "${all}")              # no driver
write_program(nvidia-smi "echo 'No devices were found'")
expect(ALL "${all}")
gpus(9.0)
expect(ALL 9.0)
expect(8.0+PTX 9.0)
gpus(12.0 8.6 12.0 8.6)
expect(ALL "8.6;12.0")            # no duplicates
gpus(8.6 13.0)
expect(ALL "${all}")              # the newer GPU needs PTX
gpus(6.1)
expect(8.0+PTX 8.0+PTX)           # too old for this nvcc

# An older nvcc, which also supports GPUs that the project does not.
write_program(nvcc "for i in 50 60 70 75 80 86 87 89 90; do echo sm_$i; done")
gpus()
expect(ALL "7.5;8.0;9.0+PTX")
