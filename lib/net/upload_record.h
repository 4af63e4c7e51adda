// SPDX-License-Identifier: Apache-2.0
// What this machine knows of an upload that was begun: a file of lines in the
// staging directory.
//
//   ckpt-upload 1
//   target s3://bucket/new
//   single                a file, not a directory
//   mark 4f0c…            of this upload's objects
//   upload ID FILE        one for each large file
//   publishing            objects of it may be there
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lib/net/upload_sums.h"

namespace ckpt::net {

// The server confirmed that it has the part; its local bytes may be gone.
struct SentPart {
  std::string id;  // of the upload
  Sums sums;
  std::string etag;
};

struct Record {
  std::string target;
  std::string mark;
  std::map<std::string, std::string> uploads = {};                // ids by file
  std::map<std::string, std::map<uint64_t, SentPart>> sent = {};  // from 1
  uint64_t part_mib =
      0;  // the part size they were cut with; 0: nothing was cut
  bool single_file = false;
  bool publishing = false;
};

// Empty if the file does not exist.
Record read_record(const std::string& path);
// Throws kIo.
void add_line(const std::string& path, const std::string& line);
// A number that no other upload has.
void add_sent(const std::string& path, const std::string& file, uint64_t number,
              const SentPart& part);
std::string new_mark();

}  // namespace ckpt::net
