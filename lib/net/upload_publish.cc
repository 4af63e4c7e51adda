// SPDX-License-Identifier: Apache-2.0
// How an upload appears all at once.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/net/md5.h"
#include "lib/net/settings.h"
#include "lib/net/uploader.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/parallel.h"

namespace ckpt::net {
namespace {

constexpr int kClaimTries = 3;
constexpr uint64_t kCompleteTries = 4;
constexpr std::string_view kMark = "x-amz-meta-ckpt-upload";
const std::string kClaim = "/" + std::string(io::kUploadClaim);

// The status was sent before the work was done.
bool has_error(const Response& response) {
  return response.body.find("<Error") != std::string::npos;
}

// Asks now, whatever was known before.
io::Standing look_now(const std::string& url) {
  const std::string path = normal(url);
  forget_at(path);
  Store& store = store_of(path);
  // Both at once: each is a round trip.
  std::optional<std::vector<std::string>> names;
  std::optional<Facts> object;
  std::optional<Error> unknown;
  parallel_for(
      2,
      [&](size_t i) {
        if (i == 0) {
          names = store.list(path);
          return;
        }
        const failures::Unimportant if_it_is_a_folder;
        try {
          object = store.look_again(path);
        } catch (const Error& error) {
          unknown = error;
        }
      },
      2);
  // A bucket without objects exists, and is empty.
  if (names && !names->empty()) return io::Standing::kDirectory;
  if (unknown) {
    failures::note(*unknown);
    throw *unknown;
  }
  return object ? io::Standing::kFile : io::Standing::kNothing;
}

}  // namespace

void Uploader::publish(const std::vector<std::string>& more) {
  drain();
  for (const std::string& file : more) add(file);
  send_rest();
  appear_all();
  forget_all();
}

void Uploader::appear_all() {
  if (!record_.publishing) check_free();
  claim();
  if (!record_.publishing) {
    add_line(options_.record, "publishing");
    record_.publishing = true;
  }
  if (options_.overwrite) remove_first();
  const auto each = [&](const std::function<bool(const OneFile&)>& wanted) {
    parallel_for(
        files_.size(),
        [&](size_t i) {
          if (wanted(files_[i])) appear(files_[i]);
        },
        upload_threads());
  };
  const OneFile* const last = &files_.back();
  each([&](const OneFile& f) { return &f != last && f.in_parts(); });
  each([&](const OneFile& f) { return &f != last && !f.in_parts(); });
  appear(files_.back());
  if (options_.overwrite && !options_.single_file) remove_strangers();
  release_claim();
}

std::string Uploader::etag_of(const std::vector<Part>& parts) {
  std::vector<std::string> etags;
  etags.reserve(parts.size());
  for (const Part& part : parts) etags.push_back(part.etag);
  return etag_of_parts(etags);
}

Error Uploader::taken(const std::string& url) const {
  return unfaithful_error({url, {}}, "already exists")
      .with_hint("choose another target, or replace this one with --overwrite");
}

void Uploader::check_free() {
  if (options_.overwrite) return;
  if (look_now(target_) != io::Standing::kNothing) throw taken(target_);
}

// Of two runs that end at the same time only one continues, where the server
// supports If-None-Match for writes; the other's parts stay invisible.
void Uploader::claim() {
  if (options_.single_file) return;
  const std::string url = target_ + kClaim;
  const Sums sums = sums_of(record_.mark);
  Request asked = ask(url, "PUT", "", sums.sha256);
  asked.text = record_.mark;
  asked.headers.push_back(mark_header());
  if (speaks_amz()) asked.headers.push_back("If-None-Match: *");
  const Response response = send_request(asked);
  claimed_once_ = response.attempts == 1;
  if (response.status == 412 || response.status == 409) {
    if (is_ours(url)) return;
    throw Error(ExitCode::kIo, {target_, {}}, "another run is publishing there",
                "wait for it; if it is dead, remove " + url);
  }
  check_status(asked, response);
}

void Uploader::release_claim() {
  if (options_.single_file) return;
  // A try whose answer was not waited for may be done after the first look.
  const std::string url = target_ + kClaim;
  for (int i = 0; i < kClaimTries; ++i) {
    remove(url);
    if (claimed_once_ || !is_ours(url)) return;
  }
}

void Uploader::remove(const std::string& url) {
  const Request asked = ask(url, "DELETE");
  const Response response = send_request(asked);
  if (response.status != 404) check_status(asked, response);
}

bool Uploader::is_ours(const std::string& url) {
  Request asked = ask(url, "");
  asked.head = true;
  const Response response = send_request(asked);
  if (response.status == 404) return false;
  check_status(asked, response);
  return has_mark(response);
}

bool Uploader::has_mark(const Response& response) const {
  return response.header(std::string(kMark)) == record_.mark ||
         response.header("x-goog-meta-ckpt-upload") == record_.mark;
}

void Uploader::appear(OneFile& file) {
  if (interrupted()) throw Interrupted("");
  if (file.done) return;
  const Response response = file.in_parts() ? complete(file) : put(file);
  // The answer to a first attempt may have been lost; then it is there.
  const bool failed =
      response.status < 200 || response.status >= 300 || has_error(response);
  if (!failed) {
    // Who has an object names its ETag; of parts, it tells which ones they are.
    const std::string etag = file.in_parts()
                                 ? unquoted(element(response.body, "ETag"))
                                 : response.header("etag");
    if (file.in_parts() ? etag != etag_of(file.parts) : etag.empty())
      check_size(file);
    return;
  }
  const bool beaten = response.status == 412 || response.status == 409;
  if ((beaten || response.status == 404) && is_ours(file.url)) return;
  if (beaten) throw taken(file.url);
  check_status(ask(file.url, "PUT"), response);
  throw Error(ExitCode::kIo, {file.url, {}},
              "the server can't put its parts together: " + describe(response));
}

Response Uploader::complete(const OneFile& file) {
  std::string xml = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < file.parts.size(); ++i) {
    xml += fmt::format(
        "<Part><PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag>", i + 1,
        unquoted(file.parts[i].etag));
    if (speaks_amz())
      xml += "<ChecksumSHA256>" + base64_of_hex(file.parts[i].sums.sha256) +
             "</ChecksumSHA256>";
    xml += "</Part>";
  }
  xml += "</CompleteMultipartUpload>";
  Request asked =
      ask(file.url, "POST", "uploadId=" + encode(file.id), sums_of(xml).sha256);
  asked.text = std::move(xml);
  asked.headers.push_back("Content-Type: application/xml");
  constexpr uint64_t kMergePatience = 300;  // a server may copy all of it
  asked.patience = std::max(settings().stall_seconds, kMergePatience);
  add_condition(asked);
  for (uint64_t i = 1;; ++i) {
    Response response = send_request(asked);
    if (response.status != 200 || !has_error(response) || i == kCompleteTries ||
        interrupted())
      return response;
    std::this_thread::sleep_for(
        std::chrono::milliseconds(settings().backoff_ms << i));
  }
}

