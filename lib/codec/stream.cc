// SPDX-License-Identifier: Apache-2.0
#include "lib/codec/stream.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "ckpt/error.h"
#include "lib/codec/blosc.h"
#include "lib/codec/decoder.h"
#include "lib/codec/delta.h"
#include "lib/text/format.h"

namespace ckpt::codec {
namespace {

constexpr uint64_t kInputBuffer = 64 << 10;

// The packed bytes of a range, fed to a decoder; several streams one after the
// other count as one.
class Feed {
 public:
  Feed(const io::Handle& file, Codec codec, uint64_t offset, uint64_t size,
       Where where)
      : file_(file),
        codec_(codec),
        offset_(offset),
        packed_(size),
        where_(std::move(where)),
        decoder_(make_decoder(codec, where_)),
        buffer_(std::min(size, kInputBuffer)) {}

  void restart() {
    decoder_->restart();
    input_ = {};
    taken_ = 0;
    made_ = 0;
    ended_ = false;
  }

  // Fills the front of the buffer, as far as one step gets; returns how many
  // bytes it made. 0: the data end (`ended`) or more input was taken.
  size_t step(std::span<std::byte> output) {
    refill();
    const size_t room = output.size();
    const size_t had = input_.size();
    const Decoder::Status status = decoder_->step(input_, output);
    const size_t made = room - output.size();
    if (status == Decoder::Status::kBad)
      throw input_error(where_, "bad {} stream after {} inflated bytes",
                        name(codec_), made_);
    made_ += made;
    if (status == Decoder::Status::kEnded) {
      ended_ = !concatenates(codec_) || left() == 0;
      if (!ended_) decoder_->restart();
    } else if (made == 0 && had == input_.size()) {
      stopped_ = true;
    }
    return made;
  }

  bool ended() const { return ended_; }
  // The packed bytes are used up (or can't be), short of the stream's end.
  bool stopped() const { return stopped_; }
  uint64_t made() const { return made_; }
  uint64_t left() const { return input_.size() + (packed_ - taken_); }
  uint64_t packed() const { return packed_; }
  const Where& where() const { return where_; }
  uint64_t memory() const { return decoder_->memory() + buffer_.size(); }

 private:
  void refill() {
    if (!input_.empty()) return;
    const uint64_t count = std::min<uint64_t>(buffer_.size(), packed_ - taken_);
    if (count == 0) return;
    const auto part = std::span(buffer_).first(count);
    file_.read(offset_ + taken_, part);
    taken_ += count;
    input_ = part;
  }

  const io::Handle& file_;
  const Codec codec_;
  const uint64_t offset_;
  const uint64_t packed_;
  const Where where_;
  const std::unique_ptr<Decoder> decoder_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> input_;
  uint64_t taken_ = 0;  // packed bytes read from the file so far
  uint64_t made_ = 0;   // plain bytes so far
  bool ended_ = false;
  bool stopped_ = false;
};

void check_range(const Where& where, Codec codec, uint64_t size,
                 uint64_t offset, size_t count) {
  if (offset > size || count > size - offset)
    throw input_error(where, "{} data hold {} bytes, wanted bytes {}-{}",
                      name(codec), size, offset, offset + count);
}

void check_rest(const Where& where, Codec codec, uint64_t left) {
  if (left != 0)
    throw input_error(where, "{} bytes are left after the {} stream", left,
                      name(codec));
}

}  // namespace

class Stream::Source {
 public:
  virtual ~Source() = default;
  virtual void read(uint64_t offset, std::span<std::byte> buffer) = 0;
  virtual uint64_t memory() const = 0;
};

class Stream::Forward final : public Source {
 public:
  Forward(std::shared_ptr<const io::Handle> file, const File& source,
          Where where)
      : file_(std::move(file)),
        codec_(source.codec),
        size_(source.size),
        feed_(*file_, codec_, source.packed_offset, source.packed_size,
              std::move(where)) {}

