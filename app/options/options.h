// SPDX-License-Identifier: Apache-2.0
// Options that several commands share: what they parse into, and what their
// values mean. A wrong value throws usage_error naming the option.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/ckpt.h"
#include "ckpt/dtype.h"
#include "ckpt/read_mode.h"
#include "ckpt/select.h"
#include "ckpt/topology.h"
#include "formats/format.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// Throws for a URL: what a run writes besides its target, which may be in a
// store, are files here.
void check_note(const std::string& path, const std::string& option);

enum class When : uint8_t { kAuto, kAlways, kNever };

// What a run writes besides its target. Shared by copies of the options.
struct WrittenFiles {
  bool overwrite = false;            // what is in the way
  std::vector<std::string> sources;  // what is read, and never replaced
  std::vector<std::pair<std::string, uint64_t>> files;  // path, bytes
};

// -q -v -vv --color --progress --json
struct OutputOptions {
  std::shared_ptr<WrittenFiles> written = std::make_shared<WrittenFiles>();
  int verbosity = 0;  // -1 errors only, 0 warnings, 1 info, 2 debug
  When color = When::kAuto;
  When progress = When::kAuto;
  bool progress_json = false;  // lines of JSON on stderr
  bool json = false;
  bool ndjson = false;  // the same, a line for each element of a list
};

// --from --family --shard-dims --flat-params --restrict
struct SourceOptions {
  std::string from;
  formats::ReadOptions read;
};

// --tp --pp --dp --ep: "8", or "4→8" ("4->8", "4:8") to say what the source
// is believed to hold.
struct TopologyOptions {
  struct Axis {
    std::string text;  // as given; "" if not given
    std::optional<uint32_t> from;
    std::optional<uint32_t> to;
  };
  Axis tp, pp, dp, ep;

  bool any() const { return tp.to || pp.to || dp.to || ep.to; }
  formats::Asked asked() const;
  // The target: the source's sizes, replaced by the given ones. Throws
  // usage_error if a left side is not what the source holds.
  Topology resolve(const Topology& source) const;
};

// -j --max-mem --device --io: for every command that reads payload
struct EngineOptions {
  uint32_t threads = 0;                  // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;  // bytes
  bool cuda = false;
  ReadMode io = ReadMode::kAuto;
};

enum class IfExists { kFail, kSkip, kReplace };

struct WriteOptions {
  bool dry_run = false;
  IfExists if_exists = IfExists::kFail;
  bool overwrite = false;
  bool resume = false;
  bool trust_staging = false;  // --resume reads nothing back
  bool verify = false;
  bool sync = true;                     // --no-fsync
  bool manifest = true;                 // --no-manifest
  bool allow_replica_mismatch = false;  // take the first of unlike copies
  bool ignore_checksums = false;        // of the source
  bool keep_unknown_globals = false;    // values that run code when loaded
  Overflow overflow = Overflow::kRefuse;
  uint64_t max_shard_size = 0;  // 0: not given
  std::optional<DType> dtype;   // floating-point tensors are cast to it
  std::string quantize;         // "", "fp8-block" or a type of ggml's: "q8_0"
  bool with_optimizer = false;  // in one file of weights
  std::string rename_file;      // "" or rules
  std::string plan_file;        // "", or where a dry run's plan goes
  std::string html_file;        // "", or where its page goes
};

void add_output_options(CLI::App& app, OutputOptions& options);
void add_source_options(CLI::App& app, SourceOptions& options);
// --keys --exclude --layers --experts --blocks --part --model-only --optim-only
void add_select_options(CLI::App& app, Selection& options);
void add_topology_options(CLI::App& app, TopologyOptions& options);
void add_engine_options(CLI::App& app, EngineOptions& options);
// --max-mem alone.
void add_memory_option(CLI::App& app, uint64_t& max_mem);
// --max-rate (rate.h)
void add_rate_option(CLI::App& app);
void add_write_options(CLI::App& app, WriteOptions& options);
// --with-optimizer
void add_optimizer_option(CLI::App& app, WriteOptions& options);

// The value of --dtype.
DType cast_type(const std::string& text);

// "8", "4→8" … for the option named `option` ("--tp").
TopologyOptions::Axis parse_axis(const std::string& option,
                                 const std::string& text);

// Bytes of "5GB" or "5GiB"; the error names the option.
uint64_t size_value(const std::string& option, const std::string& text);

}  // namespace ckpt::app
