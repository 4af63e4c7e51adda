// SPDX-License-Identifier: Apache-2.0
// Scans one file's parts, one inside the other. Private to this room.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include "ckpt/catalog.h"
#include "formats/scan/configs.h"
#include "formats/scan/heads.h"
#include "formats/scan/scan.h"
#include "lib/io/file.h"
#include "lib/zip/archive.h"

namespace ckpt::scan {

// What is read of a storage, which is never unpickled; enough for a pickle that
// acts.
inline constexpr uint64_t kHead = 4096;

// What is known about a part besides its bytes.
struct Part {
  std::string inside = {};  // names of the records that lead to it
  bool pickle = false;      // meant to be one: .pkl, a DCP item
  bool raw = false;         // meant to be numbers: a zarr chunk
  bool brief = false;       // scan only its front: a storage
  bool keras = false;       // in a .keras archive
  int depth = 0;
};

// True if numbers, of which these are the first `count` bytes, call what is not
// harmless if they are loaded as a pickle.
bool acts_as_pickle(const io::Handle& file, uint64_t count);

class Scanner {
 public:
  explicit Scanner(std::string path) { found_.path = std::move(path); }

  // The fronts of storages in a file that begins at `base` are left to others.
  void leave(Heads* heads, uint64_t base) {
    heads_ = heads;
    base_ = base;
  }

  // Scans all of `file`.
  void part(const io::Handle& file, const Part& part);
  // The same of a large item of a .distcp file. Of what torch wrote, both ends
  // and the front of the storage are read.
  void item(const io::Handle& file);
  // Scans bytes of a file that is being laid out: zips' local headers with what
  // follows them, and a pickle at the front if the bytes `begin` the file.
  void fragment(const io::Handle& bytes, bool begins);
  void problem(const Part& part, const std::string& what);
  // What a loader runs that is no pickle.
  void runs(const Call& call, const Part& part);
  // True if any of it was a container or a pickle.
  bool known() const { return known_; }
  // True for torch's containers before 1.6: their readers know where unpickling
  // ends.
  bool old_torch() const { return old_torch_; }
  FileScan take();

 private:
  // Recognizes containers by content; false for anything else.
  bool container(const io::Handle& file, const Part& part);
  void zip(const io::Handle& file, const Part& part);
  void archive(const io::Handle& file, const Part& part);
  void code(const io::Handle& file, const zip::Archive& archive,
            const Part& part);
  // True if the front of a storage is left to others.
  bool is_left(const io::Handle& file, std::string_view name, uint64_t offset,
               uint64_t size) const;
  // Archives back to back, as in a .distcp file; true if they make up all of
  // it.
  bool in_a_row(const io::Handle& file, const Part& part);
  // A zip that only a forgiving reader would open: scans each local header in
  // it.
  void broken_zip(const io::Handle& file, const Part& part);
  void tar(const io::Handle& file, const Part& part);
  void interleaved(const io::Handle& file, const Part& part);
  void npy(const io::Handle& file, const Part& part);
  // beside.cc: by their names, configurations, templates, code; by their
  // content, GGUF and HDF5.
  void beside(const io::Handle& file, const Part& part);
  void config(const io::Handle& file, const Part& part, const std::string& name,
              bool yaml);
  void chat_template(const std::string& text, const std::string& where,
                     const Part& part);
  void torch_script(const io::Handle& file, const Part& part);
  void gguf(const io::Handle& file, const Part& part);
  void hdf5(const io::Handle& file, const Part& part);
  static std::string text_of(const io::Handle& file);
  bool compressed(const io::Handle& file, const Part& part, Codec codec);
  void packed_whole(const io::Handle& file, const Part& part,
                    std::string_view packer);
  void pickles(const io::Handle& file, const Part& part);
  // Scans pickles that follow one; `at` is after its STOP.
  void more_pickles(const io::Handle& file, const Part& part, uint64_t at);
  void legacy(const io::Handle& file, const Part& part, uint64_t at);
  // Adds what the trace holds; true if anything in it is not harmless.
  bool add(const io::Handle& file, const pickle::Trace& trace,
           const Part& part);

  // Scans what was packed, in memory.
  void nested_text(const io::Handle& file, bool escaped, const Part& part);
  void unpacked(std::string bytes, const std::string& path, const Part& part);
  static uint64_t most_unpacked();
  static uint64_t most_of(const io::Handle& file);

  FileScan found_;
  Heads* heads_ = nullptr;
  uint64_t base_ = 0;
  bool known_ = false;
  bool old_torch_ = false;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> index_;
};

}  // namespace ckpt::scan
