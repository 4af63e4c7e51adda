// SPDX-License-Identifier: Apache-2.0
#include "convert/tokenizer/sentencepiece.h"

#include <bit>
#include <cstring>
#include <utility>

#include "ckpt/error.h"
#include "lib/text/utf8.h"

namespace ckpt::families {
namespace {

enum Wire : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// The fields of one message. Memory is bounded by the file: text is copied
// once.
class Message {
 public:
  Message(std::string_view all, std::string_view body, const std::string& path)
      : all_(all), rest_(body), path_(path) {}

  // The next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t tag = varint();
    field_ = tag >> 3;
    wire_ = static_cast<Wire>(tag & 7);
    if (field_ == 0) fail("field 0");
    switch (wire_) {
      case kVarint:
        number_ = varint();
        break;
      case kFixed64:
        bytes_ = take(8);
        break;
      case kFixed32:
        bytes_ = take(4);
        break;
      case kBytes:
        bytes_ = take(varint());
        break;
      default:
        fail("a wire type that protobuf does not have");
    }
    return true;
  }

  uint64_t field() const { return field_; }
  std::string_view bytes() const { return of(kBytes), bytes_; }
  Message message() const { return Message(all_, bytes(), path_); }
  uint64_t number() const { return of(kVarint), number_; }
  float real() const {
    of(kFixed32);
    uint32_t bits = 0;
    for (size_t i = 4; i-- > 0;)
      bits = bits << 8 | static_cast<uint8_t>(bytes_[i]);
    return std::bit_cast<float>(bits);
  }
  [[noreturn]] void fail(const char* what) const {
    throw input_error({path_, {}}, "byte {}: {}: not SentencePiece's model",
                      rest_.data() - all_.data(), what);
  }

 private:
  void of(Wire wire) const {
    if (wire_ != wire) fail("a field of another type");
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t byte = static_cast<uint8_t>(take(1)[0]);
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail("a number of more than 64 bits");
  }
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) fail("the text ends");
    const std::string_view part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return part;
  }

  std::string_view all_, rest_;
  const std::string& path_;
  uint64_t field_ = 0;
  Wire wire_ = kVarint;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

SentencePiece piece_of(Message message) {
  SentencePiece piece;
  while (message.next()) {
    if (message.field() == 1) {
      piece.text = message.bytes();
      if (!text::is_utf8(piece.text)) message.fail("a piece is not UTF-8");
    } else if (message.field() == 2) {
      piece.score = message.real();
      if (piece.score != piece.score) message.fail("a score is not a number");
    } else if (message.field() == 3) {
      const uint64_t type = message.number();
      if (type < 1 || type > 6) message.fail("a piece of unknown type");
      piece.type = static_cast<TokenType>(type);
    }
  }
  if (piece.text.empty()) message.fail("a piece without text");
  return piece;
}

}  // namespace

SentencePieceModel parse_sentencepiece(std::string_view bytes,
                                       const std::string& path) {
  SentencePieceModel model;
  Message file(bytes, bytes, path);
  while (file.next()) {
    if (file.field() == 1) {
      model.pieces.push_back(piece_of(file.message()));
    } else if (file.field() == 2) {
      Message trainer = file.message();
      while (trainer.next())
        if (trainer.field() == 3) {
          if (trainer.number() != 1 && trainer.number() != 2)
            trainer.fail("neither Unigram nor BPE");
          model.unigram = trainer.number() == 1;
        }
    } else if (file.field() == 3) {
      Message normalizer = file.message();
      while (normalizer.next()) {
        if (normalizer.field() == 2)
          model.charsmap = normalizer.bytes();
        else if (normalizer.field() == 3)
          model.add_dummy_prefix = normalizer.number() != 0;
        else if (normalizer.field() == 4)
          model.remove_extra_whitespaces = normalizer.number() != 0;
      }
    }
  }
  if (model.pieces.empty()) file.fail("no pieces");
  return model;
}

}  // namespace ckpt::families
