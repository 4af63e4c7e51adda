// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>

#include "lib/interrupt.h"
#include "lib/io/punch.h"
#include "lib/net/md5.h"
#include "lib/net/settings.h"
#include "lib/net/uploader.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/parallel.h"
#include "lib/trace.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMostParts = 10'000;
constexpr uint64_t kMostObject = uint64_t{5} << 40;
constexpr int kTries = 3;  // for a part that reached the server altered
// Small files stay on this machine until the end. If they total more than this,
// those worth two more requests are sent earlier, as one part.
constexpr uint64_t kMostSmall = 256 * kMiB;
constexpr uint64_t kLeastPart = kMiB;

uint64_t size_of_parts(uint64_t bytes, uint64_t mib) {
  const uint64_t least = (bytes + kMostParts - 1) / kMostParts;
  return std::max(mib * kMiB, (least + kMiB - 1) / kMiB * kMiB);
}

}  // namespace

size_t upload_threads() {
  constexpr size_t kMost = 16;
  const size_t wanted = settings().connections;
  return wanted == 0 ? kMost : std::min(wanted, kMost);
}

uint64_t upload_number(const std::string& text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Uploader::Uploader(std::string root, const std::string& target,
                   const std::vector<std::string>& files,
                   io::UploadOptions options)
    : root_(std::move(root)),
      target_(normal(target)),
      options_(std::move(options)),
      record_(read_record(options_.record)) {
  if (record_.target != target_) begin_record();
  for (const std::string& file : files) add(file);
  divide_small();
  parallel_for(
      files_.size(), [&](size_t i) { take_earlier(files_[i]); },
      upload_threads());
  open_early();
}

Uploader::~Uploader() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    queue_.clear();
  }
  changed_.notify_all();
}

// What an earlier run cut keeps its part size.
uint64_t Uploader::part_size(uint64_t bytes) const {
  return size_of_parts(
      bytes, record_.part_mib ? record_.part_mib : settings().part_mib);
}

void Uploader::add(const std::string& name) {
  OneFile& file = files_.emplace_back();
  file.name = name;
  file.url = (options_.single_file ? folder_of(target_) : target_) + "/" + name;
  file.handle = std::make_shared<const io::Handle>(
      io::Handle::open_write(io::join(root_, name)));
  const uint64_t size = file.handle->size();
  if (size > kMostObject)
    throw unfaithful_error({file.url, {}},
                           "would have {} bytes, an object has {} at most",
                           size, kMostObject)
        .with_hint("smaller files: --max-shard-size 50GB");
  file.part = part_size(size);
  if (size > file.part) file.parts.resize((size + file.part - 1) / file.part);
}

void Uploader::divide_small() {
  uint64_t small = 0;
  for (const OneFile& file : files_)
    if (!file.in_parts()) small += file.handle->size();
  if (small <= kMostSmall) return;
  for (OneFile& file : files_)
    if (!file.in_parts() && file.handle->size() >= kLeastPart)
      file.parts.resize(1);
}

void Uploader::begin_record() {
  record_ = {
      .target = target_, .mark = new_mark(), .part_mib = settings().part_mib};
  std::ofstream(options_.record, std::ios::trunc) << "ckpt-upload 1\n";
  add_line(options_.record, "target " + target_);
  if (options_.single_file) add_line(options_.record, "single");
  add_line(options_.record, "mark " + record_.mark);
  add_line(options_.record, fmt::format("part-mib {}", record_.part_mib));
}

// What an earlier try began, as the server reports it.
void Uploader::take_earlier(OneFile& file) {
  const auto known = record_.uploads.find(file.name);
  if (!file.in_parts() || known == record_.uploads.end()) return;
  file.id = known->second;
  if (!list_parts(file)) {
    file.done = record_.publishing && is_ours(file.url);
    if (!file.done) file.id.clear();
    return;
  }
  const auto sent = record_.sent.find(file.name);
  if (sent == record_.sent.end()) return;
  for (const auto& [number, part] : sent->second) {
    if (part.id != file.id || number == 0 || number > file.parts.size())
      continue;
    const uint64_t begin = (number - 1) * file.part;
    const uint64_t bytes = std::min(file.part, file.handle->size() - begin);
    const auto there = file.standing.find(number);
    if (there != file.standing.end() &&
        there->second == std::pair(part.etag, bytes))
      file.parts[number - 1] = {part.sums, part.etag};
  }
}

uint64_t Uploader::part_bytes(uint32_t file) const {
  const OneFile& one = files_.at(file);
  return one.in_parts() ? one.part : 0;
}

