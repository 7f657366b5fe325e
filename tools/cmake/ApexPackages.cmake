# Settings of tools/package beyond an install: CPack's archives, and the wheel's files that name this build.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

# Packages of one version differ in the LibTorch that they were compiled with and in their CUDA code.
set(APEX_CPP_PACKAGE_VERSION "${PROJECT_VERSION}+torch${APEX_CPP_BUILT_WITH_TORCH}")
if(APEX_CPP_HAS_CUDA)
  string(REGEX MATCH "^[0-9]+" cuda_major "${CMAKE_CUDA_COMPILER_VERSION}")
  string(APPEND APEX_CPP_PACKAGE_VERSION ".cu${cuda_major}")
else()
  string(APPEND APEX_CPP_PACKAGE_VERSION ".cpu")
endif()
configure_file(tools/packaging/pyproject.toml.in "${PROJECT_BINARY_DIR}/packaging/pyproject.toml" @ONLY)

# The software bill of materials (CycloneDX), with the versions that this build uses. It has no date and no serial number: equal sources
# make equal packages.
file(STRINGS "${APEX_CPP_THRUST_INCLUDE_DIR}/cuda/std/__cccl/version.h" cccl_version REGEX "define CCCL_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" cccl_version "${cccl_version}")
math(EXPR cccl_major "${cccl_version} / 1000000")
math(EXPR cccl_minor "${cccl_version} / 1000 % 1000")
math(EXPR cccl_patch "${cccl_version} % 1000")
set(cccl_version "${cccl_major}.${cccl_minor}.${cccl_patch}")
set(at "@")
configure_file(tools/packaging/sbom.cdx.json.in "${PROJECT_BINARY_DIR}/packaging/apex_cpp.cdx.json" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/packaging/apex_cpp.cdx.json" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)

set(CPACK_PACKAGE_NAME apex-cpp)
set(CPACK_PACKAGE_VENDOR "apex_cpp contributors")
set(CPACK_PACKAGE_CONTACT "apex_cpp contributors")
set(CPACK_PACKAGE_VERSION "${APEX_CPP_PACKAGE_VERSION}")
set(CPACK_PACKAGE_FILE_NAME "apex-cpp-${APEX_CPP_PACKAGE_VERSION}-Linux-${CMAKE_SYSTEM_PROCESSOR}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Mixed precision training with LibTorch ${APEX_CPP_BUILT_WITH_TORCH}, which comes with PyPI's torch.")
# The shared library's Debian dependencies are computed; the static library also needs yaml-cpp's development files.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
if(APEX_CPP_HAS_CUDA)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TORCH_INSTALL_PREFIX}/lib")
else()
  get_filename_component(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TorchCPU_LIBRARY}" DIRECTORY)
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake, g++, libyaml-cpp-dev")
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_SOURCE_DIR}/tools/cmake/PackageContents.cmake")
include(CPack)
