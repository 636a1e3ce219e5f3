# SPDX-License-Identifier: Apache-2.0
# Helpers, so that a folder's CMakeLists.txt is a list.

# kvs_folder(NAME SOURCES a.c b.c DEPENDS lib pinned LIBS PkgConfig::X)
# Makes the object library kvs_<NAME>. DEPENDS names folders lower in the
# order; the include-order check reads the same direction off the sources.
function(kvs_folder name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS;LIBS" ${ARGN})
  add_library(kvs_${name} STATIC ${A_SOURCES})
  target_link_libraries(kvs_${name} PUBLIC kvs_flags ${A_LIBS})
  foreach(_d ${A_DEPENDS})
    target_link_libraries(kvs_${name} PUBLIC kvs_${_d})
  endforeach()
endfunction()

# kvs_tool(NAME SOURCES a.c DEPENDS pipeline LIBS ...): build/tools/NAME
function(kvs_tool name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS;LIBS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE kvs_flags ${A_LIBS})
  foreach(_d ${A_DEPENDS})
    target_link_libraries(${name} PRIVATE kvs_${_d})
  endforeach()
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# kvs_test(NAME LABEL unit SOURCES a.c DEPENDS lib TIMEOUT 60 THREADS)
# A cmocka program. THREADS marks it for the thread sanitizer run as well.
function(kvs_test name)
  cmake_parse_arguments(A "THREADS" "LABEL;TIMEOUT" "SOURCES;DEPENDS;LIBS;ARGS"
                        ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE kvs_flags PkgConfig::CMOCKA ${A_LIBS})
  foreach(_d ${A_DEPENDS})
    target_link_libraries(${name} PRIVATE kvs_${_d})
  endforeach()
  add_test(NAME ${name} COMMAND ${name} ${A_ARGS})
  set(_labels ${A_LABEL})
  if(A_THREADS)
    list(APPEND _labels threads)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${_labels}" TIMEOUT
                       ${A_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
