# SPDX-License-Identifier: Apache-2.0
# libcurl's headers, for URLs as sources. The library itself is opened when the
# first URL is (lib/net/curl.cc), never linked: it brings forty others.
set(CKPT_HAVE_CURL OFF)
if(CKPT_WITH_CURL STREQUAL OFF)
  set(CKPT_CURL_FOUND_AS "off")
else()
  find_path(CKPT_CURL_INCLUDE curl/curl.h
    PATH_SUFFIXES x86_64-linux-gnu aarch64-linux-gnu)
  mark_as_advanced(CKPT_CURL_INCLUDE)
  if(CKPT_CURL_INCLUDE)
    set(CKPT_HAVE_CURL ON)
    file(STRINGS ${CKPT_CURL_INCLUDE}/curl/curlver.h line
      REGEX "^#define LIBCURL_VERSION ")
    string(REGEX MATCH "[0-9][0-9.]*" version "${line}")
    set(CKPT_CURL_FOUND_AS "headers of ${version}")
  else()
    set(CKPT_CURL_FOUND_AS "not found")
    if(CKPT_WITH_CURL STREQUAL ON)
      message(FATAL_ERROR "CKPT_WITH_CURL=ON, but curl/curl.h was not found. "
        "Install libcurl4-openssl-dev, or use AUTO.")
    endif()
  endif()
endif()
