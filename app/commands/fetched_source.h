// SPDX-License-Identifier: Apache-2.0
// A checkpoint at a URL, fetched to files beside DST for a command that reads
// it more than once.
//
//   .NAME.ckpt-source/       its files; .ckpt-fetch in it while they come
//   .NAME.ckpt-source.list   when all have come: their versions
#pragma once

#include <string>

#include "app/command.h"
#include "ckpt/error.h"

namespace ckpt::app {

class FetchedSource {
 public:
  // Fetches what is not there from an earlier run of the same versions.
  FetchedSource(std::string url, const std::string& target,
                const OutputOptions& output);

  const std::string& path() const { return path_; }
  // The directory of the copies.
  const std::string& folder() const { return folder_; }
  // Name the URL where the copy was named.
  Error named(const Error& error) const;
  std::string shown(std::string text) const;
  void remove() const;

 private:
  const std::string url_;
  std::string folder_;
  std::string path_;  // the folder, or the one file in it
};

}  // namespace ckpt::app
