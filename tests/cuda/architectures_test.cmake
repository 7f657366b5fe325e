# What CUDA code is compiled for on a machine with these GPUs and this nvcc, both of which are scripts here. Run by ctest.
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

# What nvidia-smi says to this very question.
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
# As nvcc 13 has it: not in order.
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
expect(ALL "8.6;12.0")            # each once
gpus(8.6 13.0)
expect(ALL "${all}")              # PTX is what the newer one runs
gpus(6.1)
expect(8.0+PTX 8.0+PTX)           # too old for this nvcc

# An older one, which has code for GPUs that are out of reach.
write_program(nvcc "for i in 50 60 70 75 80 86 87 89 90; do echo sm_$i; done")
gpus()
expect(ALL "7.5;8.0;9.0+PTX")
