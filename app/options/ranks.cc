// SPDX-License-Identifier: Apache-2.0
#include "app/options/ranks.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>

#include "app/options/options.h"
#include "ckpt/error.h"
#include "reshard/ranks/job.h"

namespace ckpt::app {
namespace {

void take_exchange(const std::string& text) {
  struct Row {
    std::string_view text;
    ranks::Mode mode;
  };
  constexpr Row kRows[] = {{"auto", ranks::Mode::kAuto},
                           {"read", ranks::Mode::kRead},
                           {"send", ranks::Mode::kSend}};
  for (const Row& row : kRows) {
    if (row.text != text) continue;
    ranks::Sharing sharing = ranks::sharing();
    sharing.mode = row.mode;
    return ranks::set_sharing(sharing);
  }
  throw usage_error({}, "--exchange '{}': expected auto, read or send", text);
}

void take_buffer(const std::string& size) {
  ranks::Sharing sharing = ranks::sharing();
  sharing.buffer = std::max<uint64_t>(1, size_value("--exchange-buffer", size));
  ranks::exchange_buffer(sharing.buffer, UINT64_MAX);  // refuses tiny sizes
  ranks::set_sharing(sharing);
}

}  // namespace

void add_ranks_options(CLI::App& app) {
  app.add_option_function<std::string>(
         "--exchange", take_exchange,
         "Under mpirun: auto reads each byte once, read writes each file from "
         "one rank, send does both by messages")
      ->type_name("HOW")
      ->group("Resources");
  app.add_option_function<std::string>(
         "--exchange-buffer", take_buffer,
         "Largest message of --exchange send (default 4MiB); each rank holds "
         "12 of them, a part of --max-mem")
      ->type_name("SIZE")
      ->group("Resources");
}

}  // namespace ckpt::app
