# Installs the CMake package: static and shared libraries, the headers of ApexHeaders.cmake in a folder of their own (so that no
# kernels/ lands in /usr/include), a config file that finds torch as this build did, and a file for pkg-config. Components:
# static, shared and development. tools/package adds bundled, for machines without Debian's packages, and python.
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY APEX_CPP_LIBRARIES)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/apex_cpp")

install(TARGETS ${libraries} EXPORT apex_cpp-static-targets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT static
  FILE_SET HEADERS DESTINATION "${APEX_CPP_INSTALL_INCLUDEDIR}" COMPONENT development
  FILE_SET private_headers DESTINATION "${APEX_CPP_INSTALL_INCLUDEDIR}" COMPONENT development)
install(EXPORT apex_cpp-static-targets NAMESPACE apex_cpp:: DESTINATION "${package_dir}" COMPONENT static)
install(TARGETS apex_cpp_shared EXPORT apex_cpp-shared-targets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT shared NAMELINK_COMPONENT namelink)
install(EXPORT apex_cpp-shared-targets NAMESPACE apex_cpp:: DESTINATION "${package_dir}" COMPONENT shared)

# The LibTorch of this build: another minor version has other symbols.
if(APEX_CPP_HAS_CUDA)
  set(built_with "${Torch_VERSION}")
else()
  set(built_with "${TorchCPU_VERSION}")
endif()
string(REGEX MATCH "^[0-9]+[.][0-9]+" APEX_CPP_BUILT_WITH_TORCH "${built_with}")
configure_package_config_file(tools/cmake/apex_cpp-config.cmake.in "${PROJECT_BINARY_DIR}/apex_cpp-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/apex_cpp-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/apex_cpp-config.cmake" "${PROJECT_BINARY_DIR}/apex_cpp-config-version.cmake"
  tools/cmake/ApexTorch.cmake tools/cmake/FindTorchCPU.cmake
  DESTINATION "${package_dir}" COMPONENT development)
set(torch_libraries "-ltorch_cpu -lc10")
if(APEX_CPP_HAS_CUDA)
  set(torch_libraries "-ltorch -ltorch_cpu -ltorch_cuda -lc10_cuda -lc10 -Wl,--disable-new-dtags")
endif()
# The supported compilers take C++17 by default, so that a program's own -std stays in force.
set(pkg_config_standard "")
if(APEX_CPP_CXX_STANDARD GREATER 17)
  set(pkg_config_standard "-std=c++${APEX_CPP_CXX_STANDARD}")
endif()
# The file finds the installation relative to its own place, which is deeper if libraries go to lib/x86_64-linux-gnu.
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" OUTPUT_VARIABLE pkg_config_folder)
cmake_path(APPEND pkg_config_folder pkgconfig)
file(RELATIVE_PATH pkg_config_to_prefix "${pkg_config_folder}" "${CMAKE_INSTALL_PREFIX}")
configure_file(tools/cmake/apex_cpp.pc.in "${PROJECT_BINARY_DIR}/apex_cpp.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/apex_cpp.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
install(FILES LICENSE tools/packaging/THIRD_PARTY_NOTICES DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)

# Beside the libraries of LibTorch and the compiler, the shared library needs only yaml-cpp's shared library: Debian's static
# yaml-cpp cannot be linked into shared libraries. A yaml-cpp that the user's project builds is installed by that project.
get_target_property(yaml_is_found yaml-cpp IMPORTED)
if(yaml_is_found)
  get_target_property(yaml_build yaml-cpp IMPORTED_CONFIGURATIONS)
  list(GET yaml_build 0 yaml_build)
  get_target_property(yaml_soname yaml-cpp IMPORTED_SONAME_${yaml_build})
  get_target_property(yaml_file yaml-cpp LOCATION)
elseif(DEFINED YAML_CPP_INSTALL AND NOT YAML_CPP_INSTALL)
  message(FATAL_ERROR "APEX_CPP_INSTALL=ON: the installed library needs the yaml-cpp that this project builds, which is not "
                      "installed: set YAML_CPP_INSTALL=ON as well")
endif()
if(yaml_soname)
  install(FILES "${yaml_file}" RENAME "${yaml_soname}" DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT bundled EXCLUDE_FROM_ALL)
endif()
