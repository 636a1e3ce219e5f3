# SPDX-License-Identifier: Apache-2.0
# libkvstage.so, and what a package of kvstage installs.

# kvs_library(MAP): links what the names of the version script need out of the
# folders' archives, and exports these names only.
function(kvs_library map)
  file(STRINGS ${map} _lines REGEX "^[ \t]+kvs_[a-z0-9_]+;$")
  set(_wanted "")
  foreach(_l ${_lines})
    string(REGEX MATCH "kvs_[a-z0-9_]+" _name "${_l}")
    list(APPEND _wanted "LINKER:-u,${_name}")
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${map})
  # The copy backends are named by a table, not by the map.
  add_library(kvstage SHARED $<TARGET_OBJECTS:kvs_gpu>)
  target_include_directories(kvstage
                             INTERFACE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(kvstage PRIVATE kvs_pipeline)
  target_link_options(kvstage PRIVATE ${_wanted}
                      "LINKER:--version-script=${map}")
  if(NOT KVS_SANITIZE)
    target_link_options(kvstage PRIVATE LINKER:--no-undefined)
  endif()
  set_target_properties(kvstage PROPERTIES VERSION ${PROJECT_VERSION}
                                           SOVERSION 0 LINK_DEPENDS ${map}
                                           LINKER_LANGUAGE C)
endfunction()

# "man kvs_engine_admit" finds kvs_engine(3): one alias for each name of a page.
function(kvs_man_aliases)
  foreach(_page ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_page})
    get_filename_component(_file ${_page} NAME)
    file(STRINGS ${_page} _names REGEX "^\\.Nm kvs_")
    foreach(_n ${_names})
      string(REGEX MATCH "kvs_[a-z0-9_]+" _n "${_n}")
      set(_alias ${PROJECT_BINARY_DIR}/man/${_n}.3)
      file(CONFIGURE OUTPUT ${_alias} CONTENT ".so man3/${_file}\n")
      install(FILES ${_alias} DESTINATION ${CMAKE_INSTALL_MANDIR}/man3
              COMPONENT dev)
    endforeach()
  endforeach()
endfunction()

# Component dev is what a program that uses the library needs.
function(kvs_install)
  if(KVS_MUTATE)
    install(CODE "message(FATAL_ERROR \"a build with KVS_MUTATE is for tests\")")
    return()
  endif()
  install(TARGETS kvstage LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                  COMPONENT dev)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvstage
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          COMPONENT dev FILES_MATCHING PATTERN "*.h")
  # From where kvstage.pc lies to the prefix, so that a copy can be moved and
  # "cmake --install --prefix" may name another one.
  set(_pcdir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH _up ${_pcdir} ${CMAKE_INSTALL_PREFIX})
  set(KVS_PC_PREFIX "\${pcfiledir}/${_up}")
  foreach(_d LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE ${CMAKE_INSTALL_${_d}})
      set(KVS_PC_${_d} ${CMAKE_INSTALL_${_d}})
    else()
      set(KVS_PC_${_d} "\${prefix}/${CMAKE_INSTALL_${_d}}")
    endif()
  endforeach()
  if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    set(KVS_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  endif()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/kvstage.pc.in
                 ${PROJECT_BINARY_DIR}/kvstage.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/kvstage.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
  foreach(_section 1 3 5 7 8)
    file(GLOB _pages CONFIGURE_DEPENDS
         ${PROJECT_SOURCE_DIR}/man/*.${_section})
    if(_section EQUAL 3)
      set(_component COMPONENT dev)
    else()
      set(_component "")
    endif()
    install(FILES ${_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${_section}
            ${_component})
    if(_section EQUAL 3)
      kvs_man_aliases(${_pages})
    endif()
  endforeach()
  foreach(_v PROJECT_SOURCE_DIR PROJECT_BINARY_DIR CMAKE_INSTALL_BINDIR
             CMAKE_INSTALL_SYSCONFDIR)
    install(CODE "set(${_v} \"${${_v}}\")")
  endforeach()
  install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/install_service.cmake)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/kvstaged.conf.example
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
