// SPDX-License-Identifier: Apache-2.0
#include "formats/scan/scanner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "ckpt/error.h"
#include "containers/ocdbt/database.h"
#include "formats/scan/harmless.h"
#include "formats/scan/numbers.h"
#include "lib/codec/stream.h"
#include "lib/codec/whole.h"
#include "lib/pickle/codecs.h"
#include "lib/pickle/decode.h"
#include "lib/text/utf8.h"
#include "lib/tree_memory.h"

namespace ckpt::scan {
namespace {

constexpr int kDeepest = 16;
// Limit for packed data, whatever the memory limit.
constexpr uint64_t kLeastUnpacked = uint64_t{64} << 20;

constexpr std::string_view kLegacyMagic = "119547037146038801333356";
constexpr uint64_t kLongestMagic = 64;

bool is_legacy_magic(const io::Handle& file, uint64_t end) {
  if (end > kLongestMagic) return false;
  try {
    const auto decoded = pickle::decode(file, 0, end);
    const pickle::Document& document = *decoded.document;
    return document.is(document.root(), pickle::Type::kBigInt) &&
           document.text(document.root()) == kLegacyMagic;
  } catch (const Error&) {
    return false;
  }
}

bool all_zero(const io::Handle& file, uint64_t at) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  if (file.size() - at > kMost) return false;
  const std::string rest = file.read_string(at, file.size() - at);
  return rest.find_first_not_of('\0') == rest.npos;
}

// Streams that are unpacked whole, and archives that can't be unpacked here.
std::string_view other_packer(std::string_view head) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kMagics[] = {
      {"\xFD"
       "7zXZ\0"sv,
       "xz"},
      {"7z\xBC\xAF\x27\x1C"sv, "7z"},
      {"\x04\x22\x4D\x18"sv, "lz4"},
      {"Rar!\x1A\x07"sv, "rar"},
      {"ZF0x"sv, "old joblib"},
  };
  for (const auto& [magic, name] : kMagics)
    if (head.starts_with(magic)) return name;
  // Properties, u32 size of the dictionary, u64 size (all ones: unknown).
  if (head.size() > 13 && head.starts_with("]\0"sv) &&
      (head.substr(10, 3) == "\0\0\0"sv ||
       head.substr(5, 8) == std::string(8, '\xFF')))
    return "lzma";
  return {};
}

std::optional<Codec> codec_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Codec::kGzip;
  if (head.starts_with("BZh")) return Codec::kBzip2;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Codec::kZstd;
  for (const std::string_view zlib :
       {"\x78\x01", "\x78\x5E", "\x78\x9C", "\x78\xDA"})
    if (head.starts_with(zlib)) return Codec::kZlib;
  return std::nullopt;
}

// A data file of a database (containers/ocdbt) begins with whatever value came
// first, packed or not, and others follow: nothing takes it for a stream.
bool is_database_part(const std::string& path) {
  const std::string name = io::base_name(path), folder = io::parent(path);
  return name.size() == 32 &&
         name.find_first_not_of("0123456789abcdef") == name.npos &&
         io::base_name(folder) == "d" && ocdbt::is_database(io::parent(folder));
}

// Text that someone would open in an editor.
bool is_text(const io::Handle& file) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), kHead));
  const auto odd = [](char c) {
    return static_cast<uint8_t>(c) < ' ' && c != '\n' && c != '\r' && c != '\t';
  };
  if (std::ranges::any_of(head, odd)) return false;
  // A code point may be cut in two at the end of what is read.
  const size_t most = file.size() > kHead ? 4 : 1;
  for (size_t cut = 0; cut < most && cut < head.size(); ++cut)
    if (text::is_utf8(std::string_view(head).substr(0, head.size() - cut)))
      return true;
  return false;
}

// A zip's end record without a comment: forgiving readers take what comes
// before the archive for a prefix.
bool ends_like_zip(const io::Handle& file) {
  constexpr uint64_t kEnd = 22;
  return file.size() >= kEnd &&
         file.read_string(file.size() - kEnd, 4) == "PK\5\6";
}

