// SPDX-License-Identifier: Apache-2.0
// What a format is: a Reader that finds tensors from headers, and a Writer
// that decides where the bytes of a target go. Neither touches payload.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "containers/torch/limits.h"
#include "formats/traits.h"

namespace ckpt::formats {

struct ReadOptions {
  std::string family;           // --family: overrides what the files say
  std::string shard_dims_file;  // --shard-dims RULES.json
  // Opaque values of unknown classes are refused (--restrict).
  bool restrict_globals = false;
  // --flat-params FILE.json: the parameters in FSDP1's flat ones
  std::string flat_params_file = {};
  // --trainer: whose run it is; "none": containers alone; "": as it looks
  std::string trainer = {};
  // --assume-order: "decay", "module", or a FILE of names: how an optimizer
  // that nothing proves numbers its parameters
  std::string assume_order = {};

  // What is passed on to the files of torch.save below a format.
  operator torch::Limits() const { return {restrict_globals}; }
};

// The answer of Reader::supports. `why` is one clause for `inspect -v`,
// whatever the answer: "starts with PK\3\4", "no model.safetensors in it".
struct Support {
  bool yes = false;
  std::string why;
};

class Reader {
 public:
  virtual ~Reader() = default;
  // The name for --from, and Catalog::format.
  virtual std::string_view name() const = 0;
  // Cheap and certain: looks at the content where the content can tell.
  // `path` exists; it is a file or a directory. Does not throw for files of
  // other formats, even if they are damaged.
  virtual Support supports(const std::string& path) const = 0;
  // Reads headers, indexes and pickles, never payload. Throws an Error if
  // the checkpoint is damaged.
  virtual Catalog read_catalog(const std::string& path,
                               const ReadOptions& options) const = 0;
};

class Writer {
 public:
  virtual ~Writer() = default;
  virtual std::string_view name() const = 0;
  // The source as this format sees it: names in its dialect, layers stacked
  // or numbered, flat buffers cut into parameters, vocabularies padded. Moves
  // no byte: only names, shapes and pieces change. What it assumes or leaves
  // out goes into the catalog's assumptions and problems. lay_out is given
  // its result. Throws unfaithful_error.
  virtual Catalog review(Catalog source, const Layout&) const { return source; }
  // Decides files, pieces, extents, headers for the tensors and objects of
  // `source` (already selected, renamed and cast: dtype and name are the
  // target's). Throws unfaithful_error when it can't be done: a dimension
  // that does not divide, a split that no rule explains.
  virtual Target lay_out(const Catalog& source, const Layout& layout) const = 0;
  // False: objects may stay unopened (CarriedRange).
  virtual bool wants_objects() const { return true; }
};

// In the order they are tried. Either may be null: read-only or write-only.
struct Format {
  std::string_view name;
  std::string_view what;  // one line for --help
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Writer> writer;
  Traits traits;
};
const std::vector<Format>& all_formats();

// By its command-line name; throws usage_error with a suggestion.
const Format& find_format(std::string_view name);

// Why each format was taken or not, in the order tried, for `inspect -v`.
struct Detection {
  const Format* format = nullptr;
  std::string path;  // after following a root to a checkpoint
  std::vector<std::pair<std::string, std::string>> tried;  // name, why
};
// Throws missing_error if the path does not exist or no format knows it.
Detection detect(const std::string& path);

// detect (or find_format(from)) and read_catalog. Records the choices in
// Catalog::assumptions.
Catalog open(const std::string& path, const std::string& from,
             const ReadOptions& options);

}  // namespace ckpt::formats
