// SPDX-License-Identifier: Apache-2.0
// How `ckpt fetch` and `ckpt sync` copy the files of a list: here.cc to files
// on this machine, there.cc to objects below s3:// or gs://.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "containers/sums/sums.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/progress.h"

namespace ckpt::library {

struct FetchFile {
  std::string path;  // below the target
  std::string url;
  uint64_t bytes = 0;
  std::string sha256 = {};  // that the other side promises; "" if none
  std::string tag = {};     // of its version: "SIZE HASH"
  bool versioned = true;    // else another version may have the same tag
  bool ranges = true;       // the server sends parts of it
  std::vector<sums::Sum> sums = {};  // by lists that lie beside it there
};

// What of a directory is no file to be copied.
struct FetchOdd {
  std::string path;  // below the source
  std::string why;
};

struct FetchJob {
  std::string target;
  bool single = false;     // one file, not a directory
  bool sync = true;        // wait for the disk
  bool overwrite = false;  // files that differ, once the new ones are whole
  bool verify = false;     // read what stands there once more
  bool paced = false;      // by progress: few requests at a time, in order
  std::vector<FetchFile> files;
  // Of a source on this machine: links to directories, and what is neither
  // file nor directory.
  std::vector<std::string> links;
  std::vector<FetchOdd> odd;
  Progress progress;
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> warn = {};

  std::atomic<uint64_t> copying = 0;  // files at a time
  std::atomic<uint64_t> fetched = 0;  // bytes
  std::atomic<uint64_t> checked = 0;  // files with the promised sha256
  std::atomic<uint64_t> listed = 0;   // files with a checksum that a list has
};

// True for a path that a glob of `include` matches (or any, if there are none)
// and none of `exclude`.
std::function<bool(const std::string& path)> wanted(
    const std::vector<std::string>& include,
    const std::vector<std::string>& exclude);

// Fills in job.files, job.single and what else is known of a path or URL,
// without the files that are not wanted. Links to directories are not followed.
// Throws missing_error if nothing is there or wanted.
void list_files(FetchJob& job, const std::string& url,
                const std::function<bool(const std::string& path)>& wanted);

// What is below a directory of this machine, by relative paths. Links to files
// are files; links to directories are not followed.
struct FilesHere {
  std::vector<io::RemoteEntry> files;
  std::vector<std::string> links;
  std::vector<FetchOdd> odd;
};
FilesHere files_here(const std::string& root);

// Adds the checksums that lists beside the files have of them.
void add_listed_sums(FetchJob& job);

// Both continue where an earlier run stopped.
void fetch_here(FetchJob& job);
void fetch_there(FetchJob& job);

constexpr size_t kFetchThreads = 4;

// Reads bytes of a file in order and in steps, and requests what follows, up to
// `last`, ahead. Throws Interrupted after a signal.
using TakeBytes =
    std::function<void(uint64_t at, std::span<const std::byte> bytes)>;
void fetch_bytes(FetchJob& job, const io::Handle& from, uint64_t begin,
                 uint64_t end, uint64_t last, const TakeBytes& take);

// Opens the source, which must have the size that the list says.
io::Handle open_fetched(const FetchFile& file);
// Compares the source with a file of the same size, as far as they are alike.
bool same_bytes(FetchJob& job, const FetchFile& file, const std::string& path);
// What a reader looks for first appears last.
bool is_index(const FetchFile& file);
// Throws if `sum` is not what was promised; counts it else.
void check_sum(FetchJob& job, const FetchFile& file, const std::string& sum);
// The same of what lists say of the file that came.
void check_listed(FetchJob& job, const FetchFile& file, const sums::Sum& sum,
                  const std::string& hex);

}  // namespace ckpt::library
