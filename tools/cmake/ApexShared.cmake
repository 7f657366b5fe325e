# Target apex_cpp_shared: the whole library as libapex_cpp.so.MAJOR.MINOR. It links the objects of the static libraries, so nothing is
# compiled twice. BUILD_SHARED_LIBS selects which library apex_cpp::apex_cpp names.
get_property(libraries GLOBAL PROPERTY APEX_CPP_LIBRARIES)
set(objects "")
foreach(library IN LISTS libraries)
  list(APPEND objects $<TARGET_OBJECTS:${library}>)
endforeach()
add_library(apex_cpp_shared SHARED ${objects})
if(NOT APEX_CPP_INSTALL AND NOT APEX_CPP_BUILD_PYTHON AND NOT BUILD_SHARED_LIBS)
  set_target_properties(apex_cpp_shared PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

# TARGET_OBJECTS omits the device code: a custom command makes it, as one object among the sources of apex_kernels.
get_target_property(device_code apex_kernels SOURCES)
list(FILTER device_code INCLUDE REGEX "[.]o$")
if(device_code)
  set_source_files_properties(${device_code} PROPERTIES GENERATED ON EXTERNAL_OBJECT ON)
  target_sources(apex_cpp_shared PRIVATE ${device_code})
  add_dependencies(apex_cpp_shared apex_kernels)
endif()

# Exports the public names only: no templates of yaml-cpp or torch, and no kernels.
set(exports "${CMAKE_CURRENT_LIST_DIR}/exports.map")
target_link_options(apex_cpp_shared PRIVATE "LINKER:--version-script=${exports}")
if(PROJECT_IS_TOP_LEVEL AND NOT APEX_CPP_SANITIZE)  # Clang leaves a sanitizer's names to the program
  target_link_options(apex_cpp_shared PRIVATE LINKER:-z,defs)
endif()
target_link_libraries(apex_cpp_shared PUBLIC apex_torch PRIVATE yaml-cpp)
# A program itself links few of LibTorch's CUDA libraries. Its run path must also lead this library to the others, which DT_RPATH does and
# DT_RUNPATH does not.
if(APEX_CPP_HAS_CUDA)
  target_link_options(apex_cpp_shared PUBLIC LINKER:--disable-new-dtags)
endif()
target_include_directories(apex_cpp_shared PUBLIC
  "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${APEX_CPP_INSTALL_INCLUDEDIR}>")
target_compile_features(apex_cpp_shared PUBLIC cxx_std_17)
# VERSION equals SOVERSION, so there is only one link beside the file: a wheel holds no symbolic links. Before 1.0 a minor version may
# change the ABI.
set(version "${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
set_target_properties(apex_cpp_shared PROPERTIES
  OUTPUT_NAME apex_cpp EXPORT_NAME apex_cpp LINKER_LANGUAGE CXX LINK_DEPENDS "${exports}"
  VERSION ${version} SOVERSION ${version} INSTALL_RPATH "$ORIGIN")

# Users of the package do not see compiler warnings from its headers; this project does.
if(NOT PROJECT_IS_TOP_LEVEL)
  set_target_properties(apex_cpp apex_cpp_shared PROPERTIES SYSTEM ON)
endif()

if(NOT BUILD_SHARED_LIBS)
  add_library(apex_cpp::apex_cpp ALIAS apex_cpp)
elseif(APEX_CPP_BUILD_TESTS OR APEX_CPP_BUILD_TOOLS)
  message(FATAL_ERROR "BUILD_SHARED_LIBS=ON: tests and tools look inside the library and are built with the static one: set "
                      "APEX_CPP_BUILD_TESTS and APEX_CPP_BUILD_TOOLS OFF. Both libraries are installed in either case")
else()
  add_library(apex_cpp::apex_cpp ALIAS apex_cpp_shared)
endif()
