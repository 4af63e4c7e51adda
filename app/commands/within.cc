// SPDX-License-Identifier: Apache-2.0
#include "app/commands/within.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>

#include "api/write/write.h"
#include "formats/format.h"
#include "lib/heap.h"
#include "lib/tensor_part.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"
#include "lib/tree_peak.h"
#include "reshard/plan/plan_size.h"
#include "reshard/plan/work.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// What a process may have on its heap besides what --max-mem bounds.
constexpr uint64_t kBeside = 32 * kMiB;

// Silences parts: all they could say was said when the whole was opened.
class Quiet {
 public:
  Quiet() : level_(spdlog::get_level()) {
    spdlog::set_level(spdlog::level::off);
  }
  ~Quiet() { spdlog::set_level(level_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  const spdlog::level::level_enum level_;
};

// Counts what a part takes.
using CountPart = std::function<void(Counted&)>;

// A way to count: each part opens all headers once.
struct Try {
  TensorPart::By by;
  uint32_t parts;
  bool rough;
  uint32_t opened = parts;  // the first of them
};

Counted count_parts(const CountPart& count_part, const Try& way,
                    uint64_t most) {
  Counted counted{.rough = way.rough};
  for (uint32_t number = 0; number < way.opened; ++number) {
    const TensorPart part(way.by, number, way.parts);
    const heap::Bound bound(most);
    count_part(counted);
    heap::give_back();
  }
  return counted;
}

// Nothing if a part is too large as well, or can't be laid out alone.
std::optional<Counted> try_parts(const CountPart& count_part, const Try& way,
                                 uint64_t most) {
  heap::give_back();
  try {
    return count_parts(count_part, way, most);
  } catch (const heap::Full&) {
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    return std::nullopt;
  }
}

// From what says most to what says least, in few parts.
std::optional<Counted> count(const CountPart& count_part, uint64_t most) {
  using enum TensorPart::By;
  const Quiet quiet;
  constexpr Try kTries[] = {{kKind, 8, false}, {kLayer, 8, false},
                            {kKind, 1, true},  {kKind, 8, true},
                            {kKind, 32, true}, {kLayer, 32, true}};
  for (const Try& way : kTries)
    if (auto counted = try_parts(count_part, way, most)) return counted;
  return std::nullopt;
}

// What is enough if an index's values take `values`. Its pieces are made beside
// them, and those of a target and the plan when they are gone; of an index that
// was not opened only this is known, and how many objects its pickle has.
uint64_t enough_for(uint64_t values, uint64_t limit, bool writes) {
  // A piece is one of at least three records of an index; DCP's of 405B on
  // 16,384 ranks take 186 bytes for each.
  constexpr uint64_t kValuesOfPiece = 160;
  constexpr uint64_t kJob = sizeof(reshard::Job) + sizeof(reshard::Move) +
                            2 * sizeof(reshard::Lane) + sizeof(reshard::Item);
  const auto beyond = [](uint64_t bytes) {
    return bytes - std::min(bytes, kBeside);
  };
  const uint64_t counted = tree_memory::foreseen_pieces();
  const uint64_t pieces = counted
                              ? std::max(counted, values / (4 * kValuesOfPiece))
                              : values / kValuesOfPiece;
  const uint64_t reading = tree_memory::enough(values) + beyond(values / 4);
  const uint64_t least = limit + limit / 8 + 2 * kMiB;
  if (!writes) return std::max(reading, least);
  const uint64_t source = pieces * sizeof(Piece) + values / 4;
  const uint64_t plan = pieces * (2 * sizeof(Piece) + kJob) + values / 2;
  return std::max(
      {tree_memory::enough(values) + beyond(source), beyond(2 * plan), least});
}

// What a target and a plan take is not known before they are made: for a write
// the figure is one to try.
std::string advise(uint64_t enough, bool writes) {
  return fmt::format("{}--max-mem {}MiB{}", writes ? "try " : "",
                     (enough + kMiB - 1) / kMiB, writes ? "" : " is enough");
}

// Not even a part of the headers has room. What they take is known where most
// of it is an index's values.
[[noreturn]] void refuse_unknown(const std::string& path, uint64_t limit,
                                 bool writes) {
  const uint64_t values =
      std::max(tree_memory::foreseen(), tree_memory::peak());
  if (values < limit / 2)
    throw resource_error({path, {}},
                         "the headers alone take more than the {} that they "
                         "may have; how much, shows a larger limit",
                         text::iec_size(limit))
        .with_hint(fmt::format("try --max-mem {}MiB", 4 * limit / kMiB));
  throw resource_error({path, {}},
                       "the headers alone take more than the {} that they may "
                       "have, of which the values of an index are {}",
                       text::iec_size(limit), text::iec_size(values))
      .with_hint(advise(enough_for(values, limit, writes), writes));
}

// The values of one file have no room, and so has no part of what is in it; how
// much is enough for the others is found by opening as many as can be. Values
// are the same whatever the part, so that one part shows them all.
[[noreturn]] void refuse_values(const CountPart& count_part, const Error& error,
                                uint64_t limit, bool writes) {
  {
    const Quiet quiet;
    try_parts(count_part, {TensorPart::By::kKind, 32, true, 1},
              limit + kBeside);
  }
  const uint64_t enough = enough_for(tree_memory::foreseen(), limit, writes);
  throw error.with_hint(advise(enough, writes));
}

// True if a file's values were refused, and not for being too dense.
bool were_values(const Error& error) {
  return error.code() == ExitCode::kResource && tree_memory::foreseen() != 0;
}

[[noreturn]] void refuse(const CountPart& count_part, const std::string& path,
                         uint64_t limit, bool writes) {
  tree_memory::forget_peak();
  const auto counted = count(count_part, limit + kBeside);
  if (!counted) refuse_unknown(path, limit, writes);
  // Parts have less spare room in their lists than the whole, and a target's
  // index is a text that doubles as it grows. What is read is held beside the
  // values that it is read from. And it is never less than was too little.
  const uint64_t held = counted->held + counted->files;
  const uint64_t reading = counted->read + tree_memory::peak();
  const uint64_t least = limit + limit / 8 + 2 * kMiB;
  reshard::refuse(std::max({held + held / (writes ? 4 : 8), reading, least}),
                  path, limit);
}

// The size of what was opened alone; nothing is read.
void count_reading(const std::string& path, const SourceOptions& source,
                   bool reads, Counted& counted) {
  const Catalog part = formats::open(path, source.from, source.read);
  const uint64_t files = part.files.size() * sizeof(File);
  const uint64_t tensors = reshard::held_bytes(part) - files;
  counted.held += tensors;
  counted.read += tensors;
  counted.files = std::max(counted.files, files + TensorPart::dropped());
  if (reads) counted.held += reshard::count_read_plan(part, true).bytes();
}

// Of the target as many pieces as of the source, or more if it has more ranks,
// with the frames around them; of the plan a job for each.
void count_roughly(const Catalog& source, const Layout& layout,
                   Counted& counted) {
  constexpr uint64_t kJob = sizeof(reshard::Job) + sizeof(reshard::Move) +
                            2 * sizeof(reshard::Lane) + sizeof(reshard::Item);
  const auto ranks = [](const Topology& grid) {
    return std::max<uint64_t>(1, uint64_t{grid.tp} * grid.pp * grid.dp);
  };
  const uint64_t more =
      std::max<uint64_t>(1, ranks(layout.topology) / ranks(source.topology));
  const uint64_t pieces = reshard::piece_count(source, {});
  counted.read += reshard::held_bytes(source);
  counted.held += reshard::held_bytes(source) +
                  2 * more * reshard::piece_bytes(source) +
                  more * pieces * kJob;
  counted.files =
      std::max(counted.files, source.files.size() * more * sizeof(TargetFile));
}

}  // namespace

ExitCode within_memory(WriteRequest& request,
                       const std::function<ExitCode()>& write) {
  const uint64_t limit = std::max(request.engine.max_mem, tree_memory::limit());
  std::optional<Error> values;
  try {
    const heap::Bound bound(limit + kBeside);
    return write();
  } catch (const heap::Full&) {
  } catch (const Error& error) {
    if (!were_values(error)) throw;
    values = error;
  }
  const auto part = [&](Counted& counted) {
    request.counted = &counted;
    const struct Reset {
      WriteRequest& request;
      ~Reset() { request.counted = nullptr; }
    } reset{request};
    write();
  };
  if (values) refuse_values(part, *values, limit, true);
  refuse(part, request.target_path, limit, true);
}

ExitCode within_memory(const EngineOptions& engine, const SourceOptions& source,
                       const std::vector<std::string>& paths, bool reads,
                       const std::function<ExitCode()>& look) {
  const uint64_t limit = std::max(engine.max_mem, tree_memory::limit());
  std::optional<Error> values;
  try {
    const heap::Bound bound(limit + kBeside);
    return look();
  } catch (const heap::Full&) {
  } catch (const Error& error) {
    if (!were_values(error)) throw;
    values = error;
  }
  const auto part = [&](Counted& counted) {
    // Of several what each has of its own, and lists of files are kept by all.
    uint64_t files = 0;
    for (const std::string& path : paths) {
      Counted one;
      count_reading(path, source, reads, one);
      counted.held += one.held;
      counted.read += one.read;
      files += one.files;
    }
    counted.files = std::max(counted.files, files);
  };
  if (values) refuse_values(part, *values, limit, false);
  refuse(part, paths.front(), limit, false);
}

void count_part(Catalog source, const Layout& layout, const std::string& path,
                SaveOptions options, Counted& counted) {
  if (counted.rough) return count_roughly(source, layout, counted);
  counted.read += reshard::held_bytes(source);
  constexpr uint64_t kNoBound = uint64_t{1} << 60;
  options.max_mem = kNoBound;
  // A part may hold no layers: what is beside layers is counted with other
  // parts.
  if (std::ranges::none_of(source.tensors, [](const Tensor& tensor) {
        return TensorPart::has_layer(tensor.name);
      }))
    return;
  const library::Prepared prepared = library::prepare(
      std::move(source), layout, path, options, library::Use::kShow);
  const uint64_t files =
      prepared.source.files.size() * sizeof(File) +
      prepared.target.files.size() * (sizeof(TargetFile) + sizeof(File));
  counted.files = std::max(counted.files, files + TensorPart::dropped());
  const uint64_t most = std::max(prepared.held, prepared.planning);
  counted.held += most - std::min(most, files);
}

}  // namespace ckpt::app
