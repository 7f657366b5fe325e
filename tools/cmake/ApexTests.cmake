# apex_add_test(name sources... [PCH | OPTIMIZED] [WHOLE] [COST seconds] [LIBRARIES libs...]): one GoogleTest binary. Each test is a ctest entry,
# module.Suite.Name, labelled with the module (the folder in tests/).
# WHOLE: one ctest entry for all tests, if starting a process per test would take longer than the tests.
# OPTIMIZED: compile the tests with -O1, if they compute much themselves.
# PCH: use the precompiled header with torch/torch.h and gtest/gtest.h that all tests share. It costs 34 s once and saves 9 s per file.
# COST: start these tests before shorter ones in a first run, for which ctest knows no times.
include(GoogleTest)

function(apex_add_test name)
  cmake_parse_arguments(ARG "OPTIMIZED;PCH;WHOLE" "COST" "LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main)
  apex_test_flags(${name})
  if(ARG_OPTIMIZED)
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1>")
  elseif(ARG_PCH)
    apex_share_test_pch(${name})
  endif()
  get_filename_component(module "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set(properties LABELS "${module}" ENVIRONMENT "OMP_NUM_THREADS=${APEX_CPP_TEST_THREADS}"
    ENVIRONMENT_MODIFICATION OMP_WAIT_POLICY=set:PASSIVE)  # gtest_discover_tests would drop the second element of a list
  if(ARG_COST)
    list(APPEND properties COST ${ARG_COST})
  endif()
  if(APEX_CPP_SANITIZE OR ARG_WHOLE)
    # A sanitized process takes seconds to start.
    set(entry "${module}")
    if(TEST "${module}")  # the module has a second binary
      set(entry "${module}.${name}")
    endif()
    add_test(NAME ${entry} COMMAND ${name})
    set_tests_properties(${entry} PROPERTIES ${properties})
  else()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 TEST_PREFIX "${module}." PROPERTIES ${properties})
  endif()
endfunction()

# apex_add_avx2_test(ENTRY BINARY [ARGUMENTS...]): adds the entry ENTRY.avx2, which runs a test program as on a processor without AVX512.
# LibTorch and oneDNN use other code there, and lack some features.
function(apex_add_avx2_test entry binary)
  add_test(NAME ${entry}.avx2 COMMAND ${binary} ${ARGN})
  set_tests_properties(${entry}.avx2 PROPERTIES LABELS avx2
    ENVIRONMENT "OMP_NUM_THREADS=${APEX_CPP_TEST_THREADS};OMP_WAIT_POLICY=PASSIVE;ONEDNN_MAX_CPU_ISA=AVX2;ATEN_CPU_CAPABILITY=avx2")
endfunction()

# Compiling takes most of a test's time, so no build optimizes tests.
function(apex_test_flags target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O0>")
  apex_own_code(${target})
  apex_join_files(${target})
  get_target_property(type ${target} TYPE)
  if(APEX_CPP_MUTATION AND type STREQUAL "EXECUTABLE")  # set by tests/mutation
    target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests/mutation/listener.cpp")
    target_link_libraries(${target} PRIVATE GTest::gtest)
  endif()
endfunction()

# Compiles the target with the precompiled header that all tests share.
function(apex_share_test_pch target)
  if(NOT TARGET apex_test_pch)
    apex_add_pch(apex_test_pch <torch/torch.h> <gtest/gtest.h>)
    target_link_libraries(apex_test_pch PRIVATE GTest::gtest)
    apex_test_flags(apex_test_pch)
  endif()
  target_link_libraries(${target} PRIVATE GTest::gtest)
  apex_use_pch(${target} apex_test_pch)
endfunction()

# Two threads, so that parallel code runs in parallel. They sleep while waiting, because ctest runs more threads than there are cores. One
# thread under ThreadSanitizer, which cannot see OpenMP's barriers and would report every parallel loop of libtorch as a race; it still
# checks std::thread.
set(APEX_CPP_TEST_THREADS 2)
if(APEX_CPP_SANITIZE MATCHES "thread")
  set(APEX_CPP_TEST_THREADS 1)
endif()

# A LibTorch folder alone is enough for the library, and not for the tests: names what they lack.
set(APEX_CPP_TESTS_LACK "")
find_package(Python3 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  set(APEX_CPP_TESTS_LACK "Python 3")
endif()

# Tests read headers of the CUDA runtime also in builds without CUDA.
find_path(APEX_CPP_CUDA_RUNTIME_INCLUDE_DIR cuda_runtime_api.h
  HINTS "${torch_folder}/../nvidia/cu13/include" "${APEX_CPP_THRUST_INCLUDE_DIR}" "${APEX_CPP_THRUST_INCLUDE_DIR}/.." NO_DEFAULT_PATH
  DOC "Folder of the CUDA runtime's headers, which pip installs beside torch")
mark_as_advanced(APEX_CPP_CUDA_RUNTIME_INCLUDE_DIR)
if(NOT APEX_CPP_HAS_CUDA)
  find_library(APEX_CPP_TORCH_CUDA torch_cuda HINTS "${torch_folder}/lib" NO_DEFAULT_PATH)
  mark_as_advanced(APEX_CPP_TORCH_CUDA)
  if(NOT APEX_CPP_TORCH_CUDA OR NOT APEX_CPP_CUDA_RUNTIME_INCLUDE_DIR)
    set(APEX_CPP_TESTS_LACK "a LibTorch with CUDA, and the headers of the CUDA runtime beside it")
  endif()
endif()

# apex_link_data_parallel(target): torch::nn::parallel::data_parallel is always declared, but its header reads those of the CUDA runtime, and
# only libtorch_cuda defines it. Builds without CUDA find both beside their LibTorch.
function(apex_link_data_parallel target)
  if(APEX_CPP_HAS_CUDA)
    return()
  endif()
  target_link_libraries(${target} PUBLIC "${APEX_CPP_TORCH_CUDA}")
  target_include_directories(${target} SYSTEM PUBLIC "${APEX_CPP_CUDA_RUNTIME_INCLUDE_DIR}")
endfunction()
