# SPDX-License-Identifier: Apache-2.0
# Build options. Every optional part is auto, on or off; an absent part is a
# stub that answers -EOPNOTSUPP, so no caller carries an #ifdef.

find_package(PkgConfig REQUIRED)

option(KVS_WERROR "Treat warnings as errors (CI)" OFF)
option(KVS_TESTS "Build the tests" ON)
option(KVS_FUZZ "Build the libFuzzer targets (clang only)" OFF)
set(KVS_FUZZ_SECONDS 10 CACHE STRING "How long each fuzz target searches")
option(KVS_MUTATE "Compile switches that take safety rules out (tests)" OFF)
set(KVS_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

foreach(_part CUDA VERBS IO_URING HWLOC)
  set(KVS_${_part} auto CACHE STRING "Optional part: auto, on or off")
  set_property(CACHE KVS_${_part} PROPERTY STRINGS auto on off)
  if(NOT KVS_${_part} MATCHES "^(auto|on|off)$")
    message(FATAL_ERROR "KVS_${_part}=${KVS_${_part}}: not auto, on or off")
  endif()
endforeach()

# kvs_optional(PART pkgconfig-module)
# Sets KVS_HAVE_<PART> and, when found, the target PkgConfig::<PART>.
function(kvs_optional part module)
  if(KVS_${part} STREQUAL "off")
    set(KVS_HAVE_${part} OFF PARENT_SCOPE)
    message(STATUS "${part}: off (asked for)")
    return()
  endif()
  if(KVS_${part} STREQUAL "on")
    pkg_check_modules(${part} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  else()
    pkg_check_modules(${part} IMPORTED_TARGET GLOBAL ${module})
  endif()
  set(KVS_HAVE_${part} ${${part}_FOUND} PARENT_SCOPE)
  if(${part}_FOUND)
    message(STATUS "${part}: ${module} ${${part}_VERSION}")
  else()
    message(STATUS "${part}: not found, stub built")
  endif()
endfunction()

kvs_optional(IO_URING liburing)
kvs_optional(HWLOC hwloc)
kvs_optional(VERBS libibverbs)

# It does not exist yet: the option is accepted so that scripts can already
# name it, and "on" says plainly that it cannot be had.
function(kvs_not_yet part what)
  if(KVS_${part} STREQUAL "on")
    message(FATAL_ERROR "KVS_${part}=on: ${what} does not exist yet")
  endif()
  message(STATUS "${part}: not built yet")
endfunction()

kvs_not_yet(CUDA "the cuda copy backend")

pkg_check_modules(NUMA REQUIRED IMPORTED_TARGET GLOBAL numa)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET GLOBAL jansson)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET GLOBAL libisal)
pkg_check_modules(DEFLATE REQUIRED IMPORTED_TARGET GLOBAL libdeflate)
pkg_check_modules(INIH REQUIRED IMPORTED_TARGET GLOBAL inih)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET GLOBAL libsodium)
pkg_check_modules(EVENT REQUIRED IMPORTED_TARGET GLOBAL libevent_core
                  libevent_extra)
find_package(Threads REQUIRED)

add_library(kvs_flags INTERFACE)
target_compile_definitions(kvs_flags INTERFACE _GNU_SOURCE
                           KVS_VERSION="${PROJECT_VERSION}")
target_include_directories(kvs_flags INTERFACE ${PROJECT_SOURCE_DIR}
                           ${PROJECT_SOURCE_DIR}/include)
target_compile_options(
  kvs_flags
  INTERFACE -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes
            -Wswitch-enum -Wvla -Wpointer-arith -Wwrite-strings -Wundef
            -fno-common -fvisibility=hidden)
if(KVS_WERROR)
  target_compile_options(kvs_flags INTERFACE -Werror)
endif()
if(KVS_SANITIZE)
  target_compile_options(
    kvs_flags INTERFACE -fsanitize=${KVS_SANITIZE} -fno-omit-frame-pointer
                        -fno-sanitize-recover=all)
  target_link_options(kvs_flags INTERFACE -fsanitize=${KVS_SANITIZE})
endif()
if(KVS_MUTATE)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" _type)
  if(_type STREQUAL "RELEASE" OR "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${_type}}"
                                 MATCHES "NDEBUG")
    message(FATAL_ERROR "KVS_MUTATE takes safety rules out: not in a release")
  endif()
  target_compile_definitions(kvs_flags INTERFACE KVS_MUTATE)
endif()
target_link_libraries(kvs_flags INTERFACE Threads::Threads)
