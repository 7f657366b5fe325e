# nlohmann-json: the user's, where the project has added it before this one, else that of the machine, which nobody else is to
# see: the library's users link none of it, and a project may add its own after this one, too.
if(TARGET nlohmann_json::nlohmann_json)
  return()
endif()
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL OFF)
find_package(nlohmann_json 3.11 QUIET)
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann-json 3.11 or newer was not found: install Debian's nlohmann-json3-dev (tools/setup does), or "
                      "put where you have it on CMAKE_PREFIX_PATH")
endif()
