// SPDX-License-Identifier: Apache-2.0
// Formats that a program brings, or a module that `ckpt` loads.
//
// A format says where tensors are and where those of a target go; planning,
// copying, digests, --resume and --max-mem then work as for every other format.
// examples/format_module is a complete one.
//
//   ckpt::register_format({.name = "mine", .what = "what it is",
//                          .reader = std::make_unique<MyReader>()});
//   ckpt::open("step_5000");  // MyReader::supports is asked too
//
// A module is a shared library, libckpt_format_NAME.so, in a directory that
// CKPT_MODULE_PATH names. It is built against this header and libckpt.so of
// the same version, and ends with CKPT_FORMAT_MODULE(register_mine).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"

namespace ckpt {

class FormatReader {
 public:
  virtual ~FormatReader() = default;
  // Cheap and certain. `path` is a file or a directory that exists. `why` gets
  // a clause for `inspect -v`, whatever the answer. Does not throw for files
  // of other formats, even damaged ones.
  virtual bool supports(const std::string& path, std::string& why) const = 0;
  // From headers alone: every tensor's name, dtype, shape and pieces. Throws
  // input_error for damage. The caller checks extents against the files.
  virtual Catalog read_catalog(const std::string& path) const = 0;
};

class FormatWriter {
 public:
  virtual ~FormatWriter() = default;
  // The files of a target for `source`, whose names and dtypes are final:
  // literals (headers) and the pieces of Target::catalog cover each file
  // exactly. Throws unfaithful_error for what the format can't hold.
  virtual Target lay_out(const Catalog& source, const Layout& layout) const = 0;
};

struct NewFormat {
  std::string name;  // for --from and --to: a-z, 0-9 and _
  std::string what;  // one line for --help
  std::unique_ptr<FormatReader> reader = nullptr;  // or it can't be read
  std::unique_ptr<FormatWriter> writer = nullptr;  // or it can't be written
  // The dialect of its tensors' names: hf, mcore, …; "": any.
  std::string dialect = {};
  // The options that its writer reads from Layout::options; others are refused.
  std::vector<FormatOption> options = {};
};

// Adds a format, which is tried before ckpt's own. Must be called before the
// first checkpoint is opened. Throws usage_error if called later, for a name
// that is taken or has other characters, and for a format that does nothing.
void register_format(NewFormat format);

// Adds a family: NAME.json (docs/families.md). Must be called before the first
// checkpoint is opened; throws usage_error later. A name that is taken or a bad
// file makes the first call that looks for families throw.
void register_family(const std::string& json_file);

// The same for the text of such a file, which need not exist.
void register_family(const std::string& name, const std::string& json);

// Adds the trainers of a JSON file (docs/trainers.md), which are looked for
// before ckpt's own, in step folders and by the option "trainer". Must be
// called before the first checkpoint is opened; throws usage_error later. A
// file that can't be used makes the first call that looks for trainers throw.
void register_trainers(const std::string& json_file);

// --- Megatron-Core's backends ---

// Which format reads or writes a backend of megatron-core's distributed
// checkpoints. Their metadata.json names the backend:
//
//   {"sharded_backend": "npy", "sharded_backend_version": 2, …}
//
// ckpt has torch_dist 1 and zarr 1.
struct Strategy {
  std::string action;  // "load_sharded" or "save_sharded"
  std::string backend;
  uint64_t version = 1;
  std::string format;  // that reads or writes it
};

// Adds one: `format` reads a directory whose metadata.json names the backend
// and version; its FormatReader::supports is not asked. Must be called before
// the first checkpoint is opened. Throws usage_error if called later, for
// another action, and for a backend and version that have a strategy.
void register_strategy(Strategy strategy);

// All of them: ckpt's, then those that were registered.
std::vector<Strategy> strategies();

// The strategy for an action, backend and version; its format goes into
// Layout::format. Throws usage_error that lists what there is.
Strategy find_strategy(const std::string& action, const std::string& backend,
                       uint64_t version = 1);

// --- modules ---

class FormatRegistry {
 public:
  virtual ~FormatRegistry() = default;
  virtual void add(NewFormat format) = 0;
  virtual void add_strategy(Strategy strategy) = 0;
  // As register_family: the text of NAME.json.
  virtual void add_family(const std::string& name, const std::string& json) = 0;
};

// Changes whenever modules and program would no longer agree.
inline constexpr char kFormatAbi[] =
#ifdef _LIBCPP_VERSION
    "ckpt format 8 libc++";
#else
    "ckpt format 8 libstdc++";
#endif

}  // namespace ckpt

#define CKPT_FORMAT_MODULE(function)                            \
  extern "C" __attribute__((visibility("default"))) const char* \
  ckpt_format_abi() {                                           \
    return ckpt::kFormatAbi;                                    \
  }                                                             \
  extern "C" __attribute__((visibility("default"))) void        \
  ckpt_register_formats(ckpt::FormatRegistry& registry) {       \
    function(registry);                                         \
  }
