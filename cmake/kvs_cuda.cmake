# SPDX-License-Identifier: Apache-2.0
# kvs_cuda_image(SOURCE.c KERNELS.cu): compiles the kernels and names the result
# to SOURCE.c, which has it in its data, as KVS_CUDA_IMAGE. What compiles is
# found in kvs_options.cmake; without anything SOURCE.c is left as it is.
function(kvs_cuda_image source kernels)
  if(NOT KVS_CUDA_COMPILER)
    return()
  endif()
  get_filename_component(_name ${kernels} NAME_WE)
  set(_image ${CMAKE_CURRENT_BINARY_DIR}/${_name}.image)
  if(KVS_CUDA_COMPILER STREQUAL "nvcc")
    set(_flags -fatbin -gencode=arch=compute_80,code=sm_80
               -gencode=arch=compute_90,code=sm_90
               -gencode=arch=compute_100,code=sm_100
               -gencode=arch=compute_80,code=compute_80)
    set(_what "for sm_80, sm_90, sm_100, and PTX")
  else()
    set(_flags -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc
               -nocudalib -ffreestanding -O3 -S -Wno-unknown-cuda-version)
    set(_what "as PTX")
  endif()
  add_custom_command(
    OUTPUT ${_image}
    COMMAND ${KVS_CUDA_PROGRAM} ${_flags} -I${PROJECT_SOURCE_DIR} -o ${_image}
            ${CMAKE_CURRENT_SOURCE_DIR}/${kernels}
    DEPENDS ${kernels} ${PROJECT_SOURCE_DIR}/gpu/scatter.h
    COMMENT "Kernels of ${kernels} ${_what}")
  set_source_files_properties(
    ${source}
    PROPERTIES OBJECT_DEPENDS ${_image} COMPILE_DEFINITIONS
               "KVS_CUDA_IMAGE=\"${_image}\";KVS_CUDA_HOW=\"${KVS_CUDA_HOW}\"")
endfunction()
