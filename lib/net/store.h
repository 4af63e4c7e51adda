// SPDX-License-Identifier: Apache-2.0
// What is specific to each scheme: what is where, and how to request its bytes.
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
  std::string tag = {};     // differs if the content differs; "" if unknown
  std::string sha256 = {};  // as the other side promises
  std::string local = {};   // the path of a copy of it
  std::string head = {};    // its first bytes, if the look fetched them
  bool ranges = true;       // the server sends parts
};

class Store {
 public:
  virtual ~Store() = default;
  // nullopt if it does not exist. Paths are normal (url.h).
  virtual std::optional<Facts> look(const std::string& path) = 0;
  // The same, asked again; by default for what does not change.
  virtual std::optional<Facts> look_again(const std::string& path) {
    return look(path);
  }
  // The same of many files, as far as a few requests can tell.
  virtual std::map<std::string, Facts> look_at_all_again(
      const std::vector<std::string>&) {
    return {};
  }
  // The names in it, or nullopt if it is not a directory.
  virtual std::optional<std::vector<std::string>> list(
      const std::string& path) = 0;
  // The same without names that no path has; list() throws for those.
  virtual std::optional<std::vector<std::string>> names(
      const std::string& path) {
    return list(path);
  }
  // Called before everything below a path is asked for, folder by folder: one
  // listing may answer for all of them.
  virtual void look_below(const std::string&) {}
  // Called before a path is opened as a checkpoint: readers look at names
  // beside it, too. May begin what will tell; doesn't wait.
  virtual void look_beside(const std::string&) {}
  // A request for bytes of a file: URL, headers, signature.
  virtual Request request(const std::string& path) = 0;
  // Called before several requests for bytes of a file begin together, to ask
  // once for what they have in common. May take a round trip.
  virtual void locate(const std::string&) {}
  // A request that writes or removes an object, or asks about an upload: `path`
  // is its URL, `query` is sorted by name, `sha256` is the body's. By default
  // nothing can be written.
  virtual Request write_request(const std::string& path,
                                const std::string& method,
                                const std::string& query,
                                const std::string& sha256);
  // What was looked up may have been changed by this process.
  virtual void forget() {}
  // The same of a path, what is below it, and the directories that it is in.
  virtual void forget_at(const std::string&) { forget(); }
  // A reply with bytes arrived. May throw that it is another version.
  virtual void arrived(const std::string&, const Response&) {}
  // A request was refused as if its keys had expired. If there are others by
  // now, takes those and returns true.
  virtual bool renew(Request&, const Response&) { return false; }
  // A request was refused. Returns true if the next one will differ.
  virtual bool refused(const std::string&, const Request&, const Response&) {
    return false;
  }
};

// Sends a request; again if its keys have expired and there are others.
Response fetch_renewed(Store& store, Request asked);

std::unique_ptr<Store> make_web_store();
std::unique_ptr<Store> make_hub_store();
std::unique_ptr<Store> make_s3_store();
std::unique_ptr<Store> make_gcs_store();
std::unique_ptr<Store> make_azure_store();

Store& store_of(const std::string& path);

// The user, password and query taken out of a URL (take_secrets).
struct Secrets {
  std::string userinfo;
  std::string query;
};
std::optional<Secrets> secrets_of(const std::string& path);
// True if another file beside it has secrets.
bool has_secrets_beside(const std::string& path);

// Throws unsafe_error for http:// to another machine.
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
// So is what was looked up of a target and the directories that it is in. What
// is known of a source stays: each of its files would be asked for again,
// alone.
void forget_at(const std::string& path);

// True for a path, what is below it, and the directories that it is in.
bool is_along(const std::string& path, const std::string& other);

}  // namespace ckpt::net
