# SPDX-License-Identifier: Apache-2.0
set(CKPT_ZIG_ARCH aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
