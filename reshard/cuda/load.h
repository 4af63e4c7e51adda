// SPDX-License-Identifier: Apache-2.0
// The CUDA module, opened when --device cuda first needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "ckpt/dtype.h"
#include "reshard/cuda/abi.h"

namespace ckpt::reshard {

class CudaModule {
 public:
  // Throws a resource_error if the module is missing or of another version, or
  // if it can't use any GPU.
  static const CudaModule& get();

  const CkptCudaApi& api() const { return *api_; }
  // The GPU for this process: a machine's GPUs in turn, by the rank's number on
  // it.
  uint32_t device() const { return device_; }
  // Identifies that GPU on its machine; "" if it can't meet those of others.
  std::string meeting_name() const;
  // Throws what the module said if the status is not zero.
  void require(int32_t status) const;

  // How elements of the two types are cast; nothing if the device can't produce
  // PyTorch's bits.
  struct Cast {
    uint32_t from = 0;
    uint32_t to = 0;
  };
  std::optional<Cast> cast(DType from, DType to) const;

 private:
  CudaModule();
  const CkptCudaApi* api_;
  uint32_t device_ = 0;
};

// A ring of the module (abi.h).
class CudaRing {
 public:
  CudaRing(const CudaModule& module, uint32_t slots, uint64_t bytes);
  CkptCudaRing* get() const { return ring_.get(); }

 private:
  std::unique_ptr<CkptCudaRing, void (*)(CkptCudaRing*)> ring_;
};

// Rounds with the GPUs of other ranks (abi.h).
class CudaPeers {
 public:
  // Begins to meet them. `id`: what make_id() returned to one of them.
  CudaPeers(const CudaModule& module, uint32_t rank, uint32_t size,
            const std::string& id, uint64_t bytes);
  static std::string make_id(const CudaModule& module);

  std::span<std::byte> memory() const;
  // The parcels belong to the device until done().
  void begin(std::span<const CkptCudaParcel> sends,
             std::span<const CkptCudaParcel> receives);
  // True if the last thing begun is done. The first time, the ranks have met.
  bool done();

 private:
  const CudaModule& module_;
  uint64_t bytes_;
  std::unique_ptr<CkptCudaPeers, void (*)(CkptCudaPeers*)> peers_;
};

}  // namespace ckpt::reshard
