// SPDX-License-Identifier: Apache-2.0
// Any bytes as what servers and users' settings say about remote files.
//
//   input   first byte mod 4: a URL, an answer in XML, a file of profiles, a
//           Location header
#include "ckpt/error.h"
#include "lib/net/aws.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "tests/fuzz/memory_file.h"

using namespace ckpt;

namespace {

void check_url(const std::string& text) {
  if (net::decode(net::encode(text)) != text)
    fuzz::found("what is encoded is not decoded");
  const std::string rest = net::encode_rest(text);
  if (net::encode_rest(rest) != rest) fuzz::found("encoded twice");
  const net::Url url = net::parse_url(text);
  if (url.scheme.empty()) return;
  if (net::parse_url(url.whole()).whole() != url.whole())
    fuzz::found("not a fixed point");
  if (url.authority.find_first_of("@/?#") != std::string::npos)
    fuzz::found("an authority with more than a host and a port");
  const std::string normal = net::normal(text);
  if (net::normal(normal) != normal) fuzz::found("normal, and yet not");
}

void check_xml(const std::string& text) {
  for (const char* name : {"Contents", "Key", "Size", "NextContinuationToken"})
    for (const std::string_view inside : net::elements(text, name)) {
      if (inside.data() < text.data() ||
          inside.data() + inside.size() > text.data() + text.size())
        fuzz::found("an element outside of the text");
      net::element(inside, "Key");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 4 == 0) check_url(text);
    if (data[0] % 4 == 1) check_xml(text);
    if (data[0] % 4 == 2) net::parse_profiles(text);
    if (data[0] % 4 == 3 &&
        net::parse_url(net::resolve_reference("https://a/b/c", text))
            .scheme.empty())
      fuzz::found("a location without a scheme");
  } catch (const Error& error) {
    if (error.code() == ExitCode::kBug) fuzz::found(error.what());
  }
  return 0;
}
