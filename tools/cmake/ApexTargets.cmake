# apex_add_library(name sources...): one module as a static library, with the project's warnings and the repository root as include
# directory. It is installed with the package. ApexShared.cmake links the same objects into one shared library.
function(apex_add_library name)
  add_library(${name} STATIC ${ARGN})
  target_include_directories(${name} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${APEX_CPP_INSTALL_INCLUDEDIR}>")
  target_compile_features(${name} PUBLIC cxx_std_17)
  # These flags follow the enclosing project's, and so override them: overflow checks need Inf and NaN, and exports.map decides which names
  # the shared library exports.
  target_compile_options(${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-fno-fast-math;-fvisibility=default;-fno-visibility-inlines-hidden>")
  apex_short_file_names(${name})
  apex_own_code(${name})
  apex_join_files(${name} ${CMAKE_UNITY_BUILD_BATCH_SIZE})
  set_property(GLOBAL APPEND PROPERTY APEX_CPP_LIBRARIES ${name})
endfunction()

# Error messages name source files. Without the folders of the build, the target is the same wherever it is built.
function(apex_short_file_names target)
  foreach(folder "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}" "${torch_folder}/include" "${APEX_CPP_THRUST_INCLUDE_DIR}")
    set(map "-fmacro-prefix-map=${folder}/=")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${map}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${map}>")
  endforeach()
endfunction()

# Enables the project's warnings for a target.
function(apex_own_code target)
  # C++17 captures a structured binding as `&net = net`, which Clang's -Wshadow reports.
  set(warnings -Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wshadow> -Wnon-virtual-dtor -Wundef -Wvla)
  # GCC 13 and 14 report std::vector<bool> of torch's headers, once it is inlined into our code.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND warnings -Wno-array-bounds -Wno-stringop-overflow)
  endif()
  if(APEX_CPP_WERROR)
    list(APPEND warnings -Werror)
  elseif(NOT PROJECT_IS_TOP_LEVEL)
    list(APPEND warnings -w)  # an enclosing project's warnings, which may be errors, are for its own code
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
endfunction()

# apex_join_files(target [batch]): compiles the target's files joined, so many at a time (unity build), or all: the templates that
# torch/torch.h leaves to each compilation take 10 s of CPU time, even with a precompiled header. Names in anonymous namespaces must be unique
# within a target.
function(apex_join_files target)
  set(batch ${ARGN} 0)
  list(GET batch 0 batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${APEX_CPP_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# The library stays in batches, which more cores can compile at once.
if(NOT DEFINED CMAKE_UNITY_BUILD_BATCH_SIZE)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)
endif()

# apex_add_pch(name headers...): a precompiled header that targets share. It belongs to an executable, because it is accepted with identical
# flags alone, -fPIE among them.
function(apex_add_pch name)
  set(main "${PROJECT_BINARY_DIR}/${name}.cpp")
  file(CONFIGURE OUTPUT "${main}" CONTENT "int main() { return 0; }\n")
  add_executable(${name} EXCLUDE_FROM_ALL "${main}")
  target_link_libraries(${name} PRIVATE apex_torch)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

# Compiles the target with this precompiled header.
function(apex_use_pch target pch)
  get_target_property(type ${target} TYPE)
  if(type MATCHES LIBRARY)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  target_link_libraries(${target} PRIVATE apex_torch)
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# Enables the project's warnings for a target of examples/ or tools/, and compiles it as a program.
function(apex_program_code target)
  apex_own_code(${target})
  apex_compile_program(${target})
endfunction()

# Compiles a target with the precompiled torch/torch.h that examples/ and tools/ share: reading it takes most of the time of compiling a
# file. Release builds compile programs with -O1, in two thirds of the time of -O3: they compute in the libraries.
function(apex_compile_program target)
  set(optimization "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>")
  if(NOT TARGET apex_program_pch)
    apex_add_pch(apex_program_pch <torch/torch.h>)
    apex_own_code(apex_program_pch)
    target_compile_options(apex_program_pch PRIVATE "${optimization}")
  endif()
  target_compile_options(${target} PRIVATE "${optimization}")
  apex_use_pch(${target} apex_program_pch)
endfunction()
