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

macro(ckpt_find_cuda)
  find_package(CUDAToolkit QUIET)
  set(CKPT_HAVE_CUDA ${CUDAToolkit_FOUND})
  set(CKPT_CUDA_FOUND_AS "${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR}")
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
  if(CKPT_TESTS AND EXISTS ${CKPT_PYTHON})
    message(STATUS "  tests     C++, and Python with ${CKPT_PYTHON}")
  elseif(CKPT_TESTS)
    message(STATUS "  tests     C++ only; scripts/test.sh adds the Python ones")
  else()
    message(STATUS "  tests     off")
  endif()
  message(STATUS "")
endfunction()