Response Uploader::put(const OneFile& file) {
  const uint64_t size = file.handle->size();
  const Sums sums = sums_of(*file.handle, 0, size);
  Request asked = ask(file.url, "PUT", "", sums.sha256);
  asked.headers.push_back(mark_header());
  asked.headers.push_back("Content-Type: application/octet-stream");
  add_condition(asked);
  return send_bytes(std::move(asked), file.handle, 0, size, sums, "the object",
                    true);
}

void Uploader::check_size(const OneFile& file) {
  Request asked = ask(file.url, "");
  asked.head = true;
  const Response response = send_request(asked);
  // An older object of that name does not count as the new one.
  if (response.status == 404 ||
      (options_.overwrite && response.status == 200 && !has_mark(response)))
    throw Error(ExitCode::kIo, {file.url, {}},
                "the server said that it has it, and has not",
                "is there a proxy that answers in its place? What was sent is "
                "kept: add --resume to the same command");
  check_status(asked, response);
  const uint64_t there = upload_number(response.header("content-length"));
  if (there != file.handle->size())
    throw Error(ExitCode::kIo, {file.url, {}},
                fmt::format("has {} bytes there, {} were sent", there,
                            file.handle->size()),
                "remove the target, and write it again");
}

// ------------------------------------------------------------- replacing
// A manifest that tells about others' bytes goes before those change.
void Uploader::remove_first() {
  remove(files_.back().url);
  if (!options_.single_file) return;
  for (const std::string& companion : options_.companions)
    remove(target_ + companion);
}

void Uploader::remove_strangers() {
  std::set<std::string> ours{target_ + kClaim};
  for (const OneFile& file : files_) ours.insert(file.url);
  std::vector<std::string> gone;
  forget_all();
  std::vector<std::string> folders{target_};
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::string folder = folders[i];
    const auto names = store_of(folder).list(folder);
    if (!names) continue;
    for (const std::string& name : *names) {
      const std::string url = fmt::format("{}/{}", folder, name);
      const auto facts = store_of(url).look(url);
      if (facts && facts->directory)
        folders.push_back(url);
      else if (!ours.contains(url))
        gone.push_back(url);
    }
  }
  parallel_for(
      gone.size(), [&](size_t i) { remove(gone[i]); }, upload_threads());
}

}  // namespace ckpt::net

namespace ckpt::io {

namespace {

// What a run's first look found, for the second one a moment later: each is a
// round trip, and the look before it publishes always asks.
struct FirstLook {
  std::mutex mutex;
  std::string url;  // "" once it was used
  std::chrono::steady_clock::time_point when;
};

}  // namespace

Standing look_at_target(const std::string& url) {
  constexpr auto kFresh = std::chrono::seconds(5);
  static FirstLook known;
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(known.mutex);
  if (std::exchange(known.url, "") == url && now - known.when < kFresh)
    return Standing::kNothing;
  const Standing there = net::look_now(url);
  known.when = now;
  if (there == Standing::kNothing) known.url = url;
  return there;
}

}  // namespace ckpt::io
