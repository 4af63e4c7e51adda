// SPDX-License-Identifier: Apache-2.0
#include "lib/pickle/count.h"

#include <algorithm>

#include "ckpt/error.h"
#include "lib/pickle/input.h"

namespace ckpt::pickle {
namespace {

// Texts are passed over in pieces: they may be larger than the memory there is.
void skip(Input& in, uint64_t bytes) {
  constexpr uint64_t kPiece = 4096;
  for (; bytes > 0; bytes -= std::min(bytes, kPiece))
    in.take(std::min(bytes, kPiece));
}

void skip_line(Input& in) {
  while (in.byte() != '\n') {
  }
}

void skip_argument(Input& in, uint8_t opcode) {
  switch (opcode) {
    case 'K':
    case 'h':
    case 'q':
    case 0x80:
    case 0x82:
      return skip(in, 1);
    case 'M':
    case 0x83:
      return skip(in, 2);
    case 'J':
    case 'j':
    case 'r':
    case 0x84:
      return skip(in, 4);
    case 'G':
    case 0x95:
      return skip(in, 8);
    case 'U':
    case 'C':
    case 0x8A:
    case 0x8C:
      return skip(in, in.byte());
    case 'B':
    case 'T':
    case 'X':
    case 0x8B:
      return skip(in, in.number<uint32_t>());
    case 0x8D:
    case 0x8E:
    case 0x96:
      return skip(in, in.number<uint64_t>());
    case 'c':
    case 'i':
      skip_line(in);
      return skip_line(in);
    case 'F':
    case 'I':
    case 'L':
    case 'P':
    case 'S':
    case 'V':
    case 'g':
    case 'p':
      return skip_line(in);
    default:
      return;
  }
}

constexpr uint8_t kOfNewObj = 0x81, kOfNewObjEx = 0x92, kOfPersId = 'P',
                  kOfBinPersId = 'Q';

struct Counted {
  uint64_t opcodes = 0;
  uint64_t objects = 0;
  uint64_t storages = 0;
  uint64_t end = 0;  // after STOP, or where the bytes end
};

Counted count(const io::Handle& file, uint64_t begin, uint64_t end) {
  Input in(file, begin, end, UINT64_MAX);
  Counted counted;
  try {
    for (uint8_t opcode = 0; opcode != '.' && in.left() > 0;
         ++counted.opcodes) {
      opcode = in.byte();
      counted.objects += opcode == kOfNewObj || opcode == kOfNewObjEx;
      counted.storages += opcode == kOfPersId || opcode == kOfBinPersId;
      skip_argument(in, opcode);
    }
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;  // else it is cut short
  }
  counted.end = in.position();
  return counted;
}

}  // namespace

Expected expect_values(const io::Handle& file, uint64_t begin, uint64_t at,
                       uint64_t taken, uint64_t& end) {
  const Counted made = count(file, begin, at);
  const Counted all = count(file, begin, end);
  end = all.end;
  const uint64_t left = all.opcodes - std::min(all.opcodes, made.opcodes);
  const double each = static_cast<double>(taken) /
                      static_cast<double>(std::max<uint64_t>(1, made.opcodes));
  // An opcode with a number takes up to nine bytes, what is beyond is text.
  constexpr uint64_t kOpcode = 9;
  const uint64_t bytes = end - std::min(end, at);
  constexpr uint64_t kObjects = 3;  // of a piece
  return {.bytes = taken +
                   static_cast<uint64_t>(each * static_cast<double>(left)) +
                   bytes - std::min(bytes, kOpcode * left),
          .pieces = std::max(all.objects / kObjects + 1, all.storages)};
}

}  // namespace ckpt::pickle
