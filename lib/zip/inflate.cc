#include "lib/zip/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "lib/text/format.h"

namespace ckpt::zip {

struct InflateReader::State {
  State(std::shared_ptr<const io::Handle> f, const File& s, std::string r)
      : file(std::move(f)), source(s), record(std::move(r)) {
    // Negative: a raw stream, without zlib's header and checksum.
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
      throw resource_error(where(), "no memory for an inflate window");
  }
  ~State() { inflateEnd(&stream); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Where where() const { return {file->path(), text::printable(record)}; }

  struct Step {
    size_t bytes = 0;
    bool ended = false;
  };
  void restart();
  void refill();
  Step step(std::span<std::byte> buffer);
  void produce(std::span<std::byte> buffer);
  void finish();

  const std::shared_ptr<const io::Handle> file;
  const File source;
  const std::string record;
  z_stream stream = {};
  uint64_t taken = 0;  // packed bytes that were read from the file
  uint64_t at = 0;     // inflated bytes so far
  bool ended = false;  // the stream said so
  std::array<std::byte, 64 << 10> input;
};

void InflateReader::State::restart() {
  inflateReset(&stream);
  stream.avail_in = 0;
  taken = 0;
  at = 0;
  ended = false;
}

// More input, if there is any and it is needed: zlib may still hold output.
void InflateReader::State::refill() {
  const uint64_t count =
      std::min<uint64_t>(input.size(), source.packed_size - taken);
  if (stream.avail_in != 0 || count == 0) return;
  file->read(source.packed_offset + taken, std::span(input).first(count));
  taken += count;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(count);
}

// One step of inflate into the front of the buffer; returns how many bytes it
// made, and whether the stream ended there.
InflateReader::State::Step InflateReader::State::step(
    std::span<std::byte> buffer) {
  constexpr size_t kMost = size_t{1} << 30;  // uInt has 32 bits
  const size_t room = std::min(buffer.size(), kMost);
  refill();
  stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
  stream.avail_out = static_cast<uInt>(room);
  const int status = inflate(&stream, Z_NO_FLUSH);
  if (status == Z_BUF_ERROR)
    throw input_error(where(),
                      "deflate stream of {} bytes stops after {} of {} "
                      "inflated bytes",
                      source.packed_size, at, source.size);
  if (status != Z_OK && status != Z_STREAM_END)
    throw input_error(where(), "bad deflate stream after {} inflated bytes",
                      at);
  return {room - stream.avail_out, status == Z_STREAM_END};
}

// Fills the buffer with the next bytes.
void InflateReader::State::produce(std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    const Step made = step(buffer);
    at += made.bytes;
    buffer = buffer.subspan(made.bytes);
    if (!made.ended) continue;
    ended = true;
    if (at != source.size)
      throw input_error(where(),
                        "deflate stream ends after {} of {} inflated bytes", at,
                        source.size);
  }
  if (at == source.size) finish();
}

// All declared bytes are there: the stream must end here too. It gets room
// for one byte more, so that one that goes on can't go far.
void InflateReader::State::finish() {
  while (!ended) {
    std::byte extra;
    const Step made = step({&extra, 1});
    if (made.bytes != 0)
      throw input_error(where(),
                        "deflate stream goes on past the {} inflated bytes "
                        "that the directory declares",
                        source.size);
    ended = made.ended;
  }
  const uint64_t left = stream.avail_in + (source.packed_size - taken);
  if (left != 0)
    throw input_error(where(), "{} bytes are left after the deflate stream",
                      left);
}

InflateReader::InflateReader(std::shared_ptr<const io::Handle> file,
                             const File& source, std::string record)
    : state_(std::make_unique<State>(std::move(file), source,
                                     std::move(record))) {}
InflateReader::~InflateReader() = default;
InflateReader::InflateReader(InflateReader&&) noexcept = default;

void InflateReader::read(uint64_t offset, std::span<std::byte> buffer) {
  State& state = *state_;
  const uint64_t size = state.source.size;
  if (offset > size || buffer.size() > size - offset)
    throw input_error(state.where(),
                      "deflated data hold {} bytes, wanted bytes {}-{}", size,
                      offset, offset + buffer.size());
  if (offset < state.at) state.restart();
  std::array<std::byte, 64 << 10> skipped;
  while (state.at < offset) {
    const uint64_t count =
        std::min<uint64_t>(skipped.size(), offset - state.at);
    state.produce(std::span(skipped).first(count));
  }
  state.produce(buffer);
}

}  // namespace ckpt::zip
