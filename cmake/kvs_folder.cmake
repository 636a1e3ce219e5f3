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
# A cmocka program. THREADS marks it for the thread sanitizer run as well. A
# sanitizer has three times the time.
function(kvs_test name)
  cmake_parse_arguments(A "THREADS" "LABEL;TIMEOUT" "SOURCES;DEPENDS;LIBS;ARGS"
                        ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  if(KVS_SANITIZE)
    math(EXPR A_TIMEOUT "3 * ${A_TIMEOUT}")
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
  foreach(_l ${_labels})
    add_dependencies(kvs_tests_${_l} ${name})
  endforeach()
endfunction()

# kvs_script_test(NAME LABEL e2e SCRIPT a.sh TIMEOUT 60 ARGS ...)
# Runs SCRIPT with the build folder first; built tools lie in its tools/.
function(kvs_script_test name)
  cmake_parse_arguments(A "" "LABEL;TIMEOUT;SCRIPT" "ARGS" ${ARGN})
  if(NOT A_LABEL)
    set(A_LABEL e2e)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${A_SCRIPT}
                                ${PROJECT_BINARY_DIR} ${A_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${A_LABEL}" TIMEOUT
                       ${A_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()

# kvs_fuzz(NAME SOURCES a.c DEPENDS pipeline): the program fuzz_NAME around an
# LLVMFuzzerTestOneInput(), inputs in corpus/NAME. A KVS_FUZZ build searches
# for KVS_FUZZ_SECONDS; every other build replays the corpus as a unit test.
function(kvs_fuzz name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPENDS;LIBS" ${ARGN})
  set(_corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  set(_new ${CMAKE_CURRENT_BINARY_DIR}/new/${name})
  set(_target fuzz_${name})
  add_executable(${_target} ${A_SOURCES})
  target_link_libraries(${_target} PRIVATE kvs_flags ${A_LIBS})
  foreach(_d ${A_DEPENDS})
    target_link_libraries(${_target} PRIVATE kvs_${_d})
  endforeach()
  if(KVS_FUZZ)
    target_link_options(${_target} PRIVATE -fsanitize=fuzzer)
    file(MAKE_DIRECTORY ${_new})
    # libFuzzer's own status for a crash is 77, which here means skipped.
    set(_flags -error_exitcode=1 -timeout=10 -rss_limit_mb=2048
               -artifact_prefix=${_new}-)
    math(EXPR _limit "${KVS_FUZZ_SECONDS} + 60")
    add_test(NAME ${_target}_replay COMMAND ${_target} ${_flags} -runs=0
                                            ${_corpus})
    add_test(NAME ${_target}_search
             COMMAND ${_target} ${_flags} -max_total_time=${KVS_FUZZ_SECONDS}
                     ${_new} ${_corpus})
    set_tests_properties(${_target}_replay ${_target}_search
                         PROPERTIES LABELS fuzz TIMEOUT ${_limit})
    add_dependencies(kvs_tests_fuzz ${_target})
  else()
    target_sources(${_target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c)
    add_test(NAME ${_target}_replay COMMAND ${_target} ${_corpus})
    set_tests_properties(${_target}_replay PROPERTIES LABELS unit TIMEOUT 60
                                                      SKIP_RETURN_CODE 77)
    add_dependencies(kvs_tests_unit ${_target})
  endif()
endfunction()