bool is_dotted_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) || c == '_' || c == '.' || c == '-';
  });
}

// Of 100,000 storages of random numbers one calls something that it takes from
// the extension registry or computes. To do harm a pickle has to name a module:
// the registry is empty unless the loading program fills it, and computing
// begins with a name.
bool imports_harm(const pickle::Mention& mention) {
  return is_dotted_name(mention.module) && is_dotted_name(mention.name) &&
         !is_harmless(mention);
}

// A tar header sums its own bytes, the sum taken as blanks.
bool is_tar(std::string_view head) {
  if (head.size() < 512) return false;
  uint64_t sum = 0;
  for (size_t i = 0; i < 512; ++i)
    sum += i >= 148 && i < 156 ? ' ' : static_cast<uint8_t>(head[i]);
  uint64_t said = 0;
  size_t digits = 0;
  for (const char c : head.substr(148, 8)) {
    if (c >= '0' && c <= '7') {
      said = said * 8 + static_cast<uint64_t>(c - '0');
      ++digits;
    } else if (digits > 0) {
      break;
    }
  }
  return digits > 0 && sum == said && head[0] != '\0';
}

// The bytes that a text in UTF-8 stands for, one a character. Others than those
// of latin1 don't encode: Python fails there.
std::string from_latin1_text(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if ((lead == 0xC2 || lead == 0xC3) && i + 1 < text.size())
      bytes += static_cast<char>((lead & 3) << 6 |
                                 (static_cast<uint8_t>(text[++i]) & 0x3F));
    else
      bytes += text[i];
  }
  return bytes;
}

bool acts(const pickle::Trace& trace) {
  return trace.acts && std::ranges::any_of(trace.mentions, imports_harm);
}

}  // namespace

bool acts_as_pickle(const io::Handle& file, uint64_t count) {
  return acts(pickle::trace(file, 0, count));
}

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNoPickle:
      return "no_pickle";
    case Verdict::kSafe:
      return "safe";
    case Verdict::kUnreadable:
      return "unreadable";
    case Verdict::kExecutes:
      return "executes";
  }
  return "unreadable";
}

std::string describe(const Global& global) {
  const pickle::Mention& mention = global.mention;
  const std::string in = global.inside.empty() ? "" : " of " + global.inside;
  if (!global.loader.empty())
    return fmt::format("{} (by {}){}{}{}", mention.name, global.loader,
                       global.where.empty() ? "" : " at ", global.where, in);
  std::string uses;
  for (const std::string_view use : pickle::use_names(mention.uses))
    uses += (uses.empty() ? "" : " ") + std::string(use);
  return fmt::format("{}{}{} ({}) at byte {}{}", mention.module,
                     mention.module.empty() ? "" : ".", mention.name, uses,
                     mention.offset, in);
}

void Scanner::problem(const Part& part, const std::string& what) {
  known_ = true;
  if (!found_.problem.empty()) return;
  found_.problem = part.inside.empty() ? what : part.inside + ": " + what;
}

FileScan Scanner::take() {
  const bool harmless = std::ranges::all_of(found_.globals, &Global::harmless);
  if (!harmless)
    found_.verdict = Verdict::kExecutes;
  else if (!found_.problem.empty())
    found_.verdict = Verdict::kUnreadable;
  else if (found_.pickles > 0)
    found_.verdict = Verdict::kSafe;
  return std::move(found_);
}

bool Scanner::add(const io::Handle& file, const pickle::Trace& trace,
                  const Part& part) {
  known_ = true;
  ++found_.pickles;
  found_.protocol = std::max(found_.protocol, trace.number);
  bool executes = false;
  for (const pickle::Mention& mention : trace.mentions) {
    const auto [at, fresh] = index_.try_emplace(
        {mention.module, mention.name, part.inside}, found_.globals.size());
    if (fresh) found_.globals.push_back({mention, part.inside, false});
    Global& global = found_.globals[at->second];
    global.mention.uses |= mention.uses;
    global.harmless = is_harmless(global.mention);
    executes |= !global.harmless;
  }
  for (const pickle::Nested& nested : trace.nested) {
    Part inner = part;
    ++inner.depth;
    inner.inside += fmt::format("[{}]", nested.range.offset);
    inner.pickle = true;
    const io::Handle bytes = file.slice(nested.range.offset, nested.range.size);
    if (!nested.latin1)
      this->part(bytes, inner);
    else if (bytes.size() > most_unpacked())
      problem(inner, "a text of bytes that is too large to decode here");
    else
      nested_text(bytes, nested.escaped, inner);
  }
  return executes;
}

