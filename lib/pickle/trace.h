// SPDX-License-Identifier: Apache-2.0
// What loading a pickle would import and call, without a value tree.
//
// decode() makes values and is strict. This follows the unpickler's stack,
// marks and memo only as far as globals and calls depend on them, and continues
// where Python would: it may continue where Python fails, never the other way
// round (tests/app/formats/scan_random_test.py). A value is 8 bytes: its kind,
// and where in the file it came from. So a pickle of any size is examined in
// little memory, and what precedes a broken opcode is still found: Python would
// have run it by then.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "lib/io/file.h"

namespace ckpt::pickle {

// How a global is used; bits.
enum Use : uint16_t {
  kImport = 1,       // GLOBAL, STACK_GLOBAL: its module is imported
  kReduce = 2,       // called
  kNewObj = 4,       // NEWOBJ, NEWOBJ_EX: cls.__new__
  kInst = 8,         // INST, OBJ: called, or cls.__new__ without arguments
  kBuild = 16,       // BUILD on what it made: its __setstate__
  kChange = 32,      // BUILD, APPEND, SETITEM … on the global itself
  kAttribute = 64,   // getattr() of it, by a name in the pickle
  kArgument = 128,   // called by what it is passed to
  kExtension = 256,  // EXT1/2/4: a number in the loading program's registry
  kKept = 512,       // a value in the result: whatever holds it may call it
  kHides = 1024,     // numpy.dtype: bytes of the file become addresses
};

struct Mention {
  std::string module;  // as Python 3 names it; empty if unknowable
  std::string name;    // "Outer.inner"; with an empty module a description
  uint16_t uses = 0;
  uint64_t offset = 0;  // of the first opcode that names it
};

struct Range {
  uint64_t offset = 0;
  uint64_t size = 0;
};

struct Nested {
  Range range;
  bool latin1 = false;   // written as a text of these characters, in UTF-8
  bool escaped = false;  // or as a line in raw-unicode-escape
};

struct Trace {
  // References to its elements stay valid while it grows.
  std::deque<Mention> mentions;
  // Bytes passed to torch.storage._load_from_bytes: a file of torch.save.
  std::vector<Nested> nested;
  uint64_t end = 0;  // after STOP, or where the error is
  uint64_t opcodes = 0;
  bool protocol = false;  // it begins with PROTO
  uint8_t number = 0;     // of its protocol, as the last PROTO says
  bool acts = false;      // something is called, not only named
  bool gave_up = false;   // `error` is a limit of ours: Python may continue
  // Arrays whose elements lie between opcodes. Only joblib skips them: pickle's
  // own loader takes them for opcodes.
  uint64_t arrays = 0;
  // Empty if STOP was reached. What precedes the error was still seen.
  std::string error;
};

enum class Loader : uint8_t { kPickle, kJoblib };

// Traces the pickle that begins at `offset` and ends before `end`. Throws only
// if it can't be read (kIo).
Trace trace(const io::Handle& file, uint64_t offset, uint64_t end,
            Loader loader = Loader::kPickle);

// The bits as "REDUCE", "NEWOBJ" …, for people; "GLOBAL" for kImport.
std::vector<std::string_view> use_names(uint16_t uses);

}  // namespace ckpt::pickle
