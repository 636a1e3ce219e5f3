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

# The driver is opened at run time and declared by ourselves, so the backend is
# built unless it is off. Only the kernels want a compiler: nvcc of a toolkit of
# 13.0 or later, else clang, which makes PTX for the driver to compile. Sets
# KVS_HAVE_CUDA, KVS_CUDA_COMPILER (nvcc, clang or nothing) and its program
# KVS_CUDA_PROGRAM; KVS_CUDA_INCLUDE where the toolkit's headers are.
function(kvs_find_cuda)
  set(KVS_CUDA_COMPILER "" PARENT_SCOPE)
  set(KVS_HAVE_CUDA OFF PARENT_SCOPE)
  if(KVS_CUDA STREQUAL "off")
    message(STATUS "CUDA: off (asked for)")
    return()
  endif()
  set(KVS_HAVE_CUDA ON PARENT_SCOPE)
  find_program(KVS_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME
               PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(KVS_NVCC)
    execute_process(COMMAND ${KVS_NVCC} --version OUTPUT_VARIABLE _out
                    ERROR_QUIET)
    string(REGEX MATCH "release ([0-9.]+)" _ "${_out}")
    set(_version ${CMAKE_MATCH_1})
    if(_version AND NOT _version VERSION_LESS 13.0)
      get_filename_component(_bin ${KVS_NVCC} REALPATH)
      get_filename_component(_root ${_bin}/../.. ABSOLUTE)
      set(KVS_CUDA_COMPILER nvcc PARENT_SCOPE)
      set(KVS_CUDA_PROGRAM ${KVS_NVCC} PARENT_SCOPE)
      set(KVS_CUDA_HOW "nvcc ${_version}" PARENT_SCOPE)
      if(EXISTS ${_root}/include/cuda.h)
        set(KVS_CUDA_INCLUDE ${_root}/include PARENT_SCOPE)
      endif()
      message(STATUS "CUDA: kernels by nvcc ${_version}")
      return()
    endif()
    message(STATUS "CUDA: skipped the toolkit ${_version} (13.0 is needed)")
  else()
    message(STATUS "CUDA: skipped the toolkit (there is no nvcc)")
  endif()
  find_program(KVS_CLANG_CUDA NAMES clang clang-14)
  if(KVS_CLANG_CUDA)
    execute_process(
      COMMAND ${KVS_CLANG_CUDA} -x cuda --cuda-device-only
              --cuda-gpu-arch=sm_80 -nocudainc -nocudalib -ffreestanding -S
              -Wno-unknown-cuda-version -I${PROJECT_SOURCE_DIR} -o
              ${PROJECT_BINARY_DIR}/kvs_clang_cuda.ptx
              ${PROJECT_SOURCE_DIR}/gpu/cuda/scatter.cu
      RESULT_VARIABLE _r OUTPUT_QUIET ERROR_QUIET)
    if(_r EQUAL 0)
      set(KVS_CUDA_COMPILER clang PARENT_SCOPE)
      set(KVS_CUDA_PROGRAM ${KVS_CLANG_CUDA} PARENT_SCOPE)
      set(KVS_CUDA_HOW "clang, PTX" PARENT_SCOPE)
      message(STATUS "CUDA: kernels by clang, as PTX")
      return()
    endif()
  endif()
  if(KVS_CUDA STREQUAL "on")
    message(FATAL_ERROR "KVS_CUDA=on: neither nvcc of 13.0 or later nor a "
                        "clang that makes PTX: no kernels")
  endif()
  message(STATUS "CUDA: no kernels (no clang that makes PTX either)")
endfunction()

kvs_find_cuda()

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
