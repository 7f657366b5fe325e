# apex_add_test(name sources... [PCH] [WHOLE] [LIBRARIES libs...]): one GoogleTest binary, its tests known to ctest one by one as
# module.Suite.Name, with the module (the folder in tests/) as label.
# WHOLE: one entry for all of them, where starting a process for each would take longer than the tests.
# PCH: the binary reads torch/torch.h and gtest/gtest.h from the precompiled header that all tests share. The header costs
# 34 s once and saves 9 s a file.
include(GoogleTest)

function(apex_add_test name)
  cmake_parse_arguments(ARG "PCH;WHOLE" "" "LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main)
  apex_test_flags(${name})
  if(ARG_PCH)
    apex_need_test_pch()
    target_link_libraries(${name} PRIVATE apex_torch)
    target_precompile_headers(${name} REUSE_FROM apex_test_pch)
  endif()
  get_filename_component(module "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set(properties LABELS "${module}" ENVIRONMENT "OMP_NUM_THREADS=${APEX_CPP_TEST_THREADS}"
    ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:PASSIVE)  # a list of two would lose the second in gtest_discover_tests
  if(APEX_CPP_SANITIZE OR ARG_WHOLE)
    # A sanitized process takes seconds to start.
    set(entry "${module}")
    if(TEST "${module}")  # a second binary of the module
      set(entry "${module}.${name}")
    endif()
    add_test(NAME ${entry} COMMAND ${name})
    set_tests_properties(${entry} PROPERTIES ${properties})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${module}." PROPERTIES ${properties})
  endif()
endfunction()

# apex_add_avx2_test(ENTRY BINARY [ARGUMENTS...]): an entry ENTRY.avx2 that runs a test program once more as on a processor without
# AVX512: LibTorch and oneDNN have other code there, and lack some.
function(apex_add_avx2_test entry binary)
  add_test(NAME ${entry}.avx2 COMMAND ${binary} ${ARGN})
  set_tests_properties(${entry}.avx2 PROPERTIES LABELS avx2
    ENVIRONMENT "OMP_NUM_THREADS=${APEX_CPP_TEST_THREADS};OMP_WAIT_POLICY=PASSIVE;ONEDNN_MAX_CPU_ISA=AVX2;ATEN_CPU_CAPABILITY=avx2")
endfunction()

# Most of a test's time is compiling it: a release build optimises tests little.
function(apex_test_flags target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(${target} PRIVATE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
  apex_own_code(${target})
  apex_join_files(${target})
endfunction()

# The target whose precompiled header the tests reuse. An executable, since the header is only accepted with the very
# flags that it was made with, -fPIE among them.
function(apex_need_test_pch)
  if(TARGET apex_test_pch)
    return()
  endif()
  set(main "${PROJECT_BINARY_DIR}/apex_test_pch.cpp")
  file(CONFIGURE OUTPUT "${main}" CONTENT "int main() { return 0; }\n")
  add_executable(apex_test_pch EXCLUDE_FROM_ALL "${main}")
  target_link_libraries(apex_test_pch PRIVATE apex_torch GTest::gtest)
  apex_test_flags(apex_test_pch)
  target_precompile_headers(apex_test_pch PRIVATE <torch/torch.h> <gtest/gtest.h>)
endfunction()

# Two threads, so that parallel code runs in parallel; they wait asleep, since ctest runs more of them than there are cores.
# One under ThreadSanitizer, which cannot see OpenMP's barriers and would call every parallel loop of libtorch a race;
# std::thread is watched all the same.
set(APEX_CPP_TEST_THREADS 2)
if(APEX_CPP_SANITIZE MATCHES "thread")
  set(APEX_CPP_TEST_THREADS 1)
endif()

# apex_link_data_parallel(target): torch::nn::parallel::data_parallel is declared everywhere and defined in libtorch_cuda, which a
# build without CUDA does not link.
function(apex_link_data_parallel target)
  if(APEX_CPP_HAS_CUDA)
    return()
  endif()
  get_filename_component(torch_libraries "${TorchCPU_LIBRARY}" DIRECTORY)
  find_library(APEX_CPP_TORCH_CUDA torch_cuda HINTS "${torch_libraries}" NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(${target} PUBLIC "${APEX_CPP_TORCH_CUDA}")
endfunction()
