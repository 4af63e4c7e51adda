// SPDX-License-Identifier: Apache-2.0
// What each scheme knows of its own: what stands where, and how bytes of it
// are asked for.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lib/net/http.h"

namespace ckpt::net {

struct Facts {
  bool directory = false;
  uint64_t size = 0;
  Version version = {};
  std::string tag = {};     // differs if the content does
  std::string sha256 = {};  // that the other side promises
  std::string local = {};   // where a copy of it lies
  std::string head = {};    // its first bytes, if the look brought them
};

class Store {
 public:
  virtual ~Store() = default;
  // Nothing if it does not exist. Paths are normal (url.h).
  virtual std::optional<Facts> look(const std::string& path) = 0;
  // The same, asked for again: by default what does not change.
  virtual std::optional<Facts> look_again(const std::string& path) {
    return look(path);
  }
  // Names in it, or nothing if it is not a directory.
  virtual std::optional<std::vector<std::string>> list(
      const std::string& path) = 0;
  // Before all that lies below a path is asked for, folder by folder: one
  // listing may answer for every one of them.
  virtual void look_below(const std::string&) {}
  // For bytes of a file: URL, headers, signature.
  virtual Request request(const std::string& path) = 0;
  // Before several requests for bytes of a file begin together: what they have
  // in common is asked for once. May take a round trip.
  virtual void locate(const std::string&) {}
  // That writes or removes an object, or asks about an upload: `path` is its
  // URL, `query` sorted by name, `sha256` of the body. By default nothing can
  // be written.
  virtual Request write_request(const std::string& path,
                                const std::string& method,
                                const std::string& query,
                                const std::string& sha256);
  // What was looked up may have changed: by this process.
  virtual void forget() {}
  // A reply with bytes came. May throw that it is of another version.
  virtual void arrived(const std::string&, const Response&) {}
  // A request was refused. True if the next one will differ.
  virtual bool refused(const std::string&, const Request&) { return false; }
};

std::unique_ptr<Store> make_web_store();
std::unique_ptr<Store> make_hub_store();
std::unique_ptr<Store> make_s3_store();
std::unique_ptr<Store> make_gcs_store();
std::unique_ptr<Store> make_azure_store();

Store& store_of(const std::string& path);

// User, password and query that were taken out of a URL (take_secrets).
struct Secrets {
  std::string userinfo;
  std::string query;
};
std::optional<Secrets> secrets_of(const std::string& path);
// Some other file beside it has some.
bool has_secrets_beside(const std::string& path);

// Throws an unsafe_error for http:// to another machine.
void check_scheme(const std::string& url, const std::string& path);

// The last component, and what is before it.
std::string last_name(const std::string& path);
std::string folder_of(const std::string& path);
// 403 may stand for what is not there, where listings are forbidden.
bool is_forbidden(const Response& response);
// Of a file that a reader looks for beside another one, which it may read.
Error forbidden_beside(const Request& asked, const Response& response);
// What was looked up is asked for again from here on.
void forget_all();

}  // namespace ckpt::net
