# Read by cpack for each kind of package. An archive is for any system: it brings yaml-cpp's shared library along. A Debian package
# depends on Debian's.
if(CPACK_GENERATOR STREQUAL "TGZ")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build_tree)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build_tree}" apex_cpp bundled /)
endif()
