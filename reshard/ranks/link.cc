// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/link.h"

#include <cstdlib>

#include "ckpt/error.h"
#include "lib/module.h"
#include "lib/text/number.h"
#include "reshard/ranks/abi.h"

namespace ckpt::ranks {
namespace {

std::optional<uint32_t> number(const char* variable) {
  const char* text = variable ? std::getenv(variable) : nullptr;
  if (!text) return std::nullopt;
  return text::number<uint32_t>(text);
}

class MpiLink : public Link {
 public:
  explicit MpiLink(const CkptMpiApi& api) : api_(api) {}
  uint32_t rank() const override { return static_cast<uint32_t>(api_.rank()); }
  uint32_t size() const override { return static_cast<uint32_t>(api_.size()); }
  std::string host() const override { return api_.host(); }

  void send(uint32_t to, Tag tag, std::string_view bytes) override {
    require(api_.send(static_cast<int32_t>(to), static_cast<int32_t>(tag),
                      bytes.data(), bytes.size()));
  }
  void post(uint32_t to, Tag tag, std::string_view bytes) override {
    require(api_.post(static_cast<int32_t>(to), static_cast<int32_t>(tag),
                      bytes.data(), bytes.size()));
  }
  std::optional<Message> poll() override {
    CkptMpiMessage found;
    require(api_.probe(&found));
    if (found.from < 0) return std::nullopt;
    Message message{static_cast<uint32_t>(found.from),
                    static_cast<Tag>(found.tag), std::string(found.bytes, 0)};
    require(api_.receive(&found, message.bytes.data()));
    return message;
  }
  Ticket give(uint32_t to, uint32_t channel,
              std::span<const std::byte> bytes) override {
    Ticket ticket = 0;
    require(api_.give(static_cast<int32_t>(to), static_cast<int32_t>(channel),
                      bytes.data(), bytes.size(), &ticket));
    return ticket;
  }
  Ticket take(uint32_t from, uint32_t channel,
              std::span<std::byte> room) override {
    Ticket ticket = 0;
    require(api_.take(static_cast<int32_t>(from), static_cast<int32_t>(channel),
                      room.data(), room.size(), &ticket));
    return ticket;
  }
  std::optional<uint64_t> done(Ticket ticket) override {
    uint64_t bytes = 0;
    require(api_.done(ticket, &bytes));
    return bytes == UINT64_MAX ? std::nullopt : std::optional(bytes);
  }
  void finish() override { require(api_.finish()); }
  void abort(int status) override { api_.abort(status); }

 private:
  void require(int32_t status) const {
    if (status != 0)
      throw resource_error({}, "messages between the ranks: {}", api_.error())
          .with_hint("run it again with --resume, or without the launcher");
  }
  const CkptMpiApi& api_;
};

const CkptMpiApi& open_module() {
  const Module module = Module::open("mpi");
  const auto entry =
      reinterpret_cast<CkptMpiEntry>(module.symbol(CKPT_MPI_ENTRY));
  const CkptMpiApi* api = entry();
  if (api->abi != CKPT_MPI_ABI)
    throw module_error("mpi", module.path(),
                       fmt::format("has version {}, this program needs {}",
                                   api->abi, CKPT_MPI_ABI));
  return *api;
}

}  // namespace

// The variables that launchers set for each process. PMI_* are MPICH's, Intel
// MPI's, and srun's with --mpi=pmi2. SLURM_PROCID alone is also there in batch
// scripts, where one process runs: only a step of several tasks counts.
Launch find_launch() {
  struct Row {
    const char* size;
    const char* rank;
  };
  constexpr Row kRows[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
      {"PMI_SIZE", "PMI_RANK"},
      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
  };
  const char* off = std::getenv("CKPT_LAUNCHER");
  if (off && std::string_view(off) == "none") return {};
  for (const Row& row : kRows) {
    const auto size = number(row.size), rank = number(row.rank);
    if (size && rank && *size > 1 && *rank < *size)
      return {*size, *rank, row.size};
  }
  return {};
}

std::unique_ptr<Link> join_job() {
  const Launch launch = find_launch();
  if (launch.size <= 1) return nullptr;
  const CkptMpiApi& api = open_module();
  if (api.start() != 0)
    throw resource_error({}, "can't join the job of {} processes: {}",
                         launch.size, api.error())
        .with_hint("`ckpt --version` names the MPI of the module");
  auto link = std::make_unique<MpiLink>(api);
  if (link->size() != launch.size)
    throw resource_error(
        {}, "the launcher started {} processes ({}), {} sees {}", launch.size,
        launch.by, std::string_view(api.library()).substr(0, 40), link->size())
        .with_hint(
            "use the mpirun of that MPI (srun: --mpi=pmix or pmi2); "
            "CKPT_LAUNCHER=none runs each process for itself");
  return link;
}

}  // namespace ckpt::ranks
