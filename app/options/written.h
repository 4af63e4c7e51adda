// SPDX-License-Identifier: Apache-2.0
// Options that name what a command writes besides its target. All of them are
// guarded alike (lib/io/note.h), before anything is read and once more when the
// file is written.
#pragma once

#include <string>
#include <string_view>

#include "app/options/options.h"
#include "lib/io/note.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// Every page, picture and plan has one of these near its beginning.
inline constexpr std::string_view kPageMark =
    "<meta name=\"generator\" content=\"ckpt ";
inline constexpr std::string_view kPlotMark = "<desc>ckpt plot:";
inline constexpr std::string_view kPlanMark = "\"ckpt/plan/1\"";
inline constexpr std::string_view kManualMark = " 1 \"\" \"ckpt ";

// Adds --overwrite to a command that writes a file and doesn't have it yet.
void add_overwrite(CLI::App& app, OutputOptions& output);

// After parsing: remembers what may be replaced and what is read, refuses what
// is in the way, and begins a trace.
void guard_written(const CLI::App& app, OutputOptions& output);

// Of an option in the table of written.cc; of another kind of file if that is
// given.
io::NoteRules note_rules(std::string_view option, const OutputOptions& output);

// Writes the file of an option, and adds it to the list of what was written.
void write_output(const std::string& path, std::string_view option,
                  const OutputOptions& output, std::string_view text);

// Ends the trace, if there is one, so that it is in the list.
void end_trace(const OutputOptions& output);

}  // namespace ckpt::app
