// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "ckpt/error.h"
#include "lib/pickle/encode.h"
#include "lib/pickle/json.h"
#include "tests/support/pickles.h"

namespace ckpt::pickle {
namespace {

using test::decode_text;
using test::difference;
using namespace std::string_literals;

std::string recoded(std::string_view pickle) {
  return encode(*decode_text(pickle).document);
}

}  // namespace

// The expected bytes are those of Python's pickle.dumps(x, protocol=2), except
// for memo opcodes that nothing refers to.
TEST_CASE("pickle encode: opcodes") {
  struct Row {
    std::string from;
    std::string to;
  };
  const Row rows[] = {
      {"N.", "N."},
      {"I01\n.", "\x88."},
      {"I255\n.", "K\xff."},
      {"I256\n.", "M\x00\x01."s},
      {"I65536\n.", "J\x00\x00\x01\x00."s},
      {"I-1\n.", "J\xff\xff\xff\xff."},
      {"I2147483648\n.", "\x8a\x05\x00\x00\x00\x80\x00."s},
      {"I-2147483649\n.", "\x8a\x05\xff\xff\xff\x7f\xff."},
      {"L-9223372036854775808L\n.",
       "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s},
      {"L9223372036854775808L\n.",
       "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."s},
      {"F0.1\n.", "G\x3f\xb9\x99\x99\x99\x99\x99\x9a."},
      {"Va\\u00e9\n.",
       "X\x03\x00\x00\x00"
       "a\xc3\xa9."s},
      {"V\\ud800\n.", "X\x03\x00\x00\x00\xed\xa0\x80."s},
      {"C\x01\xff.",
       "c_codecs\nencode\nX\x02\x00\x00\x00\xc3\xbfX\x06\x00\x00\x00latin1"
       "\x86R."s},
      {"C\x00."s, "c__builtin__\nbytes\n)R."},
      {"(K\x01K\x02K\x03K\x04t.", "(K\x01K\x02K\x03K\x04t."},
      {"(K\x01K\x02t.", "K\x01K\x02\x86."},
      {"(K\x01l.",
       "]K\x01"
       "a."},
      {"(K\x01K\x02l.",
       "](K\x01K\x02"
       "e."},
      {"(K\x01K\x02"
       "d.",
       "}K\x01K\x02s."},
      {"(K\x01K\x02"
       "d.",
       "}K\x01K\x02s."},
      {"(K\x02K\x01\x91.",
       "c__builtin__\nfrozenset\n](K\x02K\x01"
       "e\x85R."},
      {"\x8f.", "c__builtin__\nset\n]\x85R."},
      {"\x8c\x08"
       "builtins\x8c\x05range\x93.",
       "c__builtin__\nxrange\n."},
      {"\x80\x04\x8c\x01m\x8c\x0bOuter.Inner\x93.",
       "c__builtin__\ngetattr\ncm\nOuter\nX\x05\x00\x00\x00Inner\x86R."s},
      {"cm\nC\n)\x81}b.", "cm\nC\n)\x81}b."},
      {"(K\x01im\nC\n.", "(cm\nC\nK\x01o."},
      {"cm\nC\n)}K\x01K\x02s\x92.",
       "ccopy_reg\n__newobj_ex__\ncm\nC\n)}K\x01K\x02s\x87R."},
      {"K\x01\x85Q.", "K\x01\x85Q."},
      // shared, and cyclic
      {"]2\x86.", "]q\x00h\x00\x86."s},
      {"]2a.",
       "]q\x00h\x00"
       "a."s},
      {"]q\x00h\x00\x85"
       "a0h\x00\x85."s,
       "]q\x00h\x00\x85"
       "a\x85."s},
  };
  for (const Row& row : rows) {
    CAPTURE(row.from);
    CHECK(recoded(row.from) == "\x80\x02" + row.to);
  }
}

TEST_CASE("pickle encode: decode(encode(x)) == x for all goldens") {
  int count = 0;
  for (const std::string name :
       {"torch_pt", "torch_legacy", "bad/pickle", "bad/torch_pt"}) {
    for (const std::string& file : test::files_below(name)) {
      CAPTURE(file);
      Decoded first;
      try {
        const std::string bytes = test::pickle_of(file);
        if (bytes.empty()) continue;
        first = decode_text(bytes);
      } catch (const Error&) {
        continue;  // the decoder's tests say which
      }
      const Document& a = *first.document;
      bool nested = false;  // under protocol 2 these become getattr(…)
      for (const std::string& global : first.globals)
        nested |= global.find('.', global.find(' ')) != std::string::npos;
      const Decoded second = decode_text(encode(a));
      const Document& b = *second.document;
      if (!nested) CHECK(difference(a, a.root(), b, b.root()) == "");
      if (!nested) CHECK(encode(b) == encode(a));
      ++count;
    }
  }
  CHECK(count > 100);
}

TEST_CASE("pickle encode: a tuple in its own cycle") {
  // t = ([t],): Python writes it once inside itself, then uses that one.
  const std::string pickle =
      "]q\x00h\x00\x85q\x01"
      "a0h\x01."s;
  const std::string bytes = recoded(pickle);
  const Decoded first = decode_text(pickle), second = decode_text(bytes);
  CHECK(difference(*first.document, first.document->root(), *second.document,
                   second.document->root()) == "");

  Document document;
  const Id tuple = document.add_container(Type::kFrozenSet);
  document.append(tuple, tuple);
  CHECK_THROWS_WITH_AS(encode(document, tuple),
                       "a frozenset that contains itself has no pickle", Error);
}

TEST_CASE("pickle encode: batches of 1000, as Python") {
  Document document;
  const Id list = document.add_container(Type::kList);
  for (int i = 0; i < 2001; ++i) document.append(list, document.add_none());
  CHECK(encode(document, list) == "\x80\x02](" + std::string(1000, 'N') + "e(" +
                                      std::string(1000, 'N') + "eNa.");
}

// A value that is deep or wide as a tree must cost no stack and no time.
TEST_CASE("pickle: 200000 levels, and 2^59 leaves") {
  const std::string lists =
      std::string(200'000, ']') + std::string(199'999, 'a') + ".";
  std::string tuples = ")";
  for (int i = 0; i < 200'000; ++i) tuples += '\x85';
  std::string calls = "N";
  for (int i = 0; i < 100'000; ++i) calls = calls + '\x85';
  std::string laughs = "]";
  for (int i = 0; i < 59; ++i)
    laughs += "q"s + char(i) + "]h" + char(i) + "ah" + char(i) + "a";
  std::string tuple_laughs = ")";
  for (int i = 0; i < 59; ++i) tuple_laughs += "2\x86";
  for (const std::string& pickle :
       {lists, tuples + ".", calls + ".", laughs + ".", tuple_laughs + "."}) {
    const Decoded first = decode_text(pickle);
    const Document& document = *first.document;
    const Decoded second = decode_text(encode(document));
    CHECK(difference(document, document.root(), *second.document,
                     second.document->root()) == "");
    CHECK(to_json(document, document.root()).dump().size() < 10'000'000);
    Document copy;
    const Id root = copy.import(document, document.root());
    CHECK(difference(document, document.root(), copy, root) == "");
  }
}

}  // namespace ckpt::pickle
