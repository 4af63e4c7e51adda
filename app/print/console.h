// SPDX-License-Identifier: Apache-2.0
// stdout for data, stderr for everything else; colour and width of both.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/options/options.h"
#include "ckpt/error.h"

namespace ckpt::app {

// Call once, after the command line is parsed (defaults apply before).
void configure(const OutputOptions& options);

// Data for stdout. Buffered; a closed pipe is ignored (output is dropped, work
// continues), any other failure is an Error.
void print(std::string_view text);
// The same, folded to the width of a terminal.
void print_folded(std::string_view lines);
void flush();

// Whether stdout is a terminal, and how wide: COLUMNS, else the terminal,
// else 0 (unlimited).
bool stdout_is_terminal();
size_t stdout_width();
size_t stderr_width();

enum class Style : uint8_t { kPlain, kBold, kDim, kRed, kYellow, kGreen };
// The text in a style, if stdout shows colours.
std::string styled(std::string_view text, Style style);

// Under --json warnings wait, so that an error is the only JSON document on
// stderr. This prints them, before the process ends.
void say_held_warnings();
std::vector<std::string> take_held_warnings();
bool errors_are_json();

// "note: …" on stderr, escaped; nothing under --json and -q.
void say_note(std::string_view text);

// Writes one or more lines to stderr; clears a progress bar first.
void say(std::string_view line);
// The same for text that ends its own lines.
void say_document(std::string_view text);
// Called before anything is written: what draws on a line of the terminal
// clears it.
void clear_before_lines(void (*clear)());

// "error: …" and "hint: …" on stderr, names escaped.
void say_error(std::string_view problem, std::string_view hint = {});

}  // namespace ckpt::app
