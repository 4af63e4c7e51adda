# SPDX-License-Identifier: Apache-2.0
# The optional packages: libtorch, MPI, CUDA. For each, CKPT_WITH_<NAME> is
#   AUTO  use it if it is there      ON  fail if it is not      OFF  don't look
# and this file sets CKPT_HAVE_<NAME> and CKPT_<NAME>_FOUND_AS, a phrase for
# the table at the end of the configure step.

# Torch as the pip wheel ships it. Sets the target ckpt::libtorch.
#
# find_package(Torch) is not used: for a wheel that was built with CUDA it
# fails unless the CUDA toolkit is installed, and casts need the CPU part only.
macro(ckpt_find_torch)
  set(CKPT_HAVE_TORCH OFF)
  file(GLOB hints ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  foreach(prefix ${CMAKE_PREFIX_PATH} ${Torch_DIR})
    # torch.utils.cmake_prefix_path is <torch>/share/cmake.
    list(APPEND hints ${prefix}/../.. ${prefix}/../../..)
  endforeach()
  find_path(CKPT_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h
    HINTS ${hints} PATH_SUFFIXES include)
  find_library(CKPT_TORCH_CPU torch_cpu HINTS ${hints} PATH_SUFFIXES lib)
  find_library(CKPT_TORCH_C10 c10 HINTS ${hints} PATH_SUFFIXES lib)
  mark_as_advanced(CKPT_TORCH_INCLUDE CKPT_TORCH_CPU CKPT_TORCH_C10)
  if(CKPT_TORCH_INCLUDE AND CKPT_TORCH_CPU AND CKPT_TORCH_C10)
    set(CKPT_HAVE_TORCH ON)
    get_filename_component(where ${CKPT_TORCH_CPU} DIRECTORY)
    set(CKPT_TORCH_VERSION "?")
    if(EXISTS ${where}/../version.py)
      file(STRINGS ${where}/../version.py line REGEX "^__version__ = ")
      string(REGEX MATCH "[0-9][^']*" CKPT_TORCH_VERSION "${line}")
    endif()
    set(CKPT_TORCH_FOUND_AS "${CKPT_TORCH_VERSION} in ${where}")
    add_library(ckpt_libtorch INTERFACE)
    add_library(ckpt::libtorch ALIAS ckpt_libtorch)
    target_include_directories(ckpt_libtorch SYSTEM INTERFACE
      ${CKPT_TORCH_INCLUDE} ${CKPT_TORCH_INCLUDE}/torch/csrc/api/include)
    target_link_libraries(ckpt_libtorch INTERFACE
      ${CKPT_TORCH_CPU} ${CKPT_TORCH_C10})
  endif()
endmacro()

macro(ckpt_find_mpi)
  find_package(MPI QUIET COMPONENTS CXX)
  set(CKPT_HAVE_MPI ${MPI_CXX_FOUND})
  set(CKPT_MPI_FOUND_AS "MPI-${MPI_CXX_VERSION} ${MPI_CXX_COMPILER}")
endmacro()

# nvcc, and NCCL as a distribution or the pip wheel nvidia-nccl-cu13 has it.
# The GPUs to compile for are CMAKE_CUDA_ARCHITECTURES: A100, H100 and B200
# unless given; what is newer compiles the last one's PTX when it starts.
macro(ckpt_find_cuda)
  set(CKPT_HAVE_CUDA OFF)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CKPT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH
      PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(CKPT_NVCC)
    if(CKPT_NVCC)
      set(CMAKE_CUDA_COMPILER ${CKPT_NVCC})
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
    set(CKPT_HAVE_CUDA ON)
    if(CKPT_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CKPT_CCACHE})
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc speaks C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CKPT_CUDA_FOUND_AS "${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR}")
    ckpt_find_nccl()
    string(APPEND CKPT_CUDA_FOUND_AS ", ${CKPT_NCCL_FOUND_AS}")
  endif()
endmacro()

# Sets the target ckpt::nccl if it is there.
macro(ckpt_find_nccl)
  file(GLOB hints
    ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl)
  find_path(CKPT_NCCL_INCLUDE nccl.h HINTS ${hints} PATH_SUFFIXES include)
  find_library(CKPT_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${hints}
    PATH_SUFFIXES lib)
  mark_as_advanced(CKPT_NCCL_INCLUDE CKPT_NCCL_LIBRARY)
  set(CKPT_NCCL_FOUND_AS "without NCCL (pip install nvidia-nccl-cu13)")
  if(CKPT_NCCL_INCLUDE AND CKPT_NCCL_LIBRARY)
    file(STRINGS ${CKPT_NCCL_INCLUDE}/nccl.h lines
      REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
    string(REPLACE ";" "." version "${version}")
    set(CKPT_NCCL_FOUND_AS "NCCL ${version}")
    add_library(ckpt_nccl INTERFACE)
    add_library(ckpt::nccl ALIAS ckpt_nccl)
    target_include_directories(ckpt_nccl SYSTEM INTERFACE
      ${CKPT_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(ckpt_nccl INTERFACE ${CKPT_NCCL_LIBRARY})
  endif()
endmacro()

foreach(module TORCH MPI CUDA)
  string(TOLOWER ${module} lower)
  set(CKPT_HAVE_${module} OFF)
  if(CKPT_WITH_${module} STREQUAL OFF)
    set(CKPT_${module}_FOUND_AS "off")
    continue()
  endif()
  cmake_language(CALL ckpt_find_${lower})
  if(NOT CKPT_HAVE_${module})
    set(CKPT_${module}_FOUND_AS "not found")
    if(CKPT_WITH_${module} STREQUAL ON)
      message(FATAL_ERROR "CKPT_WITH_${module}=ON, but ${lower} was not found. "
        "Give its place with CMAKE_PREFIX_PATH, or use AUTO.")
    endif()
  endif()
endforeach()

# ckpt_module_path(TARGET [DIRECTORY...]): where a module's libraries are, for
# the build and for what is installed alike. Were they to differ, CMake would
# pad the shorter list with ":", and the loader takes what is empty between two
# of them for the current directory.
function(ckpt_module_path target)
  set(paths "$ORIGIN" ${ARGN})
  set_target_properties(${target} PROPERTIES
    BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "${paths}"
    INSTALL_RPATH_USE_LINK_PATH ON)
endfunction()

# One line per thing that may or may not be there.
function(ckpt_summary)
  message(STATUS "")
  message(STATUS "ckpt ${PROJECT_VERSION}")
  message(STATUS "  compiler  ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${CKPT_SANITIZE}")
  message(STATUS "  codecs    ${CKPT_CODECS}")
  foreach(module TORCH MPI CUDA)
    string(TOLOWER ${module} lower)
    string(SUBSTRING "${lower}        " 0 10 label)
    if(TARGET ckpt_${lower})
      set(built "")
    else()
      set(built "; module not built yet")
    endif()
    message(STATUS "  ${label}${CKPT_${module}_FOUND_AS}${built}")
  endforeach()
  message(STATUS "  curl      ${CKPT_CURL_FOUND_AS}")
  if(CKPT_TESTS AND EXISTS ${CKPT_PYTHON})
    message(STATUS "  tests     C++, and Python with ${CKPT_PYTHON}")
  elseif(CKPT_TESTS)
    message(STATUS "  tests     C++ only; scripts/test.sh adds the Python ones")
  else()
    message(STATUS "  tests     off")
  endif()
  message(STATUS "")
endfunction()
