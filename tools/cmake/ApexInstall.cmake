# The CMake package: libraries, headers under a folder of their own (nothing named kernels/ lands in /usr/include), and
# a config file that finds torch the way this build did.
include(CMakePackageConfigHelpers)
get_property(libraries GLOBAL PROPERTY APEX_CPP_LIBRARIES)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/apex_cpp")

install(TARGETS ${libraries} EXPORT apex_cpp-targets)
install(EXPORT apex_cpp-targets NAMESPACE apex_cpp:: DESTINATION "${package_dir}")
install(DIRECTORY apex_cpp opt_levels DESTINATION "${APEX_CPP_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh" PATTERN detail EXCLUDE)
install(FILES kernels/multi_tensor.h DESTINATION "${APEX_CPP_INSTALL_INCLUDEDIR}/kernels")

configure_package_config_file(tools/cmake/apex_cpp-config.cmake.in "${PROJECT_BINARY_DIR}/apex_cpp-config.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/apex_cpp-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/apex_cpp-config.cmake" "${PROJECT_BINARY_DIR}/apex_cpp-config-version.cmake"
  tools/cmake/ApexTorch.cmake tools/cmake/FindTorchCPU.cmake
  DESTINATION "${package_dir}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
