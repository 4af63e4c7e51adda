// SPDX-License-Identifier: Apache-2.0
// A build without libcurl's headers: URLs are recognised and refused.
#include "ckpt/error.h"
#include "lib/io/names.h"
#include "lib/io/remote.h"
#include "lib/io/remote_below.h"
#include "lib/io/upload.h"

namespace ckpt::io {
namespace {

[[noreturn]] void refuse(const std::string& url) {
  throw resource_error({url, {}}, "this ckpt was built without URLs")
      .with_hint("install libcurl4-openssl-dev and build it again");
}

}  // namespace

OpenedRemote open_remote(const std::string& url) { refuse(url); }
std::optional<struct stat> stat_remote(const std::string& url) { refuse(url); }
std::optional<struct stat> stat_remote_again(const std::string& url) {
  refuse(url);
}
void forget_remote() {}
std::unordered_map<std::string, struct stat> stat_remote_again(
    const std::vector<std::string>&) {
  return {};
}
std::vector<std::string> list_remote(const std::string& url) { refuse(url); }
std::vector<std::string> names_in_remote(const std::string& url) {
  refuse(url);
}
void look_below_remote(const std::string& url) { refuse(url); }
void look_beside_remote(const std::string&) {}
RemoteFacts remote_facts(const std::string& url) { refuse(url); }
bool has_etag_of(const std::string& url, const Handle&) { refuse(url); }
std::string remote_name(const std::string& url) { refuse(url); }
std::string take_secrets(const std::string& url) {
  return url.substr(0, url.find('?'));
}
uint64_t share_remote_memory(uint64_t) { return 0; }
uint64_t remote_memory() { return 0; }
std::string remote_problem() {
  return "this ckpt was built without libcurl's headers";
}
RemoteTraffic remote_traffic() { return {}; }

Standing look_at_target(const std::string& url) { refuse(url); }
std::unique_ptr<Upload> begin_upload(const std::string&,
                                     const std::string& target,
                                     const std::vector<std::string>&,
                                     const UploadOptions&) {
  refuse(target);
}
void abandon_upload(const std::string&) noexcept {}
bool is_publishing(const std::string&, const std::string&) { return false; }
UploadCost upload_cost(uint64_t) { return {}; }

}  // namespace ckpt::io
