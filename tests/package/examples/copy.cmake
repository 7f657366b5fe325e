# Copies the examples NAMES from the folder FROM to TO, times included, and nothing else: cmake -DFROM= -DTO= -DNAMES= -P
file(REMOVE_RECURSE "${TO}")
foreach(name IN LISTS NAMES)
  file(COPY "${FROM}/${name}" DESTINATION "${TO}")
endforeach()
