// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/load.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "ckpt/error.h"
#include "lib/module.h"

namespace ckpt::reshard {
namespace {

// abi.h says when the version changes.
std::string module_name() {
  const char* host = std::getenv("CKPT_CUDA_HOST");
  return host && std::string_view(host) == "1" ? "cuda_host" : "cuda";
}

// This process's number among its job's processes on this machine.
uint32_t local_rank() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK",
        "SLURM_LOCALID", "PALS_LOCAL_RANKID"}) {
    const char* value = std::getenv(name);
    if (!value) continue;
    const std::string_view text = value;
    uint32_t rank = 0;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    return rank;
  }
  return 0;
}

struct Row {
  DType dtype;
  uint32_t type;
};
constexpr Row kTypes[] = {
    {DType::f64, CKPT_CUDA_F64},
    {DType::f32, CKPT_CUDA_F32},
    {DType::f16, CKPT_CUDA_F16},
    {DType::bf16, CKPT_CUDA_BF16},
    {DType::f8_e4m3, CKPT_CUDA_E4M3},
    {DType::f8_e5m2, CKPT_CUDA_E5M2},
    {DType::f8_e4m3fnuz, CKPT_CUDA_E4M3FNUZ},
    {DType::f8_e5m2fnuz, CKPT_CUDA_E5M2FNUZ},
    {DType::f8_e8m0, CKPT_CUDA_E8M0},
    {DType::i64, CKPT_CUDA_I64},
    {DType::i32, CKPT_CUDA_I32},
    {DType::i16, CKPT_CUDA_I16},
    {DType::i8, CKPT_CUDA_I8},
    {DType::u64, CKPT_CUDA_U64},
    {DType::u32, CKPT_CUDA_U32},
    {DType::u16, CKPT_CUDA_U16},
    {DType::u8, CKPT_CUDA_U8},
    {DType::bool_, CKPT_CUDA_BOOL},
};

std::optional<uint32_t> type_of(DType dtype) {
  for (const Row& row : kTypes)
    if (row.dtype == dtype) return row.type;
  return std::nullopt;
}

}  // namespace

const CudaModule& CudaModule::get() {
  static const CudaModule module;
  return module;
}

CudaModule::CudaModule() {
  const Module module = Module::open(module_name());
  const auto entry =
      reinterpret_cast<CkptCudaEntry>(module.symbol(CKPT_CUDA_ENTRY));
  api_ = entry();
  if (api_->abi != CKPT_CUDA_ABI)
    throw module_error("cuda", module.path(),
                       fmt::format("has version {}, this program needs {}",
                                   api_->abi, CKPT_CUDA_ABI));
  uint32_t count = 0;
  if (api_->device_count(&count) != 0 || count == 0)
    throw resource_error({}, "--device cuda: {}",
                         count == 0 ? api_->error() : "no GPU")
        .with_hint(
            "--device cpu, or no --device at all, gives the same bytes; "
            "nvidia-smi shows what the driver sees");
  device_ = local_rank() % count;
}

void CudaModule::require(int32_t status) const {
  if (status != 0)
    throw resource_error({}, "--device cuda, GPU {}: {}", device_,
                         api_->error())
        .with_hint("--resume with --device cpu goes on without the GPU");
}

std::optional<CudaModule::Cast> CudaModule::cast(DType from, DType to) const {
  const auto a = type_of(from);
  const auto b = type_of(to);
  if (!a || !b || api_->casts(*a, *b) == 0) return std::nullopt;
  return Cast{*a, *b};
}

std::string CudaModule::meeting_name() const {
  if (!api_->peers_open) return {};
  char name[CKPT_CUDA_NAME_BYTES] = {};
  require(api_->device_name(device_, name));
  return name;
}

CudaRing::CudaRing(const CudaModule& module, uint32_t slots, uint64_t bytes)
    : ring_(nullptr, module.api().ring_close) {
  CkptCudaRing* ring = nullptr;
  module.require(module.api().ring_open(module.device(), slots, bytes, &ring));
  ring_.reset(ring);
}

std::string CudaPeers::make_id(const CudaModule& module) {
  std::string id(CKPT_CUDA_ID_BYTES, '\0');
  module.require(
      module.api().peers_id(reinterpret_cast<unsigned char*>(id.data())));
  return id;
}

CudaPeers::CudaPeers(const CudaModule& module, uint32_t rank, uint32_t size,
                     const std::string& id, uint64_t bytes)
    : module_(module),
      bytes_(bytes),
      peers_(nullptr, module.api().peers_close) {
  if (id.size() != CKPT_CUDA_ID_BYTES)
    throw bug_error({}, "an id of {} bytes for the ranks' GPUs", id.size());
  CkptCudaPeers* peers = nullptr;
  module.require(module.api().peers_open(
      module.device(), rank, size,
      reinterpret_cast<const unsigned char*>(id.data()), bytes, &peers));
  peers_.reset(peers);
}

std::span<std::byte> CudaPeers::memory() const {
  return {static_cast<std::byte*>(module_.api().peers_memory(peers_.get())),
          bytes_};
}

void CudaPeers::begin(std::span<const CkptCudaParcel> sends,
                      std::span<const CkptCudaParcel> receives) {
  module_.require(module_.api().peers_begin(peers_.get(), sends.data(),
                                            sends.size(), receives.data(),
                                            receives.size()));
}

bool CudaPeers::done() {
  int32_t done = 0;
  module_.require(module_.api().peers_done(peers_.get(), &done));
  return done != 0;
}

}  // namespace ckpt::reshard