  void read(uint64_t offset, std::span<std::byte> buffer) override {
    check_range(feed_.where(), codec_, size_, offset, buffer.size());
    if (offset < feed_.made()) feed_.restart();
    std::vector<std::byte> skipped(
        std::min<uint64_t>(offset - feed_.made(), 64 << 10));
    while (feed_.made() < offset) {
      const uint64_t count =
          std::min<uint64_t>(skipped.size(), offset - feed_.made());
      produce(std::span(skipped).first(count));
    }
    produce(buffer);
  }

  uint64_t memory() const override { return feed_.memory(); }

 private:
  // Fills the buffer with the next bytes.
  void produce(std::span<std::byte> buffer) {
    while (!buffer.empty()) {
      if (feed_.ended())
        throw input_error(feed_.where(),
                          "{} stream ends after {} of {} inflated bytes",
                          name(codec_), feed_.made(), size_);
      buffer = buffer.subspan(feed_.step(buffer));
      check_stop();
    }
    if (feed_.made() == size_) finish();
  }

  void check_stop() const {
    if (feed_.stopped())
      throw input_error(feed_.where(),
                        "{} stream of {} bytes stops after {} of {} inflated "
                        "bytes",
                        name(codec_), feed_.packed(), feed_.made(), size_);
  }

  // All declared bytes are there: the stream must end here too. It gets room
  // for one more byte, so a stream that continues can't get far.
  void finish() {
    while (!feed_.ended()) {
      std::byte extra;
      if (feed_.step({&extra, 1}) != 0)
        throw input_error(feed_.where(),
                          "{} stream goes on past the {} inflated bytes that "
                          "it should have",
                          name(codec_), size_);
      check_stop();
    }
    check_rest(feed_.where(), codec_, feed_.left());
  }

  const std::shared_ptr<const io::Handle> file_;
  const Codec codec_;
  const uint64_t size_;
  Feed feed_;
};

class Stream::Chunk final : public Source {
 public:
  Chunk(std::shared_ptr<const io::Handle> file, const File& source, Where where)
      : file_(std::move(file)),
        where_(where),
        chunk_(*file_, source.packed_offset, source.packed_size,
               std::move(where)) {
    if (chunk_.size() != source.size)
      throw input_error(where_,
                        "blosc chunk of {} plain bytes, {} are expected",
                        chunk_.size(), source.size);
  }

  void read(uint64_t offset, std::span<std::byte> buffer) override {
    check_range(where_, Codec::kBlosc, chunk_.size(), offset, buffer.size());
    chunk_.read(offset, buffer);
  }

  uint64_t memory() const override { return chunk_.memory(); }

 private:
  const std::shared_ptr<const io::Handle> file_;
  const Where where_;
  BloscChunk chunk_;
};

// Bytes as they are.
class Stream::Stored final : public Source {
 public:
  Stored(std::shared_ptr<const io::Handle> file, const File& source,
         Where where)
      : file_(std::move(file)),
        offset_(source.packed_offset),
        size_(source.size),
        where_(std::move(where)) {
    if (source.packed_size != size_)
      throw input_error(where_, "{} stored bytes, {} are expected",
                        source.packed_size, size_);
  }

  void read(uint64_t offset, std::span<std::byte> buffer) override {
    check_range(where_, Codec::kStored, size_, offset, buffer.size());
    file_->read(offset_ + offset, buffer);
  }

  uint64_t memory() const override { return 0; }

 private:
  const std::shared_ptr<const io::Handle> file_;
  const uint64_t offset_;
  const uint64_t size_;
  const Where where_;
};

// Elements whose differences the codec yields.
class Stream::Differences final : public Source {
 public:
  Differences(std::shared_ptr<const io::Handle> file, const File& source,
              const std::string& record)
      : size_(source.size),
        where_{file->path(), text::printable(record)},
        stored_(std::move(file), without_delta(source, where_), record),
        plain_(*source.delta, size_,
               [this](uint64_t offset, std::span<std::byte> buffer) {
                 stored_.read(offset, buffer);
               }) {}

