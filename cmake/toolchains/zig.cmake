# SPDX-License-Identifier: Apache-2.0
# zig's clang, libc++ and glibc stubs: what is linked runs wherever that
# version of glibc or a newer one is. A zig-TARGET.cmake names the processor;
# packaging/deps.sh has made the libraries that are found here.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${CKPT_ZIG_ARCH})

get_filename_component(ckpt_root ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
set(ckpt_tools ${ckpt_root}/packaging)
set(ckpt_target ${CKPT_ZIG_ARCH}-linux-gnu.2.28)
set(CMAKE_C_COMPILER ${ckpt_tools}/zig-cc)
set(CMAKE_CXX_COMPILER ${ckpt_tools}/zig-c++)
set(CMAKE_AR ${ckpt_tools}/zig-ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${ckpt_tools}/zig-ranlib CACHE FILEPATH "")
set(CMAKE_C_COMPILER_TARGET ${ckpt_target})
set(CMAKE_CXX_COMPILER_TARGET ${ckpt_target})

# Found there and nowhere else: no library of this machine slips in.
if(DEFINED ENV{CKPT_DEPS})
  set(ckpt_deps $ENV{CKPT_DEPS})
else()
  set(ckpt_deps ${ckpt_root}/.cache/deps/${CKPT_ZIG_ARCH})
endif()
set(CMAKE_FIND_ROOT_PATH ${ckpt_deps})
set(CMAKE_PREFIX_PATH ${ckpt_deps})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${ckpt_deps}/lib/pkgconfig)
set(ENV{PKG_CONFIG_PATH} "")

# The same bytes wherever the tree lies. zig means -g unless told otherwise.
set(ckpt_flags "-g0 -ffile-prefix-map=${ckpt_root}/= -ffunction-sections -fdata-sections")
set(CMAKE_C_FLAGS_INIT "${ckpt_flags}")
set(CMAKE_CXX_FLAGS_INIT "${ckpt_flags}")

# zig makes -O2 of -O1; this is 15 % smaller.
set(CKPT_ONCE_LEVEL -Os)

# What runs the program that was built, to make its man pages.
if(CKPT_ZIG_ARCH STREQUAL CMAKE_HOST_SYSTEM_PROCESSOR)
  set(CMAKE_CROSSCOMPILING_EMULATOR env)
else()
  find_program(CKPT_QEMU qemu-${CKPT_ZIG_ARCH}-static)
  if(CKPT_QEMU)
    # The glibc of Debian's libc6-arm64-cross.
    set(CMAKE_CROSSCOMPILING_EMULATOR
      ${CKPT_QEMU};-L;/usr/${CKPT_ZIG_ARCH}-linux-gnu)
  endif()
endif()
