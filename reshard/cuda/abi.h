// SPDX-License-Identifier: Apache-2.0
// What libckpt_cuda.so offers: the work on one block of a plan, done by a GPU,
// and the exchange between GPUs, behind plain C so that the program needs no
// CUDA to start.
//
//   host                          device
//   in (pinned)  --upload-->      in   --copies-->  [mid --casts-->]  out
//   out (pinned) <--download--    out               digests of any of them
//
// A ring has a few slots; each has these buffers and a stream of its own. So
// one slot's upload, another's kernels and a third's download go on together,
// while the host reads into a fourth or writes from it.
//
// For tests there is libckpt_cuda_host.so: the same sources with memory for
// device memory and loops for kernels. It is taken instead of libckpt_cuda.so
// if CKPT_CUDA_HOST=1 is in the environment. It is for finding mistakes, not
// for speed, and is not installed. CKPT_CUDA_LEAST=0 gives a real device the
// smallest work, too.
#pragma once

#include <stdint.h>

// Grows with every change of what is below.
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

// Elements of a box from one buffer to another. Strides are bytes, and the
// box may have none (one element). If the types differ, each element is cast,
// as PyTorch casts on the CPU; else `element` bytes are copied.
struct CkptCudaCopy {
  uint64_t in;   // bytes, of the first element
  uint64_t out;  // likewise
  uint32_t in_buffer;
  uint32_t out_buffer;
  uint32_t element;  // bytes, as `in` has them
  uint32_t from;     // CkptCudaType; both 0 for a plain copy
  uint32_t to;
  uint32_t dims;
  uint32_t shape[CKPT_CUDA_DIMS];
  uint64_t in_stride[CKPT_CUDA_DIMS];
  uint64_t out_stride[CKPT_CUDA_DIMS];
};

// The digest (docs/digest.md) of runs of `bytes` bytes. Strides are bytes, in
// the buffer and in the tensor's content.
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

// First the copies, in stages: what one reads from mid, earlier ones wrote.
// Copies into mid come first. Then the digests.
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

// A part of a round: to a rank, or from it.
struct CkptCudaParcel {
  uint64_t at;  // byte of peers_memory()
  uint64_t bytes;
  uint32_t rank;
};

struct CkptCudaApi {
  uint32_t abi;         // CKPT_CUDA_ABI
  const char* version;  // "CUDA 13.0, NCCL 2.28.3"
  // Work of fewer bytes is done faster by the host than carried to the device.
  uint64_t least_bytes;

  // Unless said otherwise functions return zero, or else error() says what
  // went wrong in this thread. A ring is for one thread at a time.

  // GPUs that can be used; an error says why no GPU can.
  int32_t (*device_count)(uint32_t* count);
  // 1 if elements can be cast so that the bytes are PyTorch's, else 0. Floats
  // to integers can't: C++ leaves open what comes of values out of range.
  int32_t (*casts)(uint32_t from, uint32_t to);

  // Buffers of `bytes` bytes each, in, mid and out of every slot.
  int32_t (*ring_open)(uint32_t device, uint32_t slots, uint64_t bytes,
                       struct CkptCudaRing** ring);
  // Waits for what is under way.
  void (*ring_close)(struct CkptCudaRing* ring);
  // The slot's pinned buffers, aligned to 256 bytes.
  void* (*ring_in)(struct CkptCudaRing* ring, uint32_t slot);
  const void* (*ring_out)(struct CkptCudaRing* ring, uint32_t slot);
  // Returns at once; `in` and `out` of the slot are the device's until wait().
  int32_t (*ring_submit)(struct CkptCudaRing* ring, uint32_t slot,
                         const struct CkptCudaWork* work);
  // Until the work of the slot is done. `sums`: one for each digest.
  int32_t (*ring_wait)(struct CkptCudaRing* ring, uint32_t slot,
                       struct CkptCudaSum* sums);

  // Which GPU it is among those of its machine ("0000:3B:00.0"), ending in a
  // zero byte. Ranks that share one can't meet.
  int32_t (*device_name)(uint32_t device, char name[CKPT_CUDA_NAME_BYTES]);

  // The exchange between ranks, by NCCL; null in a build without it. No call
  // waits. Once one has failed the communicator is torn down, and all that
  // follow fail.
  //
  // Made by one rank and sent to all of them, over MPI.
  int32_t (*peers_id)(unsigned char id[CKPT_CUDA_ID_BYTES]);
  // Begins to meet the other ranks, which all call it. `bytes`: of pinned
  // memory, with as much on the device.
  int32_t (*peers_open)(uint32_t device, uint32_t rank, uint32_t size,
                        const unsigned char id[CKPT_CUDA_ID_BYTES],
                        uint64_t bytes, struct CkptCudaPeers** peers);
  // Gives up what is under way.
  void (*peers_close)(struct CkptCudaPeers* peers);
  void* (*peers_memory)(struct CkptCudaPeers* peers);
  // Begins a round: the parcels are the device's until it is done. A rank
  // takes part if it has a parcel in it; each parcel is in the same round at
  // both ends, and parcels of one pair of ranks stand in the same order.
  int32_t (*peers_begin)(struct CkptCudaPeers* peers,
                         const struct CkptCudaParcel* sends,
                         uint64_t send_count,
                         const struct CkptCudaParcel* receives,
                         uint64_t receive_count);
  // Sets `done` to 1 if what was begun last, to meet or a round, is done.
  int32_t (*peers_done)(struct CkptCudaPeers* peers, int32_t* done);

  const char* (*error)();
};

// The only symbol.
#define CKPT_CUDA_ENTRY "ckpt_cuda_api"
typedef const struct CkptCudaApi* (*CkptCudaEntry)();

}  // extern "C"
