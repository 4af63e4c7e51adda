// SPDX-License-Identifier: Apache-2.0
// What a ring needs from a device. device.cu uses CUDA; device_host.cc, for
// tests, uses memory and loops. All functions throw a std::runtime_error that
// says what failed.
#pragma once

#include <string>

#include "reshard/cuda/batch.h"

namespace ckpt::cuda {

struct Stream;  // runs work in order; each slot has its own

std::string runtime_version();  // "CUDA 13.0"
uint64_t least_bytes();
uint32_t device_count();
std::string device_name(uint32_t device);  // unique on the machine
void use_device(uint32_t device);          // in this thread, from now on

std::byte* allocate(uint64_t bytes);
void release(std::byte* at) noexcept;
std::byte* pin(uint64_t bytes);
void unpin(std::byte* at) noexcept;

Stream* make_stream();
void drop_stream(Stream* stream) noexcept;
// These return before the work is done; wait() returns after it.
void upload(std::byte* to, const std::byte* from, uint64_t bytes, Stream*);
void download(std::byte* to, const std::byte* from, uint64_t bytes, Stream*);
void zero(std::byte* at, uint64_t bytes, Stream*);
void launch(const Launch& launch, const std::byte* blob, const Buffers& buffers,
            const DigestTable* table, DigestSum* sums, Stream*);
void wait(Stream*);
// The same in two steps: work in the stream before mark() is done once
// reached().
void mark(Stream*);
bool reached(Stream*);

}  // namespace ckpt::cuda
