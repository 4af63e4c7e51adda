// A compressed range of a file as a readable file of its inflated bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ckpt/catalog.h"
#include "lib/io/file.h"

namespace ckpt::zip {

// Reads forward in bounded memory (one window and one input buffer); a read
// that goes backwards starts over. Never inflates past the declared size; a
// stream that ends early or goes on past it is an input_error. Not
// thread-safe: one thread owns one.
class InflateReader {
 public:
  // `source` must have Codec::kDeflate and outlive nothing: it is copied.
  // `record` names it in messages.
  InflateReader(std::shared_ptr<const io::Handle> file, const File& source,
                std::string record = {});
  ~InflateReader();
  InflateReader(InflateReader&&) noexcept;

  void read(uint64_t offset, std::span<std::byte> buffer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckpt::zip
