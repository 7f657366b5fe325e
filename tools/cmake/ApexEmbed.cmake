# apex_embed_text(target HEADER path NAMESPACE ns FILES files...): makes a private header of the target that holds each text
# file as `inline constexpr std::string_view <file name without extension>`, made anew whenever a file changes. HEADER is
# the path to include it by. The same file, run with `cmake -P`, is the generator.
function(apex_embed_text target)
  cmake_parse_arguments(ARG "" "HEADER;NAMESPACE" "FILES" ${ARGN})
  set(root "${CMAKE_CURRENT_BINARY_DIR}/embedded")
  list(TRANSFORM ARG_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  list(JOIN ARG_FILES "|" files)
  set(generator "${CMAKE_CURRENT_FUNCTION_LIST_FILE}")
  add_custom_command(
    OUTPUT "${root}/${ARG_HEADER}"
    COMMAND "${CMAKE_COMMAND}" "-DHEADER=${root}/${ARG_HEADER}" "-DNAMESPACE=${ARG_NAMESPACE}" "-DFILES=${files}"
            -P "${generator}"
    DEPENDS ${ARG_FILES} "${generator}"
    COMMENT "Embedding text files in ${ARG_HEADER}"
    VERBATIM)
  target_sources(${target} PRIVATE "${root}/${ARG_HEADER}")
  target_include_directories(${target} PRIVATE "${root}")
  # The target embedded_texts makes all such headers, and compiles nothing: tools/lint --tidy needs no more.
  if(NOT TARGET embedded_texts)
    add_custom_target(embedded_texts)
  endif()
  add_custom_target(${target}_texts DEPENDS "${root}/${ARG_HEADER}")
  add_dependencies(${target} ${target}_texts)
  add_dependencies(embedded_texts ${target}_texts)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  set(header "#pragma once\n\n#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
  string(REPLACE "|" ";" FILES "${FILES}")
  foreach(file IN LISTS FILES)
    file(READ "${file}" text)
    string(FIND "${text}" ")apex\"" delimiter)
    if(NOT delimiter EQUAL -1)
      message(FATAL_ERROR "${file} holds )apex\", which ends the literal that it would be embedded in")
    endif()
    get_filename_component(name "${file}" NAME_WE)
    string(APPEND header "\ninline constexpr std::string_view ${name} = R\"apex(${text})apex\";\n")
  endforeach()
  file(WRITE "${HEADER}" "${header}\n}  // namespace ${NAMESPACE}\n")
endif()
