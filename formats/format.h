// SPDX-License-Identifier: Apache-2.0
// What a format is: a Reader that finds tensors from headers, and a Writer
// that decides where the bytes of a target go. Neither touches payload.
#pragma once

#include <map>
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
  // --restrict: refuse opaque values of unknown classes
  bool restrict_globals = false;
  // --flat-params FILE.json: which parameters FSDP1's flat ones hold
  std::string flat_params_file = {};
  // --trainer: whose run it is; "none": containers only; "": detect it
  std::string trainer = {};
  // --assume-order: "decay", "module", or a FILE of names: how an optimizer
  // numbers its parameters if nothing proves it
  std::string assume_order = {};
  // --set NAME=VALUE: numbers of the model that its files don't say
  std::map<std::string, std::string> set = {};
  // Set by readers: the torch.save files are named after their ranks.
  bool rank_files = false;

  // What is passed on to the torch.save files that a format is made of.
  operator torch::Limits() const { return {restrict_globals, rank_files}; }
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
  // Cheap and certain: checks the content where the content can tell. `path`
  // exists; it is a file or a directory. Does not throw for files of other
  // formats, even if they are damaged.
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
  // Returns the source as this format sees it: names in its dialect, layers
  // stacked or numbered, flat buffers cut into parameters, vocabularies padded.
  // Moves no bytes: only names, shapes and pieces change. What it assumes or
  // leaves out goes into the catalog's assumptions and problems. lay_out gets
  // its result. Throws unfaithful_error.
  virtual Catalog review(Catalog source, const Layout&) const { return source; }
  // Decides the files, pieces, extents and headers for the tensors and objects
  // of `source` (already selected, renamed and cast, so dtype and name are the
  // target's). Throws unfaithful_error when it can't be done: a dimension that
  // does not divide, a split that no rule explains.
  virtual Target lay_out(const Catalog& source, const Layout& layout) const = 0;
  // False: objects may stay unopened (CarriedRange).
  virtual bool wants_objects() const { return true; }
};

// Readers and writers that are functions, as most are. `review` null: formats
// see the source as it is.
using Supports = Support (*)(const std::string& path);
using ReadCatalog = Catalog (*)(const std::string& path,
                                const ReadOptions& options);
using Review = Catalog (*)(Catalog source, const Layout& layout);
using LayOut = Target (*)(const Catalog& source, const Layout& layout);
std::unique_ptr<Reader> reader_of(std::string_view name, Supports supports,
                                  ReadCatalog read_catalog);
std::unique_ptr<Writer> writer_of(std::string_view name, Review review,
                                  LayOut lay_out, bool wants_objects = true);
template <class Assembly>
Catalog read_with(const std::string& path, const ReadOptions& options) {
  return Assembly(path, options).read();
}
template <class Builder>
Target build_with(const Catalog& source, const Layout& layout) {
  return Builder(source, layout).build();
}

// Formats are in the order they are tried. A null reader or writer makes a
// format write-only or read-only.
struct Format {
  std::string_view name;
  std::string_view what;  // one line for --help
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Writer> writer;
  Traits traits;
};
const std::vector<Format>& all_formats();

// Finds a format by its command-line name; throws usage_error with a
// suggestion.
const Format& find_format(std::string_view name);

// Why each format was or wasn't chosen, in the order tried, for `inspect -v`.
struct Detection {
  const Format* format = nullptr;
  std::string path;  // after following a root to its checkpoint
  std::vector<std::pair<std::string, std::string>> tried;  // name, why
};
// Throws missing_error if the path does not exist or no format knows it.
Detection detect(const std::string& path);

// detect (or find_format(from)) and read_catalog. Records the choices in
// Catalog::assumptions.
Catalog open(const std::string& path, const std::string& from,
             const ReadOptions& options);

}  // namespace ckpt::formats
