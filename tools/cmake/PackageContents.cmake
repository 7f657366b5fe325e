# cpack reads this file for each kind of package. An archive works on any system, so it contains yaml-cpp's shared library. A
# Debian package depends on Debian's yaml-cpp.
if(CPACK_GENERATOR STREQUAL "TGZ")
  list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build_tree)
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build_tree}" apex_cpp bundled /)
endif()
