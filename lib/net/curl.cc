// SPDX-License-Identifier: Apache-2.0
#include "lib/net/curl.h"

#include <dlfcn.h>

#include "ckpt/error.h"

namespace ckpt::net {
namespace {

// The same interface, whatever TLS library it was built with.
constexpr const char* kNames[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

void* open_library() {
  for (const char* name : kNames)
    if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  throw resource_error({}, "URLs need libcurl, which can't be opened: {}",
                       ::dlerror())
      .with_hint("install it: apt-get install libcurl4");
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  void* found = ::dlsym(library, name);
  if (!found)
    throw resource_error({}, "this libcurl is too old: it has no {}", name)
        .with_hint("install libcurl 7.75 or later");
  function = reinterpret_cast<Function>(found);
}

Curl load() {
  void* const library = open_library();
  Curl curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_cleanup", curl.easy_cleanup);
  find(library, "curl_easy_reset", curl.easy_reset);
  find(library, "curl_easy_setopt", curl.easy_setopt);
  find(library, "curl_easy_getinfo", curl.easy_getinfo);
  find(library, "curl_easy_strerror", curl.easy_strerror);
  find(library, "curl_slist_append", curl.slist_append);
  find(library, "curl_slist_free_all", curl.slist_free_all);
  find(library, "curl_multi_init", curl.multi_init);
  find(library, "curl_multi_setopt", curl.multi_setopt);
  find(library, "curl_multi_add_handle", curl.multi_add_handle);
  find(library, "curl_multi_remove_handle", curl.multi_remove_handle);
  find(library, "curl_multi_perform", curl.multi_perform);
  find(library, "curl_multi_poll", curl.multi_poll);
  find(library, "curl_multi_wakeup", curl.multi_wakeup);
  find(library, "curl_multi_info_read", curl.multi_info_read);
  curl.global_init(CURL_GLOBAL_DEFAULT);
  return curl;
}

}  // namespace

const Curl& curl() {
  static const Curl all = load();
  return all;
}

}  // namespace ckpt::net