  void read(uint64_t offset, std::span<std::byte> buffer) override {
    check_range(where_, Codec::kStored, size_, offset, buffer.size());
    plain_.read(offset, buffer);
  }

  uint64_t memory() const override {
    return stored_.memory() + plain_.memory();
  }

 private:
  static File without_delta(const File& source, const Where& where) {
    File file = source;
    const auto size = stored_size(*source.delta, source.size);
    if (!size)
      throw input_error(where, "{} bytes end within a difference", source.size);
    file.size = *size;
    file.delta.reset();
    return file;
  }

  const uint64_t size_;
  const Where where_;
  Stream stored_;
  Undelta plain_;
};

Stream::Stream(std::shared_ptr<const io::Handle> file, const File& source,
               std::string record) {
  Where where{file->path(), text::printable(record)};
  if (source.delta)
    source_ = std::make_unique<Differences>(std::move(file), source, record);
  else if (source.codec == Codec::kStored)
    source_ =
        std::make_unique<Stored>(std::move(file), source, std::move(where));
  else if (source.codec == Codec::kBlosc)
    source_ =
        std::make_unique<Chunk>(std::move(file), source, std::move(where));
  else
    source_ =
        std::make_unique<Forward>(std::move(file), source, std::move(where));
}
Stream::~Stream() = default;
Stream::Stream(Stream&&) noexcept = default;

void Stream::read(uint64_t offset, std::span<std::byte> buffer) {
  source_->read(offset, buffer);
}

uint64_t Stream::memory() const { return source_->memory(); }

namespace {

using Sink = std::function<void(std::span<const std::byte>)>;

void check_limit(const Where& where, uint64_t size, uint64_t limit) {
  if (size > limit)
    throw input_error(where, "inflates to more than the {} bytes allowed",
                      limit);
}

void decompress_chunk(const io::Handle& file, uint64_t limit,
                      const Where& where, const Sink& sink) {
  BloscChunk chunk(file, 0, file.size(), where);
  check_limit(where, chunk.size(), limit);
  std::vector<std::byte> part(kInputBuffer);
  for (uint64_t at = 0; at < chunk.size(); at += part.size()) {
    const auto piece = std::span(part).first(
        std::min<uint64_t>(part.size(), chunk.size() - at));
    chunk.read(at, piece);
    sink(piece);
  }
}

void decompress_to(const io::Handle& file, Codec codec, uint64_t limit,
                   const std::string& record, const Sink& sink) {
  const Where where{file.path(), text::printable(record)};
  if (codec == Codec::kBlosc) {
    decompress_chunk(file, limit, where, sink);
    return;
  }
  Feed feed(file, codec, 0, file.size(), where);
  std::vector<std::byte> part(kInputBuffer);
  while (!feed.ended()) {
    const size_t made = feed.step(part);
    if (feed.stopped())
      throw input_error(where,
                        "{} stream of {} bytes stops after {} inflated bytes",
                        name(codec), feed.packed(), feed.made());
    check_limit(where, feed.made(), limit);
    sink(std::span(part).first(made));
  }
  check_rest(where, codec, feed.left());
}

}  // namespace

std::string decompress(const io::Handle& file, Codec codec, uint64_t limit,
                       const std::string& record) {
  std::string bytes;
  decompress_to(
      file, codec, limit, record, [&](std::span<const std::byte> part) {
        bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
      });
  return bytes;
}

uint64_t measure(const io::Handle& file, Codec codec, uint64_t limit,
                 const std::string& record) {
  uint64_t bytes = 0;
  decompress_to(file, codec, limit, record,
                [&](std::span<const std::byte> part) { bytes += part.size(); });
  return bytes;
}

}  // namespace ckpt::codec
