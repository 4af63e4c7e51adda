// SPDX-License-Identifier: Apache-2.0
#include "app/commands/within.h"

#include <malloc.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>

#include "api/write.h"
#include "lib/heap.h"
#include "lib/tensor_part.h"
#include "lib/text/format.h"
#include "lib/tree_memory.h"
#include "reshard/plan_size.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// What a process may have on its heap besides what --max-mem bounds.
constexpr uint64_t kBeside = 32 * kMiB;
// More parts than layers or kinds of tensors are of no use.
constexpr uint32_t kFewestParts = 8;
constexpr uint32_t kMostParts = 128;

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

Counted count_parts(WriteRequest& request,
                    const std::function<ExitCode()>& write, TensorPart::By by,
                    uint32_t parts, uint64_t most) {
  Counted counted;
  request.counted = &counted;
  const struct Reset {
    WriteRequest& request;
    ~Reset() { request.counted = nullptr; }
  } reset{request};
  for (uint32_t number = 0; number < parts; ++number) {
    const TensorPart part(by, number, parts);
    const heap::Bound bound(most);
    write();
    ::malloc_trim(0);
  }
  return counted;
}

// Nothing if a part is too large, too, or can't be laid out alone.
std::optional<Counted> count_by(WriteRequest& request,
                                const std::function<ExitCode()>& write,
                                TensorPart::By by, uint64_t most) {
  for (uint32_t parts = kFewestParts; parts <= kMostParts; parts *= 2) {
    ::malloc_trim(0);
    try {
      return count_parts(request, write, by, parts, most);
    } catch (const heap::Full&) {
    } catch (const Error& error) {
      if (error.code() == ExitCode::kIo) throw;
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<Counted> count(WriteRequest& request,
                             const std::function<ExitCode()>& write,
                             uint64_t most) {
  const Quiet quiet;
  auto counted = count_by(request, write, TensorPart::By::kKind, most);
  if (!counted)
    counted = count_by(request, write, TensorPart::By::kLayer, most);
  return counted;
}

[[noreturn]] void refuse_unknown(const WriteRequest& request, uint64_t limit) {
  throw resource_error({request.target_path, {}},
                       "the headers of both sides and the plan take more than "
                       "the {} that they may have",
                       text::iec_size(limit))
      .with_hint(
          "a larger --max-mem; without it the limit is half of the machine's "
          "memory");
}

}  // namespace

ExitCode within_memory(WriteRequest& request,
                       const std::function<ExitCode()>& write) {
  const uint64_t limit = std::max(request.engine.max_mem, tree_memory::limit());
  try {
    const heap::Bound bound(limit + kBeside);
    return write();
  } catch (const heap::Full&) {
  }
  const auto counted = count(request, write, limit + kBeside);
  if (!counted) refuse_unknown(request, limit);
  // Parts have less spare room in their lists than the whole, and readers
  // temporarily take more than what remains: never less than was too little.
  const uint64_t held = counted->held + counted->files;
  reshard::refuse(std::max(held + held / 8, limit + limit / 4 + kBeside),
                  request.target_path, limit);
}

void count_part(Catalog source, const Layout& layout, const std::string& path,
                SaveOptions options, Counted& counted) {
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
  counted.held += prepared.held - std::min(prepared.held, files);
}

}  // namespace ckpt::app
