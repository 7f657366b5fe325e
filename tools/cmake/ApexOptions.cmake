if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# User options and their defaults: everything is built if this is the top-level project, only the library if it is a subproject.
set(APEX_CPP_CUDA AUTO CACHE STRING "AUTO: CUDA code if nvcc is found and LibTorch has CUDA; ON: required; OFF: no CUDA toolkit is looked for")
set_property(CACHE APEX_CPP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(APEX_CPP_CUDA_WITHOUT_GPU ALL CACHE STRING
  "What CUDA code is compiled for where this machine has no GPU: ALL, or a list as TORCH_CUDA_ARCH_LIST takes it, which counts before this")
option(APEX_CPP_BUILD_TESTS "Build the test suite" ${PROJECT_IS_TOP_LEVEL})
option(APEX_CPP_BUILD_EXAMPLES "Build the example programs" ${PROJECT_IS_TOP_LEVEL})
option(APEX_CPP_BUILD_TOOLS "Build the benches and other developer tools" ${PROJECT_IS_TOP_LEVEL})
option(APEX_CPP_BUILD_PYTHON "Build the operators behind the wheel's amp_C" ${PROJECT_IS_TOP_LEVEL})
option(BUILD_SHARED_LIBS "apex_cpp::apex_cpp is the shared library; both are installed" OFF)
option(APEX_CPP_INSTALL "Make install rules and the CMake package" ${PROJECT_IS_TOP_LEVEL})
option(APEX_CPP_WERROR "Treat warnings in our own code as errors, as the presets do" OFF)
# Other compilers warn of other things, which must not stop a user's build.
set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
if(APEX_CPP_WERROR AND NOT compiler MATCHES "^(GNU 1[234]|Clang 14)[.]")
  message(STATUS "Warnings are no errors: apex_cpp has not been tested with ${compiler}")
  set(APEX_CPP_WERROR OFF)
endif()
# Reading torch's headers takes nearly all of a file's 12 s of compile time. Joined files read them once.
set(unity ON)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(unity OFF)
endif()
option(APEX_CPP_UNITY "Compile files joined, several at a time; off (default in Debug): one by one, for quick rebuilds" ${unity})
set(APEX_CPP_SANITIZE "" CACHE STRING "Sanitizers for our own code, as -fsanitize takes them (address,undefined or thread)")

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# A project that includes this one with add_subdirectory links the packages found here, so their targets must be global.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
