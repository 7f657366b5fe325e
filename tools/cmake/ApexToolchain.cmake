# Faster rebuilds and links, and the sanitizers. Only for our own builds: a project that adds this one decides for itself.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

find_program(APEX_CPP_CCACHE ccache)
foreach(language IN ITEMS CXX CUDA)
  if(APEX_CPP_CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    # ccache handles precompiled headers only with this sloppiness. Not more of it: without a look at times it would keep an object
    # of a header that was edited while it was compiled. The base folder lets another clone find the same objects.
    set(CMAKE_${language}_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
        "CCACHE_SLOPPINESS=pch_defines,time_macros" "${APEX_CPP_CCACHE}")
  endif()
endforeach()

find_program(APEX_CPP_LLD ld.lld)
if(APEX_CPP_LLD)
  add_link_options("$<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>")
endif()

# libtorch itself is not instrumented. Nothing of it needs a suppression: AddressSanitizer's leak check stays on.
if(APEX_CPP_SANITIZE)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${APEX_CPP_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
  add_link_options("-fsanitize=${APEX_CPP_SANITIZE}")
endif()
