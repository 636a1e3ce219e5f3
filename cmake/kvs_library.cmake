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
  endforeach()
  install(FILES ${PROJECT_SOURCE_DIR}/tools/systemd/kvstaged.service
          DESTINATION lib/systemd/system)
  install(FILES ${PROJECT_SOURCE_DIR}/tools/kvstaged.conf.example
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