bool Uploader::was_sent(uint32_t file, uint64_t part) const {
  const OneFile& one = files_.at(file);
  if (one.done) return true;
  const auto sent = record_.sent.find(one.name);
  return sent != record_.sent.end() && sent->second.contains(part + 1);
}

bool Uploader::stands(uint32_t file, uint64_t part) const {
  const OneFile& one = files_.at(file);
  return one.done || !one.parts.at(part).etag.empty();
}

// ----------------------------------------------------------------- the queue
void Uploader::send(uint32_t file, uint64_t part,
                    std::vector<io::ByteRange> spare) {
  constexpr auto kLook = std::chrono::milliseconds(100);
  Job job{&files_.at(file), part, std::move(spare)};
  std::unique_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  if (job.file->done || !job.file->parts.at(part).etag.empty()) {
    lock.unlock();
    return release(job);
  }
  queue_.push_back(std::move(job));
  if (!add_worker() && workers_.empty()) {
    lock.unlock();
    return work();  // here, if no other thread can be started
  }
  changed_.notify_all();
  // Otherwise the disk would have to hold what the network can't take yet.
  while (queue_.size() > upload_threads() && !failure_) {
    if (interrupted()) throw Interrupted("");
    changed_.wait_for(lock, kLook);
  }
  if (failure_) std::rethrow_exception(failure_);
}

// False if no other thread can be started.
bool Uploader::add_worker() {
  if (workers_.size() >= std::min(upload_threads(), busy_ + queue_.size()))
    return true;
  return try_thread(workers_, [this] { work(); });
}

// The ids arrive while the first parts are made. Files beyond the first few get
// theirs with their first part.
void Uploader::open_early() {
  const std::lock_guard lock(mutex_);
  for (OneFile& file : files_) {
    if (queue_.size() == upload_threads()) return;
    if (!file.in_parts() || file.done || !file.id.empty()) continue;
    queue_.push_back({&file, kOpen});
    if (add_worker()) continue;
    queue_.pop_back();
    return;
  }
}

void Uploader::run(const Job& job) {
  if (job.index == kOpen) return open_upload(*job.file);
  send_part(*job.file, job.index);
  release(job);
}

void Uploader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (workers_.empty() && queue_.empty()) return;
    changed_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
    if (stopped_) return;
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    ++busy_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(job);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --busy_;
    if (failure) {
      if (!failure_) failure_ = failure;
      queue_.clear();
    }
    changed_.notify_all();
  }
}

void Uploader::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && busy_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

void Uploader::release(const Job& job) {
  for (const auto& [begin, end] : job.spare)
    io::punch(*job.file->handle, begin, end - begin);
}

// ----------------------------------------------------------------- the parts
Request Uploader::ask(const std::string& url, const std::string& method,
                      const std::string& query, const std::string& sha) {
  return store_of(url).write_request(url, method, query, sha);
}

Response Uploader::send_request(const Request& asked) {
  return fetch_renewed(store_of(target_), asked);
}

// gs:// with a bearer token accepts only x-goog- headers.
bool Uploader::signs() const {
  return speaks_amz() ||
         store_of(target_).write_request(target_, "PUT", "", "").signing;
}

std::string Uploader::mark_header() const {
  return std::string(signs() ? "x-amz" : "x-goog") +
         "-meta-ckpt-upload: " + record_.mark;
}

void Uploader::add_condition(Request& request) const {
  if (options_.overwrite) return;
  if (speaks_amz())
    request.headers.push_back("If-None-Match: *");
  else if (!signs())
    request.headers.push_back("x-goog-if-generation-match: 0");
}

// Called with the first part of a file that is sent.
void Uploader::open_upload(OneFile& file) {
  const std::lock_guard opening(file.opening);
  if (!file.id.empty()) return;
  Request asked = ask(file.url, "POST", "uploads=");
  asked.headers.push_back(mark_header());
  if (speaks_amz()) asked.headers.push_back("x-amz-checksum-algorithm: SHA256");
  asked.headers.push_back("Content-Type: application/octet-stream");
  const Response response = send_request(asked);
  check_status(asked, response);
  const std::string id = element(response.body, "UploadId");
  if (id.empty() || id.find_first_of(" \n\r") != id.npos)
    throw Error(ExitCode::kIo, {file.url, {}},
                "the server gives no id for an upload");
  {
    const std::lock_guard lock(record_mutex_);
    add_line(options_.record, "upload " + id + " " + file.name);
  }
  file.id = id;
}

