// SPDX-License-Identifier: Apache-2.0
// The interface of libckpt_cuda.so: work on one block of a plan, done by a GPU,
// and the exchange between GPUs. Plain C, so that the program can start without
// CUDA.
//
//   host                          device
//   in (pinned)  --upload-->      in   --copies-->  [mid --casts-->]  out
//   out (pinned) <--download--    out               digests of any of them
//
// A ring has a few slots, each with these buffers and its own stream. So one
// slot's upload, another's kernels and a third's download run at the same time,
// while the host reads into a fourth or writes from it.
//
// For tests there is libckpt_cuda_host.so: the same sources with host memory
// instead of device memory and loops instead of kernels. It is used instead of
// libckpt_cuda.so if CKPT_CUDA_HOST=1 is in the environment. It is for finding
// mistakes, not for speed, and is not installed. CKPT_CUDA_LEAST=0 gives a real
// device the smallest work, too.
#pragma once

#include <stdint.h>

// Incremented with every change below.
#define CKPT_CUDA_ABI 2u

// Dimensions of a copy or digest.
#define CKPT_CUDA_DIMS 6

extern "C" {

enum CkptCudaType {
  CKPT_CUDA_F64,
  CKPT_CUDA_F32,
  CKPT_CUDA_F16,
  CKPT_CUDA_BF16,
  CKPT_CUDA_E4M3,
  CKPT_CUDA_E5M2,
  CKPT_CUDA_E4M3FNUZ,
  CKPT_CUDA_E5M2FNUZ,
  CKPT_CUDA_E8M0,
  CKPT_CUDA_I64,
  CKPT_CUDA_I32,
  CKPT_CUDA_I16,
  CKPT_CUDA_I8,
  CKPT_CUDA_U64,
  CKPT_CUDA_U32,
  CKPT_CUDA_U16,
  CKPT_CUDA_U8,
  CKPT_CUDA_BOOL,
  CKPT_CUDA_TYPES
};

enum CkptCudaBuffer { CKPT_CUDA_IN, CKPT_CUDA_MID, CKPT_CUDA_OUT };

// Copies a box of elements from one buffer to another. Strides are in bytes,
// and the box may have no dimensions (one element). If the types differ, each
// element is cast as PyTorch casts on the CPU; otherwise `element` bytes are
// copied.
struct CkptCudaCopy {
  uint64_t in;   // bytes, of the first element
  uint64_t out;  // likewise
  uint32_t in_buffer;
  uint32_t out_buffer;
  uint32_t element;  // bytes, in `in`
  uint32_t from;     // CkptCudaType; both 0 for a plain copy
  uint32_t to;
  uint32_t dims;
  uint32_t shape[CKPT_CUDA_DIMS];
  uint64_t in_stride[CKPT_CUDA_DIMS];
  uint64_t out_stride[CKPT_CUDA_DIMS];
};

// The digest (docs/digest.md) of runs of `bytes` bytes. Strides are in bytes,
// in the buffer and in the tensor's content.
struct CkptCudaDigest {
  uint64_t at;
  uint64_t content;
  uint32_t buffer;
  uint32_t bytes;
  uint32_t dims;
  uint32_t shape[CKPT_CUDA_DIMS];
  uint64_t stride[CKPT_CUDA_DIMS];
  uint64_t content_stride[CKPT_CUDA_DIMS];
};

struct CkptCudaSum {
  uint64_t d0;
  uint64_t d1;
};

// First the copies, in stages: what one reads from mid was written by earlier
// ones. Copies into mid come first. Then the digests.
struct CkptCudaWork {
  uint64_t in_bytes;   // to upload
  uint64_t out_bytes;  // to download
  const struct CkptCudaCopy* copies;
  uint64_t copy_count;
  const struct CkptCudaDigest* digests;
  uint64_t digest_count;
};

struct CkptCudaRing;
struct CkptCudaPeers;

#define CKPT_CUDA_ID_BYTES 128
#define CKPT_CUDA_NAME_BYTES 64

// A part of a round: to or from a rank.
struct CkptCudaParcel {
  uint64_t at;  // byte of peers_memory()
  uint64_t bytes;
  uint32_t rank;
};

struct CkptCudaApi {
  uint32_t abi;         // CKPT_CUDA_ABI
  const char* version;  // "CUDA 13.0, NCCL 2.28.3"
  // Work on fewer bytes is faster on the host than carried to the device.
  uint64_t least_bytes;

  // Unless stated otherwise, functions return zero or, on failure, error() says
  // what went wrong in this thread. A ring is for one thread at a time.

  // The number of usable GPUs; an error says why there is none.
  int32_t (*device_count)(uint32_t* count);
  // 1 if elements can be cast to the same bytes as PyTorch's, else 0. Floats to
  // integers can't: C++ leaves the result undefined for values out of range.
  int32_t (*casts)(uint32_t from, uint32_t to);

  // Every slot gets buffers in, mid and out of `bytes` bytes each.
  int32_t (*ring_open)(uint32_t device, uint32_t slots, uint64_t bytes,
                       struct CkptCudaRing** ring);
  // Waits for what is in progress.
  void (*ring_close)(struct CkptCudaRing* ring);
  // The slot's pinned buffers, aligned to 256 bytes.
  void* (*ring_in)(struct CkptCudaRing* ring, uint32_t slot);
  const void* (*ring_out)(struct CkptCudaRing* ring, uint32_t slot);
  // Returns at once; the slot's `in` and `out` belong to the device until
  // wait().
  int32_t (*ring_submit)(struct CkptCudaRing* ring, uint32_t slot,
                         const struct CkptCudaWork* work);
  // Waits until the slot's work is done. `sums`: one for each digest.
  int32_t (*ring_wait)(struct CkptCudaRing* ring, uint32_t slot,
                       struct CkptCudaSum* sums);

  // Identifies the GPU among those of its machine ("0000:3B:00.0"), ending in a
  // zero byte. Ranks that share one can't meet.
  int32_t (*device_name)(uint32_t device, char name[CKPT_CUDA_NAME_BYTES]);

  // The exchange between ranks, by NCCL; null in a build without it. No call
  // waits. After a failure the communicator is torn down, and all later calls
  // fail.
  //
  // Made by one rank and sent to all over MPI.
  int32_t (*peers_id)(unsigned char id[CKPT_CUDA_ID_BYTES]);
  // Begins to meet the other ranks, which all call this. `bytes`: size of the
  // pinned memory, with as much on the device.
  int32_t (*peers_open)(uint32_t device, uint32_t rank, uint32_t size,
                        const unsigned char id[CKPT_CUDA_ID_BYTES],
                        uint64_t bytes, struct CkptCudaPeers** peers);
  // Gives up what is in progress.
  void (*peers_close)(struct CkptCudaPeers* peers);
  void* (*peers_memory)(struct CkptCudaPeers* peers);
  // Begins a round; the parcels belong to the device until it is done. A rank
  // takes part if it has a parcel in it. Each parcel is in the same round at
  // both ends, and parcels between two ranks are in the same order.
  int32_t (*peers_begin)(struct CkptCudaPeers* peers,
                         const struct CkptCudaParcel* sends,
                         uint64_t send_count,
                         const struct CkptCudaParcel* receives,
                         uint64_t receive_count);
  // Sets `done` to 1 if the last thing begun, meeting or a round, is done.
  int32_t (*peers_done)(struct CkptCudaPeers* peers, int32_t* done);

  const char* (*error)();
};

// The only exported symbol.
#define CKPT_CUDA_ENTRY "ckpt_cuda_api"
typedef const struct CkptCudaApi* (*CkptCudaEntry)();

}  // extern "C"
