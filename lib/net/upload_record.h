// SPDX-License-Identifier: Apache-2.0
// What is known on this machine of an upload that was begun: a file of lines in
// the staging directory.
//
//   ckpt-upload 1
//   target s3://bucket/new
//   single                a file, not a directory
//   mark 4f0c…            of this upload's objects
//   upload ID FILE        one for each large file
//   publishing            objects of it may be there
#pragma once

#include <map>
#include <string>

namespace ckpt::net {

struct Record {
  std::string target;
  std::string mark;
  std::map<std::string, std::string> uploads = {};  // ids by file
  bool single_file = false;
  bool publishing = false;
};

// Empty if there is no such file.
Record read_record(const std::string& path);
// Throws kIo.
void add_line(const std::string& path, const std::string& line);
// A number that no other upload has.
std::string new_mark();

}  // namespace ckpt::net
