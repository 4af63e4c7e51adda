// SPDX-License-Identifier: Apache-2.0
// Who asks an object store, and with which keys. Temporary keys expire during a
// run: then they are looked up again.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "lib/net/aws.h"
#include "lib/net/http.h"

namespace ckpt::net {

struct Access {
  std::string endpoint;
  bool path_style = true;
  std::string region;
  std::optional<Credentials> credentials;
  std::string bearer;
  bool lasting = false;  // this run can find no others: the environment's

  bool is_signed() const { return credentials || !bearer.empty(); }
};

// Signs for `region`; `sum` is the body's SHA-256.
void authorize(Request& made, const Access& how, const std::string& region,
               std::string_view sum);
// The sum that it was authorized with; "" if none.
std::string sum_of(const Request& asked);

class AccessKeeper {
 public:
  explicit AccessKeeper(Access (*find)()) : find_(find) {}

  std::shared_ptr<const Access> get();
  // `asked` was refused. True if there are others keys by now than it was
  // authorized with. If they `expired`, waits a while for them, as between
  // tries: whoever writes them may be late, or not have written all of them.
  bool renew(const Request& asked, bool expired);

 private:
  bool find_others(const Access& held, bool report);
  bool is_recent() const;

  Access (*const find_)();
  std::mutex renewing_;  // one looks, the others wait for what it finds
  std::shared_ptr<const Access> in_vain_;  // was waited for once
  std::optional<std::chrono::steady_clock::time_point> renewed_;
  std::mutex mutex_;
  std::shared_ptr<const Access> access_;
};

}  // namespace ckpt::net