// Returns false if the server knows nothing of the upload.
bool Uploader::list_parts(OneFile& file) {
  std::string marker;
  do {
    const std::string query =
        (marker.empty() ? "" : "part-number-marker=" + marker + "&") +
        ("uploadId=" + encode(file.id));
    const Request asked = ask(file.url, "", query);
    const Response response = send_request(asked);
    if (response.status == 404) return false;
    check_status(asked, response);
    check_answer(asked, response, "ListPartsResult");
    for (const std::string_view part : elements(response.body, "Part")) {
      file.standing[upload_number(element(part, "PartNumber"))] = {
          unquoted(element(part, "ETag")),
          upload_number(element(part, "Size"))};
    }
    const std::string next = element(response.body, "NextPartNumberMarker");
    marker = element(response.body, "IsTruncated") == "true" && next != marker
                 ? next
                 : "";
  } while (!marker.empty());
  return true;
}

void Uploader::send_rest() {
  std::vector<Job> jobs;
  for (OneFile& file : files_)
    if (!file.done)
      for (uint64_t i = 0; i < file.parts.size(); ++i)
        if (file.parts[i].etag.empty()) jobs.push_back({&file, i});
  parallel_for(
      jobs.size(), [&](size_t i) { send_part(*jobs[i].file, jobs[i].index); },
      upload_threads());
}

// An earlier try sent it, but had no time to record that.
bool Uploader::adopt(OneFile& file, uint64_t index, uint64_t bytes) {
  Part& part = file.parts[index];
  const auto there = file.standing.find(index + 1);
  if (there == file.standing.end() ||
      there->second != std::pair(part.sums.md5, bytes))
    return false;
  part.etag = there->second.first;
  return true;
}

void Uploader::send_part(OneFile& file, uint64_t index) {
  if (interrupted()) throw Interrupted("");
  const uint64_t begin = index * file.part;
  const uint64_t bytes = std::min(file.part, file.handle->size() - begin);
  const trace::Span span("upload", bytes);
  Part& part = file.parts[index];
  part.sums = sums_of(*file.handle, begin, bytes);
  open_upload(file);
  if (!adopt(file, index, bytes)) {
    Request asked = ask(
        file.url, "PUT",
        fmt::format("partNumber={}&uploadId={}", index + 1, encode(file.id)),
        part.sums.sha256);
    const Response response =
        send_bytes(std::move(asked), file.handle, begin, bytes, part.sums,
                   fmt::format("part {}", index + 1));
    const std::string etag = unquoted(response.header("etag"));
    if (etag.empty())
      throw Error(
          ExitCode::kIo, {file.url, {}},
          fmt::format("the server names no ETag for part {}", index + 1));
    part.etag = etag;
  }
  const std::lock_guard lock(record_mutex_);
  add_sent(options_.record, file.name, index + 1,
           {file.id, part.sums, part.etag});
}

// Tries until the server has what is here. If `lenient`, replies other than 2xx
// are left to the caller.
Response Uploader::send_bytes(Request asked,
                              const std::shared_ptr<const io::Handle>& body,
                              uint64_t begin, uint64_t bytes, const Sums& sums,
                              const std::string& what, bool lenient) {
  asked.body = body;
  asked.body_begin = begin;
  asked.body_bytes = bytes;
  asked.headers.push_back("Content-MD5: " + base64_of_hex(sums.md5));
  if (speaks_amz())
    asked.headers.push_back("x-amz-checksum-sha256: " +
                            base64_of_hex(sums.sha256));
  std::string wrong;
  for (int i = 0; i < kTries; ++i) {
    Response response = send_request(asked);
    if (came_otherwise(response)) {
      wrong = describe(response);
      continue;
    }
    if (response.status < 200 || response.status >= 300) {
      if (!lenient) check_status(asked, response);
      return response;
    }
    wrong = difference(response, sums);
    if (wrong.empty()) return response;
  }
  throw Error(ExitCode::kIo, {asked.path, {}},
              fmt::format("the server has other bytes of {} than were sent, "
                          "{} times: {}",
                          what, kTries, wrong),
              "something between here and there changes bytes: a proxy, or "
              "the server's disks");
}

}  // namespace ckpt::net

namespace ckpt::io {

std::unique_ptr<Upload> begin_upload(const std::string& root,
                                     const std::string& target,
                                     const std::vector<std::string>& files,
                                     const UploadOptions& options) {
  return std::make_unique<net::Uploader>(root, target, files, options);
}

UploadCost upload_cost(uint64_t bytes) {
  const uint64_t part = net::size_of_parts(bytes, net::settings().part_mib);
  if (bytes <= part) return {bytes, 1, 1};
  const uint64_t parts = (bytes + part - 1) / part;
  return {part, parts, parts + 3};  // begin, complete, look at the size
}

}  // namespace ckpt::io
