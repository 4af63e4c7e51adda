// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fstream>
#include <set>

#include "ckpt/error.h"
#include "lib/pickle/decode.h"
#include "lib/pickle/encode.h"
#include "lib/pickle/json.h"
#include "tests/support/pickles.h"
#include "tests/support/temp_file.h"

namespace ckpt::pickle {
namespace {

using test::data_path;
using test::decode_text;
using test::pickle_of;
using namespace std::string_literals;

std::string shown(std::string_view pickle, const Limits& limits = {}) {
  const Decoded decoded = decode_text(pickle, limits);
  return to_json(*decoded.document, decoded.document->root()).dump();
}

// The message of the error, or the JSON of what was accepted.
std::string outcome(std::string_view pickle, const Limits& limits = {}) {
  try {
    return shown(pickle, limits);
  } catch (const Error& error) {
    CHECK((error.code() == ExitCode::kDamaged ||
           error.code() == ExitCode::kUnsafe));
    return error.what();
  }
}

struct Row {
  std::string pickle;
  const char* outcome;
};

void check_rows(std::span<const Row> rows) {
  for (const Row& row : rows) {
    CAPTURE(row.pickle);
    CHECK(outcome(row.pickle) == row.outcome);
  }
}

}  // namespace

// The expected values are those of Python's pickle.loads.
TEST_CASE("pickle decode: scalars of all protocols") {
  const Row rows[] = {
      {"N.", "null"},
      {"\x80\x02\x88.", "true"},
      {"I00\n.", "false"},
      {"I01\n.", "true"},
      {"I-7\n.", "-7"},
      {"I007\r\n.", "7"},
      {"L12L\n.", "12"},
      {"L-340282366920938463463374607431768211456L\n.",
       R"({"!int":"-340282366920938463463374607431768211456"})"},
      {"K\xff.", "255"},
      {"M\x01\x02.", "513"},
      {"J\xfe\xff\xff\xff.", "-2"},
      {"\x8a\x00."s, "0"},
      {"\x8a\x01\xff.", "-1"},
      {"\x8a\x02\xff\x00."s, "255"},
      {"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s,
       R"({"!int":"-9223372036854775808"})"},
      {"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."s,
       R"({"!int":"9223372036854775808"})"},
      {"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
       R"({"!int":"119547037146038801333356"})"},
      {"\x8b\x01\x00\x00\x00\x80."s, "-128"},
      {"G\x3f\xb9\x99\x99\x99\x99\x99\x9a.", R"({"!float":"0.1"})"},
      {"G\x43\x41\xc3\x79\x37\xe0\x80\x00."s, R"({"!float":"1e+16"})"},
      {"G\xc0\x00\x00\x00\x00\x00\x00\x00."s, R"({"!float":"-2.0"})"},
      {"F1.5\n.", R"({"!float":"1.5"})"},
      {"F-inf\n.", R"({"!float":"-inf"})"},
      {"Fnan\n.", R"({"!float":"nan"})"},
      {"X\x02\x00\x00\x00\xc3\xa9."s, "\"\u00e9\""},
      {"\x8c\x01z.", "\"z\""},
      {"\x8d\x01\x00\x00\x00\x00\x00\x00\x00z."s, "\"z\""},
      {"X\x03\x00\x00\x00\xed\xa0\x80."s, R"({"!str_surrogates":"00d8"})"},
      {"Va\\u00e9\\U0001f600\\x\n.", "\"a\u00e9\U0001f600\\\\x\""},
      {"Va\\\\u0041\n.", R"("a\\\\u0041")"},
      {"S'a\\n\\x41\\101\\q'\n.", R"("a\nAA\\q")"},
      {"S\"\\xff\"\n.", R"({"!bytes":"ff"})"},
      {"U\x02hi.", "\"hi\""},
      {"U\x01\xff.", R"({"!bytes":"ff"})"},
      {"T\x02\x00\x00\x00hi."s, "\"hi\""},
      {"C\x02\x00\xff."s, R"({"!bytes":"00ff"})"},
      {"B\x01\x00\x00\x00z."s, R"({"!bytes":"7a"})"},
      {"\x96\x01\x00\x00\x00\x00\x00\x00\x00z."s, R"({"!bytearray":"7a"})"},
  };
  check_rows(rows);
}

TEST_CASE("pickle decode: containers, memo and stack") {
  const Row rows[] = {
      {").", R"({"!tuple":[]})"},
      {"K\x01K\x02\x86.", R"({"!tuple":[1,2]})"},
      {"K\x01K\x02K\x03\x87.", R"({"!tuple":[1,2,3]})"},
      {"(K\x01K\x02K\x03K\x04t.", R"({"!tuple":[1,2,3,4]})"},
      {"(K\x01K\x02l.", "[1,2]"},
      {"]K\x01"
       "aK\x02"
       "a(K\x03K\x04"
       "e(e.",
       "[1,2,3,4]"},
      {"(X\x01\x00\x00\x00"
       "aK\x01"
       "d."s,
       R"({"a":1})"},
      {"}X\x01\x00\x00\x00"
       "aK\x01s(K\x01K\x02NK\x03u."s,
       R"({"!dict":[["a",1],[1,2],[null,3]]})"},
      // The last value wins, the first position stays; 1 == 1.0 == True.
      {"}(X\x01\x00\x00\x00"
       "aK\x01X\x01\x00\x00\x00"
       "bK\x02"
       "X\x01\x00\x00\x00"
       "aK\x03u."s,
       R"({"a":3,"b":2})"},
      {"}(K\x01K\x01\x88K\x02G\x3f\xf0\x00\x00\x00\x00\x00\x00K\x03u."s,
       R"({"!dict":[[1,3]]})"},
      {"\x8f(K\x02K\x01\x90.", R"({"!set":[1,2]})"},
      {"(K\x02K\x01\x91.", R"({"!frozenset":[1,2]})"},
      {"]q\x00h\x00\x86."s, R"({"!tuple":[[],{"!ref":"0"}]})"},
      {"]q\x05h\x05\x86.", R"({"!tuple":[[],{"!ref":"0"}]})"},
      {"]\x94h\x00"
       "a."s,
       R"([{"!ref":""}])"},
      {"]p7\ng7\na.", R"([{"!ref":""}])"},
      {"]r\x00\x10\x00\x00j\x00\x10\x00\x00\x86."s,
       R"({"!tuple":[[],{"!ref":"0"}]})"},
      {"K\x01K\x02"
       "0.",
       "1"},
      {"K\x01(K\x02"
       "1.",
       "1"},
      {"K\x01"
       "2\x86.",
       R"({"!tuple":[1,1]})"},
      {"K\x01K\x02.", "2"},   // leftovers are ignored, as by Python
      {"K\x01.K\x02.", "1"},  // and what follows
      {"\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00K\x01."s, "1"},
  };
  check_rows(rows);
}

TEST_CASE("pickle decode: calls, and which are plain values") {
  const Row rows[] = {
      {"cmod\nname\n.", R"({"!global":"mod name"})"},
      {"c__builtin__\nxrange\n.", R"({"!global":"builtins range"})"},
      {"\x80\x04\x8c\x0b__builtin__\x8c\x06xrange\x93.",
       R"({"!global":"__builtin__ xrange"})"},
      {"ccopy_reg\n_reconstructor\n.",
       R"({"!global":"copyreg _reconstructor"})"},
      {"cm\nf\nK\x01\x85R.",
       R"({"!object":"m f","how":"reduce","args":{"!tuple":[1]}})"},
      {"cm\nC\n)\x81}X\x01\x00\x00\x00"
       "aK\x01sb."s,
       R"({"!object":"m C","how":"newobj","args":{"!tuple":[]},"state":{"a":1}})"},
      {"cm\nC\n)}\x92.",
       R"({"!object":"m C","how":"newobj_ex","args":{"!tuple":[]},"kwargs":{}})"},
      {"(K\x01im\nC\n.",
       R"({"!object":"m C","how":"inst","args":{"!tuple":[1]}})"},
      {"(cm\nC\nK\x01o.",
       R"({"!object":"m C","how":"inst","args":{"!tuple":[1]}})"},
      {"cm\nC\n)R(K\x01K\x02"
       "eK\x03K\x04s.",
       R"({"!object":"m C","how":"reduce","args":{"!tuple":[]},"items":[1,2],"pairs":[[3,4]]})"},
      {"c_codecs\nencode\nX\x02\x00\x00\x00\xc3\xbfX\x06\x00\x00\x00latin1\x86R."s,
       R"({"!bytes":"ff"})"},
      {"c_codecs\nencode\nX\x01\x00\x00\x00zX\x05\x00\x00\x00rot13\x86R."s,
       R"({"!object":"_codecs encode","how":"reduce","args":{"!tuple":["z","rot13"]}})"},
      {"c__builtin__\nbytes\n)R.", R"({"!bytes":""})"},
      {"c__builtin__\nbytearray\nC\x01z\x85R.", R"({"!bytearray":"7a"})"},
      {"c__builtin__\nbytearray\nJ\x00\x00\x00\x7f\x85R."s,
       R"({"!object":"builtins bytearray","how":"reduce","args":{"!tuple":[2130706432]}})"},
      {"c__builtin__\nset\n](K\x02K\x01"
       "e\x85R.",
       R"({"!set":[1,2]})"},
      {"c__builtin__\nfrozenset\n]\x85R.", R"({"!frozenset":[]})"},
      {"c__builtin__\ncomplex\nK\x01K\x02\x86R.",
       R"({"!complex":["1.0","2.0"]})"},
      {"ccollections\nOrderedDict\n]]K\x01"
       "aK\x02"
       "aa\x85R.",
       R"({"!OrderedDict":[[1,2]]})"},
      {"ccollections\nOrderedDict\n)RK\x01K\x02s}K\x05K\x06sb.",
       R"({"!OrderedDict":[[1,2]],"attrs":{"!dict":[[5,6]]}})"},
      {"ccollections\nCounter\n}K\x01K\x02s\x85R.", R"({"!Counter":[[1,2]]})"},
      {"ctorch\nSize\n(K\x02K\x03t\x85R.", R"({"!Size":[2,3]})"},
      {"X\x01\x00\x00\x00kQ."s, R"({"!persistent":"k"})"},
      {"Pk\n.", R"({"!persistent":"k"})"},
  };
  check_rows(rows);
}

TEST_CASE("pickle decode: refuses, and says why") {
  const Row rows[] = {
      {"",
       "test.pkl: the pickle is cut short: at byte 0 it wants 1 more bytes, 0 "
       "are left"},
      {"K",
       "test.pkl: the pickle is cut short: at byte 1 it wants 1 more bytes, 0 "
       "are left"},
      {".", "test.pkl: pickle at byte 0: the stack is empty"},
      {"(K\x01\x86.", "test.pkl: pickle at byte 3: the stack is empty"},
      {"K\x01t.", "test.pkl: pickle at byte 2: there is no mark on the stack"},
      {"\xff.", "test.pkl: pickle at byte 0: opcode 0xff does not exist"},
      {"\x80\x09N.",
       "test.pkl: pickle at byte 0: protocol 9, this program knows 0 to 5"},
      {"\x82\x01.",
       "test.pkl: pickle at byte 0: opcode EXT: what it names is in the "
       "registry of "
       "the program that wrote it"},
      {"\x97.",
       "test.pkl: pickle at byte 0: opcode for an out-of-band buffer: its "
       "bytes are in "
       "no file"},
      {"\x95\x09\x00\x00\x00\x00\x00\x00\x00N."s,
       "test.pkl: pickle at byte 0: a frame of 9 bytes, 2 are left"},
      {"\x8b\xff\xff\xff\xff.",
       "test.pkl: pickle at byte 0: an integer of -1 bytes"},
      {"T\xff\xff\xff\xff.",
       "test.pkl: pickle at byte 0: a string of -1 bytes"},
      {"X\x01\x00\x00\x00\xff."s,
       "test.pkl: pickle at byte 0: a string of 1 bytes is not UTF-8"},
      {"\x8d\x00\x00\x00\x00\x00\x00\x00\x40."s,
       "test.pkl: the pickle is cut short: at byte 9 it wants "
       "4611686018427387904 more "
       "bytes, 1 are left"},
      {"Iabc\x1b\n.",
       "test.pkl: pickle at byte 0: 'abc\\x1b' is not an integer"},
      {"F1e999\n.", "test.pkl: pickle at byte 0: '1e999' is not a float"},
      {"S'a\n.",
       "test.pkl: pickle at byte 0: a string that is not quoted as Python "
       "does"},
      {"V\\ud8\n.",
       "test.pkl: pickle at byte 0: a string with a broken \\u escape"},
      {"g99999999999999999999\n.",
       "test.pkl: pickle at byte 0: '99999999999999999999' is not a memo "
       "index"},
      {"h\x05.", "test.pkl: pickle at byte 0: memo index 5 was never stored"},
      {"Nr\xff\xff\xff\xff.",
       "test.pkl: pickle at byte 1: memo index 4294967295, the limit is "
       "268435456"},
      {"}(NNNu.",
       "test.pkl: pickle at byte 5: SETITEMS with 3 keys and values"},
      {"]NNs.", "test.pkl: pickle at byte 3: SETITEM on a list"},
      {"}Na.", "test.pkl: pickle at byte 2: APPEND on a dict"},
      {"}]Ns.", "test.pkl: pickle at byte 3: a list is used as a key"},
      {"](N\x90.", "test.pkl: pickle at byte 3: ADDITEMS on a list"},
      {"N)R.", "test.pkl: pickle at byte 2: a None is called"},
      {"cm\nf\n]R.",
       "test.pkl: pickle at byte 6: the arguments of a call are a list, not a "
       "tuple"},
      {"cm\nf\n)N\x92.",
       "test.pkl: pickle at byte 7: the keyword arguments of a call are a "
       "None, not a "
       "dict"},
      {"cm\nf\nNb.",
       "test.pkl: pickle at byte 6: BUILD sets the state of a global"},
      {"cm\nf\n)R}b}b.",
       "test.pkl: pickle at byte 10: BUILD sets the state of m f a second "
       "time"},
      {"ctorch._utils\n_rebuild_tensor_v2\n)RNa.",
       "test.pkl: pickle at byte 36: APPEND on a tensor (torch._utils "
       "_rebuild_tensor_v2)"},
      {"NN\x93.",
       "test.pkl: pickle at byte 2: a global is named by a None and a None"},
      {"cm\nf.",
       "test.pkl: the pickle is cut short: at byte 3 it wants 3 more bytes, 2 "
       "are left"},
      {"ccollections\nOrderedDict\n]K\x01"
       "a\x85R.",
       "test.pkl: pickle at byte 30: a dict of pairs holds a int"},
      {"c__builtin__\nset\nK\x01\x85R.",
       "test.pkl: pickle at byte 20: set of 1 arguments, a int"},
      {"(o.", "test.pkl: pickle at byte 1: an object without a class"},
  };
  check_rows(rows);
}

TEST_CASE("pickle decode: limits name the byte and the number") {
  CHECK(outcome("]NN0" + std::string(100, 'N') + ".", {.values = 50}) ==
        "test.pkl: pickle at byte 62: more than 50 values");
  CHECK(outcome("X\x05\x00\x00\x00hello."s, {.string = 4}) ==
        "test.pkl: pickle at byte 0: a value of 5 bytes, the limit is 4");
  CHECK(outcome("NNNNNN.", {.bytes = 3}) ==
        "test.pkl: the pickle is larger than 3 bytes");
  CHECK(outcome("I" + std::string(5000, '1') + "\n.") ==
        "test.pkl: the text at byte 1 is longer than 4096 bytes");
  CHECK(outcome("\x8b\xff\xff\x00\x00"s + std::string(0xffff, '1') + ".") ==
        "test.pkl: pickle at byte 0: an integer of 65535 bytes, the limit is "
        "4096 "
        "digits");
}

// What the pickle layer must do with each malformed file. What it accepts, the
// torch room refuses or shows as opaque.
TEST_CASE("pickle decode: the malformed files") {
  // Bad tensors are well-formed pickles.
  const std::set<std::string> well_formed = {
      "rebuild_bigint_size.pt", "rebuild_bool_sizes.pt",
      "rebuild_float_sizes.pt", "rebuild_too_few_args.pt",
      "rebuild_wrong_types.pt",
  };
  std::ifstream rows(data_path("bad/EXPECT.tsv"));
  int count = 0;
  for (std::string line; std::getline(rows, line);) {
    if (!line.starts_with("pickle/")) continue;
    const std::string file = line.substr(7, line.find('\t') - 7);
    const size_t required = line.find('\t', line.find('\t') + 1) + 1;
    const bool reject = line.substr(required, 6) == "REJECT" &&
                        line.substr(required, 9) != "REJECT or" &&
                        !well_formed.contains(file);
    const bool accept = line.substr(required, 6) == "OPAQUE" ||
                        line.substr(required, 7) == "ACCEPT:" ||
                        line.substr(required, 7) == "ACCEPT\t";
    CAPTURE(line);
    const std::string got = outcome(pickle_of(data_path("bad/pickle/" + file)));
    CAPTURE(got);
    if (reject) CHECK(got.starts_with("test.pkl: "));
    if (accept) CHECK_FALSE(got.starts_with("test.pkl: "));
    ++count;
  }
  CHECK(count == 81);
}

TEST_CASE("pickle decode: from a file, block by block") {
  // 3 MiB of strings, so that values straddle the blocks.
  std::string pickle = "\x80\x02](";
  for (int i = 0; i < 300; ++i) {
    pickle += "X\x10\x27\x00\x00"s + std::string(10000, 'a') + "K\x07";
    pickle += "I12345\n";
  }
  pickle += "e.";
  const test::TempFile temp("before" + pickle + "N.after");
  const auto file = io::Handle::open_read(temp.path);
  const Decoded from_file = decode(file, 6, file.size());
  CHECK(from_file.end == 6 + pickle.size());
  const Decoded from_memory = decode_text(pickle);
  CHECK(test::difference(*from_file.document, from_file.document->root(),
                         *from_memory.document,
                         from_memory.document->root()) == "");
  CHECK(decode(file, from_file.end, file.size()).end == from_file.end + 2);
  CHECK_THROWS_WITH_AS(decode(file, 6, 1000), doctest::Contains("cut short"),
                       Error);
}

TEST_CASE("pickle decode: names all globals once") {
  const Decoded decoded =
      decode_text("(cb\nx\nca\ny\ncb\nx\nc__builtin__\nlist\nl.");
  CHECK(decoded.globals ==
        std::vector<std::string>{"a y", "b x", "builtins list"});
}

}  // namespace ckpt::pickle
