// SPDX-License-Identifier: Apache-2.0
#include "api/c/handles.h"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <new>

#include "ckpt/error.h"
#include "lib/exit_kind.h"
#include "lib/text/json_text.h"

namespace ckpt {
namespace {

std::string error_text(const Error& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? std::string("null") : text::json_text(text);
  };
  return fmt::format(
      R"({{"schema":"ckpt/error/1","error":{{"status":{},"kind":{},"path":{},)"
      R"("tensor":{},"message":{},"hint":{}}}}})",
      static_cast<int>(error.code()), text::json_text(kind_name(error.code())),
      text_or_null(error.where().path), text_or_null(error.where().tensor),
      text::json_text(error.problem()), text_or_null(error.hint()));
}

}  // namespace

int report(char** error) {
  Error said(ExitCode::kBug, {}, "an exception of unknown type");
  try {
    throw;
  } catch (const Error& thrown) {
    said = thrown;
  } catch (const std::bad_alloc&) {
    said = Error(ExitCode::kResource, {}, "out of memory");
  } catch (const std::exception& thrown) {
    said = Error(ExitCode::kBug, {}, thrown.what());
  } catch (...) {
  }
  if (error) {
    try {
      *error = ::strdup(error_text(said).c_str());
    } catch (...) {
      *error = nullptr;
    }
  }
  return static_cast<int>(said.code());
}

ckpt_checkpoint* changed(const ckpt_checkpoint& from,
                         const std::function<Catalog(Catalog)>& change) {
  Catalog copy = from.open.catalog();
  locate(copy);
  return new ckpt_checkpoint(Checkpoint(change(std::move(copy))), from.held);
}

}  // namespace ckpt
