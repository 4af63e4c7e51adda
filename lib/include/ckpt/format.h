// SPDX-License-Identifier: Apache-2.0
// Formats of a program's own, or of a module that `ckpt` loads.
//
// A format says where tensors lie and where those of a target go; planning,
// copying, digests, --resume and --max-mem are those of every other format.
// examples/format_module is a whole one.
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
  // a clause for `inspect -v`, whatever the answer. Does not throw for what
  // other formats wrote, even if it is damaged.
  virtual bool supports(const std::string& path, std::string& why) const = 0;
  // From headers alone: every tensor's name, dtype, shape and pieces. Throws
  // input_error for damage. What extents say is checked against the files.
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
  // The dialect of its tensors' names: hf, mcore, …; "": as whoever wrote them
  // has them.
  std::string dialect = {};
  // What its writer finds in Layout::options; another is refused.
  std::vector<FormatOption> options = {};
};

// Adds a format, which is tried before those that ckpt knows. Before the first
// checkpoint is opened: throws usage_error later, for a name that is taken or
// has other letters, and for a format that does nothing.
void register_format(NewFormat format);

// Adds a family: NAME.json (docs/families.md). Before the first checkpoint is
// opened: throws usage_error later. That the name is taken, or the file bad, is
// thrown by the first call that looks for families.
void register_family(const std::string& json_file);

// --- Megatron-Core's backends ---

// Who reads or writes a backend of megatron-core's distributed checkpoints.
// Their metadata.json says which it is:
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

// Adds one: a directory whose metadata.json names the backend and version is
// read by `format`, whose own FormatReader::supports is not asked. Before the
// first checkpoint is opened: throws usage_error later, for another action, and
// for a backend and version that have a strategy.
void register_strategy(Strategy strategy);

// All of them: ckpt's, then those that were registered.
std::vector<Strategy> strategies();

// The one for an action, backend and version: its format is what
// Layout::format is to be. Throws usage_error that lists what there is.
Strategy find_strategy(const std::string& action, const std::string& backend,
                       uint64_t version = 1);

// --- modules ---

class FormatRegistry {
 public:
  virtual ~FormatRegistry() = default;
  virtual void add(NewFormat format) = 0;
  virtual void add_strategy(Strategy strategy) = 0;
};

// Changes with what modules and program have to agree on.
inline constexpr char kFormatAbi[] =
#ifdef _LIBCPP_VERSION
    "ckpt format 5 libc++";
#else
    "ckpt format 5 libstdc++";
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
