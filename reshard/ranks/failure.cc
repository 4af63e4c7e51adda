// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/failure.h"

#include <new>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/ranks/control.h"
#include "reshard/ranks/pack.h"

namespace ckpt::ranks {
namespace {

enum class Failed : uint8_t { kStopped, kInterrupted, kError };

std::string failure(Failed how, int code, const Where& where = {},
                    const std::string& problem = {},
                    const std::string& hint = {}) {
  Packer out;
  out.put(how);
  out.put(int32_t{code});
  for (const std::string* text : {&where.path, &where.tensor, &problem, &hint})
    out.text(*text);
  return out.take();
}

}  // namespace

std::string pack_failure(std::exception_ptr caught) {
  const auto code = [](ExitCode exit) { return static_cast<int>(exit); };
  try {
    std::rethrow_exception(caught);
  } catch (const Stopped&) {
    return failure(Failed::kStopped, 0);
  } catch (const Interrupted& stop) {
    return failure(Failed::kInterrupted, stop.signal(), {}, stop.what());
  } catch (const Error& error) {
    return failure(Failed::kError, code(error.code()), error.where(),
                   error.problem(), error.hint());
  } catch (const std::bad_alloc&) {
    return failure(Failed::kError, code(ExitCode::kResource), {},
                   "out of memory",
                   "a smaller --max-mem, fewer --threads or fewer ranks on a "
                   "machine need less");
  } catch (const std::exception& error) {
    return failure(Failed::kError, code(ExitCode::kBug), {},
                   std::string("internal: ") + error.what());
  } catch (...) {
    return failure(Failed::kError, code(ExitCode::kBug), {},
                   "internal: an exception of unknown type");
  }
}

bool is_stopped(std::string_view bytes) {
  return Unpacker(bytes).take<Failed>() == Failed::kStopped;
}

void throw_failure(std::string_view bytes, const std::string& by) {
  Unpacker in(bytes);
  const auto how = in.take<Failed>();
  const auto code = static_cast<ExitCode>(in.take<int32_t>());
  Where where;
  where.path = in.text();
  where.tensor = in.text();
  std::string problem = in.text();
  std::string hint = in.text();
  if (how != Failed::kError) throw Interrupted(problem);
  if (!by.empty()) problem += " [" + by + "]";
  throw Error(code, std::move(where), std::move(problem), std::move(hint));
}

}  // namespace ckpt::ranks
