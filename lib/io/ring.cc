// SPDX-License-Identifier: Apache-2.0
#include "lib/io/ring.h"

#include <cerrno>

#ifdef CKPT_HAVE_URING
#include <liburing.h>

#include "ckpt/error.h"
#endif

namespace ckpt::io {

#ifdef CKPT_HAVE_URING

namespace {

class Uring : public Ring {
 public:
  explicit Uring(const io_uring& ring) : ring_(ring) {}
  ~Uring() override { ::io_uring_queue_exit(&ring_); }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  void read(int fd, uint64_t offset, std::span<std::byte> buffer,
            uint32_t tag) override {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (!entry) throw bug_error({}, "more reads under way than io_uring has");
    ::io_uring_prep_read(entry, fd, buffer.data(),
                         static_cast<unsigned>(buffer.size()), offset);
    ::io_uring_sqe_set_data64(entry, tag);
    int result = 0;
    do {
      result = ::io_uring_submit(&ring_);
    } while (result == -EINTR);
    // An entry left in the queue would be started by a later call, when its
    // memory belongs to another read.
    if (result != 1) throw io_error({}, "cannot read by io_uring", -result);
  }

  Done wait() override {
    io_uring_cqe* entry = nullptr;
    int result = 0;
    do {
      result = ::io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR);
    if (result < 0) throw io_error({}, "cannot wait for io_uring", -result);
    const Done done{static_cast<uint32_t>(::io_uring_cqe_get_data64(entry)),
                    entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    return done;
  }

 private:
  io_uring ring_;
};

}  // namespace

std::unique_ptr<Ring> Ring::make(uint32_t entries, int& errnum) {
  io_uring ring;
  const int result = ::io_uring_queue_init(entries, &ring, 0);
  errnum = -result;
  if (result < 0) return nullptr;
  return std::make_unique<Uring>(ring);
}

#else

std::unique_ptr<Ring> Ring::make(uint32_t, int& errnum) {
  errnum = ENOSYS;
  return nullptr;
}

#endif

}  // namespace ckpt::io
