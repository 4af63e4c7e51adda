// SPDX-License-Identifier: Apache-2.0
#include "app/print/ranks.h"

#include "app/print/json_writer.h"
#include "reshard/ranks/job.h"

namespace ckpt::app {

uint32_t rank_count() {
  return ranks::current() ? ranks::current()->size() : 1;
}

void write_ranks(JsonWriter& json) {
  ranks::Job* const job = ranks::current();
  if (!job) return;
  json.key("ranks").begin_array();
  for (const ranks::Account& account : job->accounts()) {
    json.begin_object();
    json.member("host", account.host);
    json.member("bytes_read", account.bytes_read);
    json.member("bytes_written", account.bytes_written);
    json.member("bytes_sent", account.bytes_sent);
    json.member("bytes_received", account.bytes_received);
    json.member("messages", account.messages);
    json.member("rounds", account.rounds);
    json.member("plan_bytes", account.task_bytes);
    json.member("seconds", account.seconds);
    json.end_object();
  }
  json.end_array();
}

}  // namespace ckpt::app