void Scanner::nested_text(const io::Handle& file, bool escaped,
                          const Part& part) {
  const std::string text = file.read_string(0, file.size());
  if (!escaped) return unpacked(from_latin1_text(text), file.path(), part);
  const auto plain = pickle::from_raw_unicode_escape(text);
  if (!plain) return problem(part, "a line with a broken escape");
  unpacked(from_latin1_text(*plain), file.path(), part);
}

void Scanner::part(const io::Handle& file, const Part& part) {
  if (part.depth > kDeepest)
    return problem(part,
                   fmt::format("archives in archives, {} deep", part.depth));
  if (!part.raw) beside(file, part);
  if (!part.raw && container(file, part)) return;
  pickles(file, part);
}

bool Scanner::container(const io::Handle& file, const Part& part) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), 512));
  if (head.starts_with("PK\3\4") || ends_like_zip(file)) {
    zip(file, part);
    return true;
  }
  if (head.starts_with("\x93NUMPY")) {
    npy(file, part);
    return true;
  }
  if (head.starts_with("GGUF")) {
    gguf(file, part);
    return true;
  }
  if (head.starts_with("\x89HDF")) {
    hdf5(file, part);
    return true;
  }
  if (is_safetensors(file)) {
    Part numbers = part;
    numbers.raw = true;
    pickles(file, numbers);
    known_ = true;
    return true;
  }
  const std::string_view packer = other_packer(head);
  if (!packer.empty()) {
    packed_whole(file, part, packer);
    return true;
  }
  if (is_tar(head)) {
    tar(file, part);
    return true;
  }
  const auto codec = codec_of(head);
  return codec && !is_database_part(file.path()) &&
         compressed(file, part, *codec);
}

// Half of what is left: a growing string exists twice for a moment.
uint64_t Scanner::most_unpacked() {
  const uint64_t most = tree_memory::limit();
  return std::max(kLeastUnpacked,
                  (most - std::min(most, tree_memory::used())) / 2);
}

// No model's pickle compresses that well; a bomb does.
uint64_t Scanner::most_of(const io::Handle& file) {
  constexpr uint64_t kMostRatio = 1024;
  return std::max(kLeastUnpacked,
                  std::min(most_unpacked(), file.size() * kMostRatio));
}

void Scanner::unpacked(std::string bytes, const std::string& path,
                       const Part& part) {
  tree_memory::Charge charge;
  charge.add(bytes.capacity());
  this->part(io::Handle::of_memory(std::move(bytes), path), part);
}

bool Scanner::compressed(const io::Handle& file, const Part& part,
                         Codec codec) {
  Part inner = part;
  ++inner.depth;
  try {
    unpacked(codec::decompress(file, codec, most_of(file)), file.path(), inner);
  } catch (const Error& error) {
    // Two bytes of any file may look like zlib's.
    if (codec == Codec::kZlib && !part.pickle) return false;
    problem(part, error.problem());
  }
  return true;
}

void Scanner::packed_whole(const io::Handle& file, const Part& part,
                           std::string_view packer) {
  Part inner = part;
  ++inner.depth;
  try {
    if (packer == "lz4")
      unpacked(codec::unpack_lz4(file, most_of(file)), file.path(), inner);
    else if (packer == "xz" || packer == "lzma")
      unpacked(codec::unpack_xz(file, most_of(file)), file.path(), inner);
    else
      problem(part, fmt::format("a file that {} packed is not unpacked here",
                                packer));
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    problem(part, error.problem());
  }
}

