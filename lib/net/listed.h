// SPDX-License-Identifier: Apache-2.0
// Stores whose objects are found by listing: a directory is the prefix that
// keys share, up to a slash. One listing answers for everything in it: sizes,
// versions, what is absent.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/error.h"
#include "lib/net/store.h"

namespace ckpt::net {

// s3://BUCKET/KEY
struct Place {
  std::string bucket;
  std::string key;

  // The prefix of what is in it as in a directory.
  std::string prefix() const { return key.empty() ? "" : key + "/"; }
};
Place parse_place(const std::string& path);

struct Listing {
  std::map<std::string, Facts> entries;  // by name
  // Names that no path has, and those of an object that is a directory, too:
  // thrown to whoever wants all that is in it, or that name. A checkpoint is
  // read though a key somewhere beside it is odd.
  std::map<std::string, Error> odd;

  // Null if there is none; throws if the name is odd.
  const Facts* find(const std::string& name) const;
};
using Folders = std::map<std::string, Listing>;  // by path

class ListedStore : public Store {
 public:
  std::optional<Facts> look(const std::string& path) override;
  std::optional<Facts> look_again(const std::string& path) override {
    return head(path, false);
  }
  std::map<std::string, Facts> look_at_all_again(
      const std::vector<std::string>& paths) override;
  std::optional<std::vector<std::string>> list(
      const std::string& path) override;
  std::optional<std::vector<std::string>> names(
      const std::string& path) override;
  void look_below(const std::string& path) override;
  void look_beside(const std::string& path) override;
  void forget() override;
  void forget_at(const std::string& path) override;

 protected:
  // All pages of the listing; nullopt if nothing is below it, or if it can't be
  // listed.
  virtual std::optional<Listing> list_all(const std::string& path) = 0;
  // The same for every directory below it; empty if each needs a listing of its
  // own.
  virtual Folders list_below(const std::string&) { return {}; }
  // The same if one page holds all of it; else nullopt.
  virtual std::optional<Folders> list_small(const std::string&) {
    return std::nullopt;
  }
  // The same if so many pages do.
  virtual std::optional<Folders> list_within(const std::string&,
                                             size_t /*pages*/) {
    return std::nullopt;
  }
  // Asks for the first page of list_all(folder), and for that of
  // list_small(path) in it, for whoever wants them next. Doesn't wait.
  virtual void begin_listings(const std::string& /*folder*/,
                              const std::string& /*path*/) {}
  // What list_all(folder) says, if that was begun and one page holds all of it;
  // else nullopt.
  virtual std::optional<std::optional<Listing>> list_begun(const std::string&) {
    return std::nullopt;
  }
  // What list_all(path) says now, or list_below(path) of all `below`, where
  // these keys were, in order and with a slash for directories: in fewer round
  // trips, if it can. Empty if it can't be listed.
  virtual Folders list_again(const std::string& path,
                             const std::vector<std::string>& keys, bool below);
  // An object, asked for by its name. `beside` others that no listing has.
  virtual std::optional<Facts> head(const std::string& path, bool beside) = 0;

 private:
  void tree_again(const std::vector<std::string>& folders, size_t requests,
                  Folders& now);
  std::optional<std::vector<std::string>> keys_below(const std::string& root);
  const Listing* listing(const std::string& path);
  bool list_around(const std::string& path);
  const Listing* keep(const std::string& path, std::optional<Listing> made);
  void keep(Folders&& found);
  std::optional<Facts> look_both(const std::string& path);
  bool is_below_object(std::string path) const;  // with the mutex held
  bool knows(const std::string& path);
  std::optional<std::optional<Facts>> look_in_listings(const std::string& path);
  std::optional<Facts> look_alone(const std::string& path);

  std::mutex around_;  // of list_around(), before the other
  std::mutex mutex_;
  std::map<std::string, std::optional<Listing>> listings_;
  // How many directories in one were listed one by one.
  std::map<std::string, size_t> one_by_one_;
  std::set<std::string> begun_;  // directories of begin_listings()
  std::set<std::string> alone_;  // objects that no listing has
};

// Throws if a listing that is cut after so many pages says nothing new of where
// it goes on, or would go on without end.
void check_marker(const std::string& path, const std::string& before,
                  const std::string& next, size_t pages);
// Throws if a listing has more names than a checkpoint can have files.
void check_names(const std::string& path, size_t names);
// Adds an object of a listing; the directory itself and anything deeper are
// left out. Odd are names that no path has ("..", "a//b"), and those that an
// object and a directory have.
void add_object(const std::string& folder, std::string name, uint64_t size,
                std::string etag, Listing& listing);
void add_folder(const std::string& folder, std::string name, Listing& listing);
// Adds an object at any depth below `root` to the listings of the directories
// above it. An odd name is one of all of them.
void add_below(const std::string& root, std::string_view name, uint64_t size,
               const std::string& etag, Folders& folders);
// Nothing if the reply says that it is not there.
std::optional<Facts> facts_of_head(const Request& asked,
                                   const Response& response, bool beside);
Facts facts_of_reply(const std::string& path, const Response& response);

// Throws where there is none: nothing would be read as an empty file.
uint64_t size_number(const std::string& path, const std::string& text);

}  // namespace ckpt::net
