// SPDX-License-Identifier: Apache-2.0
// Any bytes: decode refuses them with an Error, or its result can be shown,
// copied, and written as a pickle that decodes to the same bytes. What trace
// finds is inside them.
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "ckpt/error.h"
#include "lib/pickle/decode.h"
#include "lib/pickle/encode.h"
#include "lib/pickle/json.h"
#include "lib/pickle/trace.h"

namespace {

using namespace ckpt;

[[noreturn]] void found(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

void check(const pickle::Document& document) {
  const pickle::Id root = document.root();
  pickle::to_json(document, root, 1000).dump();
  document.as_pairs(root);
  pickle::Document copy;
  copy.set_root(copy.import(document, root));

  std::string bytes;
  try {
    bytes = pickle::encode(document);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) found(error.what());
    return;
  }
  const auto text = std::as_bytes(std::span(bytes));
  const auto again = pickle::decode(text, "encoded").document;
  // Names with dots become calls of getattr; then the form is stable.
  const std::string settled = pickle::encode(*again);
  const auto last =
      pickle::decode(std::as_bytes(std::span(settled)), "settled").document;
  if (pickle::encode(*last) != settled) found("not a fixed point");
  if (pickle::encode(copy) != bytes) found("the copy is another tree");
}

void trace(const uint8_t* data, size_t size) {
  const auto* text = reinterpret_cast<const char*>(data);
  const io::Handle file =
      io::Handle::of_memory(std::string(text, size), "input");
  const pickle::Trace trace = pickle::trace(file, 0, size);
  if (trace.end > size) found("a pickle ends beyond the file");
  for (const pickle::Mention& mention : trace.mentions) {
    if (mention.offset >= size) found("a global stands beyond the file");
    if (mention.uses == 0) found("a global is mentioned and not used");
    pickle::use_names(mention.uses);
  }
  for (const pickle::Nested& nested : trace.nested)
    if (nested.range.offset > size ||
        nested.range.size > size - nested.range.offset)
      found("nested bytes lie beyond the file");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const pickle::Limits limits{.bytes = 1 << 20, .values = 1 << 20};
  try {
    const auto decoded =
        pickle::decode(std::as_bytes(std::span(data, size)), "input", limits);
    check(*decoded.document);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) found(error.what());
  }
  trace(data, size);
  return 0;
}
