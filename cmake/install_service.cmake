# SPDX-License-Identifier: Apache-2.0
# Runs at the install, whose prefix may not be the one of the build: the unit
# names the program and the settings where they are put now. Settings that are
# there already are the operator's and stay.

set(KVSTAGED_BINDIR ${CMAKE_INSTALL_BINDIR})
if(NOT IS_ABSOLUTE ${KVSTAGED_BINDIR})
  set(KVSTAGED_BINDIR ${CMAKE_INSTALL_PREFIX}/${KVSTAGED_BINDIR})
endif()
set(KVSTAGED_ETC ${CMAKE_INSTALL_SYSCONFDIR})
if(NOT IS_ABSOLUTE ${KVSTAGED_ETC})
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(KVSTAGED_ETC /${KVSTAGED_ETC})
  else()
    set(KVSTAGED_ETC ${CMAKE_INSTALL_PREFIX}/${KVSTAGED_ETC})
  endif()
endif()

configure_file(${PROJECT_SOURCE_DIR}/tools/systemd/kvstaged.service.in
               ${PROJECT_BINARY_DIR}/kvstaged.service @ONLY)
file(INSTALL ${PROJECT_BINARY_DIR}/kvstaged.service
     DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system)
if(NOT EXISTS $ENV{DESTDIR}${KVSTAGED_ETC}/kvstage/kvstaged.conf)
  file(
    INSTALL ${PROJECT_SOURCE_DIR}/tools/kvstaged.conf.example
    DESTINATION ${KVSTAGED_ETC}/kvstage
    RENAME kvstaged.conf)
endif()
