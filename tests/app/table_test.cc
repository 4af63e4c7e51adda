// SPDX-License-Identifier: Apache-2.0
#include "app/print/table.h"

#include <doctest/doctest.h>

namespace ckpt::app {

TEST_CASE("table: columns align, and shrink only to a width") {
  Table table({Align::kLeft, Align::kRight, Align::kLeft}, 2);
  table.row({"decoder.layers.#.self_attn.q_proj.weight", "×32", "bf16"});
  table.row({"norm", "", "f32"});
  CHECK(table.text(0) ==
        "  decoder.layers.#.self_attn.q_proj.weight  ×32  bf16\n"
        "  norm                                           f32\n");
  for (const size_t width : {30u, 40u, 50u, 60u}) {
    CAPTURE(width);
    std::string text = table.text(width);
    while (!text.empty()) {
      const size_t end = text.find('\n');
      CHECK(display_width(text.substr(0, end)) <= width);
      text.erase(0, end + 1);
    }
  }
}

TEST_CASE("table: an empty column takes no room") {
  Table table({Align::kLeft, Align::kRight, Align::kLeft});
  table.row({"a", "", "b"});
  CHECK(table.text(0) == "a  b\n");
}

TEST_CASE("table: widths as a terminal has them") {
  CHECK(display_width("abc") == 3);
  CHECK(display_width("ünïcode") == 7);
  CHECK(display_width("e\xcc\x81") == 1);  // e and a combining accent
  CHECK(display_width("漢字") == 4);
  CHECK(display_width("\x1b[1mbold\x1b[0m") == 4);
  CHECK(display_width("\xff\xe2") == 2);  // not UTF-8: one column each
}

TEST_CASE("table: the middle of a name is cut") {
  CHECK(cut_middle("short", 10) == "short");
  CHECK(cut_middle("model.layers.0.weight", 11) == "model…eight");
  CHECK(cut_middle("abc", 1) == "…");
  CHECK(cut_middle("漢字漢字漢字", 7) == "漢…字");
}

TEST_CASE("table: numbers for people") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(18446744073709551615u) == "18,446,744,073,709,551,615");
  CHECK(si_count(999) == "999");
  CHECK(si_count(1234) == "1.23 K");
  CHECK(si_count(6'738'415'616) == "6.74 B");
  CHECK(si_count(405'853'388'800) == "406 B");
  CHECK(si_count(999'999) == "1.00 M");
}

}  // namespace ckpt::app

namespace ckpt::app {

TEST_CASE("folded: lines go on four columns in, and lose nothing") {
  struct Row {
    const char* text;
    size_t width;
    const char* folded;
  };
  const Row rows[] = {
      {"one two three\n", 40, "one two three\n"},
      {"one two three four five six\n", 20,
       "one two three four\n    five six\n"},
      {"no newline at the end", 20, "no newline at the\n    end"},
      {"  indented words that go on\n", 20,
       "  indented words\n    that go on\n"},
      {"a/long/path/without/any/space/in/it\n", 20,
       "a/long/path/without/\n    any/space/in/it\n"},
      {"onewordthatcannotbebrokenatall\n", 20,
       "onewordthatcannotbebrokenatall\n"},
      {"short\n\nthen one that is folded\n", 20,
       "short\n\nthen one that is\n    folded\n"},
      {"\x1b[31mred\x1b[0m and plain words\n", 20,
       "\x1b[31mred\x1b[0m and plain words\n"},
      {"one two three four five six\n", 0, "one two three four five six\n"},
      {"", 20, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(folded(row.text, row.width) == row.folded);
  }
}

}  // namespace ckpt::app