// numpy's header ends with a newline; objects follow it as one pickle.
void Scanner::npy(const io::Handle& file, const Part& part) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(file.size(), 12));
  if (head.size() < 12) return problem(part, "a cut .npy header");
  const auto byte = [&](size_t i) -> uint64_t {
    return static_cast<uint8_t>(head[i]);
  };
  const bool wide = byte(6) > 1;
  const uint64_t size =
      wide ? byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24
           : byte(8) | byte(9) << 8;
  const uint64_t begin = wide ? 12 : 10;
  if (size > file.size() - begin || size > kLeastUnpacked)
    return problem(part, fmt::format(".npy header of {} bytes", size));
  const std::string header = file.read_string(begin, size);
  known_ = true;
  Part objects = part;
  objects.pickle = !is_plain_npy(header);
  objects.raw = !objects.pickle;
  const uint64_t at = begin + size;
  pickles(file.slice(at, file.size() - at), objects);
}

void Scanner::pickles(const io::Handle& file, const Part& part) {
  const uint64_t end = part.brief ? std::min(file.size(), kHead) : file.size();
  const pickle::Trace trace =
      pickle::trace(file, 0, end, pickle::Loader::kJoblib);
  if (trace.arrays > 0) {
    // pickle.load takes the arrays' bytes for opcodes.
    const pickle::Trace other = pickle::trace(file, 0, end);
    if (acts(other)) add(file, other, part);
  }
  const bool ends = trace.error.empty();
  const bool executes = std::ranges::any_of(
      trace.mentions,
      [](const pickle::Mention& mention) { return !is_harmless(mention); });
  const bool named = std::ranges::any_of(
      trace.mentions,
      [](const pickle::Mention& mention) { return !mention.module.empty(); });
  if (part.raw) {
    // Numbers may look like anything. A whole file of them that names imports
    // is a pickle, too.
    const bool file_of_it = part.depth == 0 && part.inside.empty() && named;
    const bool imports = std::ranges::any_of(trace.mentions, imports_harm);
    if (acts(trace) || (imports && file_of_it && ends))
      add(file, trace, part);
    else if (file_of_it && !ends)
      problem(part,
              fmt::format("pickle at byte {}: {}", trace.end, trace.error));
    return;
  }
  // A text may begin like a pickle without a protocol; one that calls what it
  // names does not.
  const bool meant = trace.protocol || part.pickle;
  if (executes && (meant || trace.acts || ends)) {
    add(file, trace, part);
    if (!ends) problem(part, trace.error);
  } else if (ends &&
             (meant || trace.end == file.size() || !trace.mentions.empty())) {
    add(file, trace, part);
  } else {
    if (meant || trace.gave_up || (named && !is_text(file)))
      problem(part, fmt::format("pickle at byte {}: {}", trace.end,
                                trace.error.empty() ? "ends before the file"
                                                    : trace.error));
    return;
  }
  if (!ends) return;
  if (is_legacy_magic(file, trace.end))
    legacy(file, part, trace.end);
  else
    more_pickles(file, part, trace.end);
}

void Scanner::more_pickles(const io::Handle& file, const Part& part,
                           uint64_t at) {
  while (at < file.size() && !all_zero(file, at)) {
    const pickle::Trace trace = pickle::trace(file, at, file.size());
    if (!trace.error.empty()) {
      add(file, trace, part);
      return problem(
          part, fmt::format("{} bytes after STOP at byte {} are not a pickle",
                            file.size() - at, at));
    }
    add(file, trace, part);
    at = trace.end;
  }
}

// Protocol, sys_info, value, keys; storages follow, which are never unpickled.
void Scanner::legacy(const io::Handle& file, const Part& part, uint64_t at) {
  old_torch_ = old_torch_ || part.depth == 0;
  for (int i = 0; i < 4; ++i) {
    const pickle::Trace trace = pickle::trace(file, at, file.size());
    add(file, trace, part);
    if (!trace.error.empty())
      return problem(
          part, fmt::format("pickle at byte {}: {}", trace.end, trace.error));
    at = trace.end;
  }
}

}  // namespace ckpt::scan
