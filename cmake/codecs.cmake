# SPDX-License-Identifier: Apache-2.0
# Decompressors that only some checkpoints need: zarr chunks, DCP items. For
# each that is found: CKPT_HAVE_<NAME>, CKPT_<NAME>_TARGET. zlib is always there.
find_package(BZip2 QUIET)
set(CKPT_HAVE_BZIP2 ${BZIP2_FOUND})
set(CKPT_BZIP2_TARGET BZip2::BZip2)

# Its CMake package is not in all distributions, its pkg-config file is.
pkg_check_modules(zstd QUIET IMPORTED_TARGET libzstd)
set(CKPT_HAVE_ZSTD ${zstd_FOUND})
set(CKPT_ZSTD_TARGET PkgConfig::zstd)

pkg_check_modules(blosc QUIET IMPORTED_TARGET blosc)
set(CKPT_HAVE_BLOSC ${blosc_FOUND})
set(CKPT_BLOSC_TARGET PkgConfig::blosc)

# For whole files that are packed with xz, which scan looks into.
pkg_check_modules(lzma QUIET IMPORTED_TARGET liblzma)
set(CKPT_HAVE_LZMA ${lzma_FOUND})
set(CKPT_LZMA_TARGET PkgConfig::lzma)

# For the table at the end of the configure step.
set(CKPT_CODECS "zlib")
set(CKPT_CODECS_MISSING "")
foreach(codec BZIP2 ZSTD BLOSC LZMA)
  string(TOLOWER ${codec} lower)
  if(CKPT_HAVE_${codec})
    string(APPEND CKPT_CODECS " ${lower}")
  else()
    string(APPEND CKPT_CODECS_MISSING " ${lower}")
  endif()
endforeach()
if(CKPT_CODECS_MISSING)
  string(APPEND CKPT_CODECS "; not found:${CKPT_CODECS_MISSING}")
endif()
