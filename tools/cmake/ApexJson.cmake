# Finds nlohmann-json: the target that the enclosing project defined before, otherwise the system's. The imported target stays local: the
# library's users do not link it, and an enclosing project may still add its own copy afterwards.
if(TARGET nlohmann_json::nlohmann_json)
  return()
endif()
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL OFF)
find_package(nlohmann_json 3.11 QUIET)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann-json 3.11 or newer was not found: install Debian's nlohmann-json3-dev (tools/setup does), or "
                      "add its folder to CMAKE_PREFIX_PATH")
endif()
