// SPDX-License-Identifier: Apache-2.0
// What a ring needs of a device. device.cu does it with CUDA; device_host.cc
// for tests, with memory and loops. Everything throws std::runtime_error that
// says what failed.
#pragma once

#include <string>

#include "reshard/cuda/batch.h"

namespace ckpt::cuda {

struct Stream;  // work in order; of its own for each slot

std::string runtime_version();  // "CUDA 13.0"
uint64_t least_bytes();
uint32_t device_count();
std::string device_name(uint32_t device);  // of its own on the machine
void use_device(uint32_t device);          // in this thread, from here on

std::byte* allocate(uint64_t bytes);
void release(std::byte* at) noexcept;
std::byte* pin(uint64_t bytes);
void unpin(std::byte* at) noexcept;

Stream* make_stream();
void drop_stream(Stream* stream) noexcept;
// These return before the work is done; wait() after it.
void upload(std::byte* to, const std::byte* from, uint64_t bytes, Stream*);
void download(std::byte* to, const std::byte* from, uint64_t bytes, Stream*);
void zero(std::byte* at, uint64_t bytes, Stream*);
void launch(const Launch& launch, const std::byte* blob, const Buffers& buffers,
            const DigestTable* table, DigestSum* sums, Stream*);
void wait(Stream*);
// The same in two: what the stream has until mark() is done when reached().
void mark(Stream*);
bool reached(Stream*);

}  // namespace ckpt::cuda
