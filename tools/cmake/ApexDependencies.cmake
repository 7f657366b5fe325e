# The libraries beside LibTorch: those of the enclosing project or the system, else source archives from Debian's registry, pinned with
# their hashes. The library needs yaml-cpp and nlohmann-json; programs need CLI11 and zlib, tests GoogleTest.
option(APEX_CPP_FETCH "Download libraries that the system lacks: yaml-cpp, nlohmann-json, CLI11, zlib, GoogleTest, Thrust's headers" ON)
include(FetchContent)

# apex_fetch(name remedy url sha256 [BUILD] [arguments of FetchContent_Declare...]): unpacks an archive; its folder is in <name>_folder.
# BUILD adds its CMake project.
function(apex_fetch name remedy url sha256)
  cmake_parse_arguments(ARG BUILD "" "" ${ARGN})
  if(NOT APEX_CPP_FETCH)
    message(FATAL_ERROR "${name} was not found, and APEX_CPP_FETCH is OFF: ${remedy}, add its folder to CMAKE_PREFIX_PATH, or set "
                        "APEX_CPP_FETCH=ON, which downloads it")
  endif()
  message(STATUS "apex_cpp downloads ${name}, which this system lacks: ${url}")
  if(NOT ARG_BUILD)
    list(APPEND ARG_UNPARSED_ARGUMENTS SOURCE_SUBDIR has-no-project)
  endif()
  # The archives' projects are older than CMake 4, and than its rule that a variable sets an option.
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(BUILD_SHARED_LIBS OFF)
  string(APPEND CMAKE_CXX_FLAGS " -w")  # the project's warnings are not for them
  FetchContent_Declare(apex_${name} URL "${url}" URL_HASH "SHA256=${sha256}" ${ARG_UNPARSED_ARGUMENTS})
  FetchContent_MakeAvailable(apex_${name})
  FetchContent_GetProperties(apex_${name} SOURCE_DIR folder)
  set(${name}_folder "${folder}" PARENT_SCOPE)
endfunction()

set(debian_pool https://deb.debian.org/debian/pool/main)

if(NOT TARGET yaml-cpp AND NOT TARGET yaml-cpp::yaml-cpp)
  find_package(yaml-cpp QUIET)
  if(NOT yaml-cpp_FOUND)
    set(YAML_CPP_BUILD_TOOLS OFF)
    set(YAML_CPP_BUILD_TESTS OFF)
    set(YAML_CPP_INSTALL ${APEX_CPP_INSTALL})
    apex_fetch(yaml-cpp "install Debian's libyaml-cpp-dev for this machine's architecture"
      "${debian_pool}/y/yaml-cpp/yaml-cpp_0.8.0+dfsg.orig.tar.xz" 32c85a5f36633a9005b20261b35fccb0d8ec69e9ef16c67de7d5d007944e3709 BUILD)
    set(yaml-cpp_VERSION 0.8.0)
  endif()
endif()
# An installed yaml-cpp 0.8 has the second name only, an older one the first.
if(NOT TARGET yaml-cpp)
  add_library(yaml-cpp ALIAS yaml-cpp::yaml-cpp)
endif()

# The imported target stays local: the library's users do not link nlohmann-json, and an enclosing project may still add its own copy.
if(NOT TARGET nlohmann_json::nlohmann_json)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL OFF)
  find_package(nlohmann_json 3.11 QUIET)
  set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
  if(NOT nlohmann_json_FOUND)
    apex_fetch(nlohmann-json "install Debian's nlohmann-json3-dev, 3.11 or newer"
      "${debian_pool}/n/nlohmann-json3/nlohmann-json3_3.11.2.orig.tar.gz" d69f9deb6a75e2580465c6c4c5111b89c4dc2fa94e3a85fcd2ffcd9a143d9273)
    set(nlohmann_json_VERSION 3.11.2)
    add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
    target_include_directories(nlohmann_json::nlohmann_json INTERFACE "${nlohmann-json_folder}/single_include")
  endif()
endif()

if(APEX_CPP_BUILD_EXAMPLES OR APEX_CPP_BUILD_TOOLS OR APEX_CPP_BUILD_TESTS)
  find_package(CLI11 2.1 QUIET)
  if(NOT CLI11_FOUND)
    apex_fetch(CLI11 "install Debian's libcli11-dev, 2.1 or newer"
      "${debian_pool}/c/cli11/cli11_2.1.2+ds.orig.tar.xz" 8143d20b688e98ccce8e24562d3b68e5f47c12e896c42c7ca8553dbde5bed55d)
    add_library(CLI11::CLI11 INTERFACE IMPORTED GLOBAL)
    target_include_directories(CLI11::CLI11 INTERFACE "${CLI11_folder}/include")
    # Examples that are programs of their own call find_package.
    file(TOUCH "${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/cli11-config.cmake")
    file(WRITE "${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/cli11-config-version.cmake" "set(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
  endif()
  find_package(ZLIB QUIET)
  if(NOT ZLIB_FOUND)
    apex_fetch(zlib "install Debian's zlib1g-dev"
      "${debian_pool}/z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2" 71feb7947e3c00ef125f83b79a4e529bde31171e5babe48b391f06758d1ab0a1)
    enable_language(C)
    file(GLOB sources "${zlib_folder}/*.c")
    add_library(apex_zlib STATIC ${sources})
    target_include_directories(apex_zlib SYSTEM PUBLIC "${zlib_folder}")
    target_compile_definitions(apex_zlib PRIVATE HAVE_UNISTD_H)
    add_library(ZLIB::ZLIB ALIAS apex_zlib)
  endif()
endif()

if(APEX_CPP_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF)
    apex_fetch(GoogleTest "install Debian's libgtest-dev"
      "${debian_pool}/g/googletest/googletest_1.12.1.orig.tar.gz" 81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2 BUILD)
  endif()
endif()
