// SPDX-License-Identifier: Apache-2.0
// Objects out of files, by the API of S3.
//
//   POST KEY?uploads=                        an id for each large file
//   PUT  KEY?partNumber=N&uploadId=ID        its parts, in any order
//   PUT  TARGET/.ckpt-upload                 the claim, if none stands there
//   POST KEY?uploadId=ID                     the large files appear,
//   PUT  KEY                                 then the small ones,
//                                            then the last one: the manifest
//   DELETE TARGET/.ckpt-upload
//
// Nothing can be seen before all parts of all files stand. Each object carries
// the upload's number in its metadata, so that a request whose answer was lost
// is told from another's work.
#include "lib/io/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>

#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/net/md5.h"
#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/upload_record.h"
#include "lib/net/upload_sums.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/parallel.h"
#include "lib/sha256.h"
#include "lib/trace.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kMostParts = 10'000;
constexpr uint64_t kMostObject = uint64_t{5} << 40;
constexpr int kTries = 3;  // of a part that came to the server as another one
constexpr std::string_view kMark = "x-amz-meta-ckpt-upload";
constexpr std::string_view kClaim = "/.ckpt-upload";

uint64_t part_size(uint64_t bytes) {
  const uint64_t least = (bytes + kMostParts - 1) / kMostParts;
  return std::max(settings().part_mib * kMiB, (least + kMiB - 1) / kMiB * kMiB);
}

class Uploader {
 public:
  Uploader(std::string root, const std::string& target,
           const std::vector<std::string>& files,
           const io::UploadOptions& options)
      : root_(std::move(root)),
        target_(normal(target)),
        options_(options),
        record_(read_record(options.record)) {
    for (const std::string& file : files) add(file);
  }

  void run() {
    if (record_.target != target_) begin_record();
    parallel_for(
        files_.size(), [&](size_t i) { open_upload(files_[i]); }, threads());
    send_parts();
    publish();
  }

 private:
  struct Part {
    Sums sums;
    std::string etag;  // as the server has it
  };
  struct OneFile {
    std::string name;  // below the root
    std::string url;
    std::shared_ptr<const io::Handle> handle;
    uint64_t part = 0;
    std::string id;  // "" for a small one
    std::vector<Part> parts = {};
    std::map<uint64_t, std::pair<std::string, uint64_t>> standing = {};
    bool done = false;  // by an earlier try

    bool large() const { return handle->size() > part; }
  };

  void add(const std::string& name) {
    OneFile file{.name = name,
                 .url = options_.single_file ? folder_of(target_) + "/" + name
                                             : target_ + "/" + name,
                 .handle = std::make_shared<const io::Handle>(
                     io::Handle::open_read(io::join(root_, name)))};
    const uint64_t size = file.handle->size();
    if (size > kMostObject)
      throw unfaithful_error({file.url, {}},
                             "would have {} bytes, an object has {} at most",
                             size, kMostObject)
          .with_hint("smaller files: --max-shard-size 50GB");
    file.part = part_size(size);
    if (file.large()) file.parts.resize((size + file.part - 1) / file.part);
    files_.push_back(std::move(file));
  }

  static size_t threads() {
    return std::min<size_t>(settings().connections, 16);
  }

  void begin_record() {
    record_ = {.target = target_, .mark = new_mark()};
    std::ofstream(options_.record, std::ios::trunc) << "ckpt-upload 1\n";
    add_line(options_.record, "target " + target_);
    if (options_.single_file) add_line(options_.record, "single");
    add_line(options_.record, "mark " + record_.mark);
  }

  Request ask(const std::string& url, const std::string& method,
              const std::string& query = "", const std::string& sha = "") {
    return store_of(url).write_request(url, method, query, sha);
  }

  bool speaks_amz() const { return target_.starts_with("s3://"); }

  std::string mark_header() const {
    const std::string name =
        signs(target_) ? std::string(kMark) : "x-goog-meta-ckpt-upload";
    return name + ": " + record_.mark;
  }

  // gs:// with a bearer token takes x-goog- headers only.
  static bool signs(const std::string& target) {
    return target.starts_with("s3://") ||
           store_of(target).write_request(target, "PUT", "", "").signing;
  }

  void add_condition(Request& request) const {
    if (options_.overwrite) return;
    if (speaks_amz())
      request.headers.push_back("If-None-Match: *");
    else if (!signs(target_))
      request.headers.push_back("x-goog-if-generation-match: 0");
  }

  // ------------------------------------------------------------- the parts
  void open_upload(OneFile& file) {
    if (!file.large()) return;
    const auto known = record_.uploads.find(file.name);
    if (known != record_.uploads.end()) {
      file.id = known->second;
      if (list_parts(file)) return;
      file.done = record_.publishing && is_ours(file.url);
      if (file.done) return;
    }
    Request asked = ask(file.url, "POST", "uploads=");
    asked.headers.push_back(mark_header());
    if (speaks_amz())
      asked.headers.push_back("x-amz-checksum-algorithm: SHA256");
    asked.headers.push_back("Content-Type: application/octet-stream");
    const Response response = fetch(asked);
    check_status(asked, response);
    file.id = element(response.body, "UploadId");
    if (file.id.empty() || file.id.find_first_of(" \n\r") != file.id.npos)
      throw Error(ExitCode::kIo, {file.url, {}},
                  "the server gives no id for an upload");
    const std::lock_guard lock(mutex_);
    add_line(options_.record, "upload " + file.id + " " + file.name);
  }

  // False if the server knows nothing of the upload.
  bool list_parts(OneFile& file) {
    std::string marker;
    do {
      const std::string query =
          (marker.empty() ? "" : "part-number-marker=" + marker + "&") +
          ("uploadId=" + encode(file.id));
      const Request asked = ask(file.url, "", query);
      const Response response = fetch(asked);
      if (response.status == 404) return false;
      check_status(asked, response);
      for (const std::string_view part : elements(response.body, "Part")) {
        file.standing[number(element(part, "PartNumber"))] = {
            unquoted(element(part, "ETag")), number(element(part, "Size"))};
      }
      const std::string next = element(response.body, "NextPartNumberMarker");
      marker = element(response.body, "IsTruncated") == "true" && next != marker
                   ? next
                   : "";
    } while (!marker.empty());
    return true;
  }

  static uint64_t number(const std::string& text) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  void send_parts() {
    struct Job {
      OneFile* file;
      uint64_t number;
    };
    std::vector<Job> jobs;
    for (OneFile& file : files_)
      if (!file.done)
        for (uint64_t i = 0; i < file.parts.size(); ++i)
          jobs.push_back({&file, i});
    parallel_for(
        jobs.size(),
        [&](size_t i) { send_part(*jobs[i].file, jobs[i].number); }, threads());
  }

  void send_part(OneFile& file, uint64_t index) {
    if (interrupted()) throw Interrupted("");
    const uint64_t begin = index * file.part;
    const uint64_t bytes = std::min(file.part, file.handle->size() - begin);
    const trace::Span span("upload", bytes);
    Part& part = file.parts[index];
    part.sums = sums_of(*file.handle, begin, bytes);
    if (const auto there = file.standing.find(index + 1);
        there != file.standing.end() &&
        there->second == std::pair(part.sums.md5, bytes)) {
      part.etag = there->second.first;
      return;
    }
    Request asked = ask(
        file.url, "PUT",
        fmt::format("partNumber={}&uploadId={}", index + 1, encode(file.id)),
        part.sums.sha256);
    const Response response =
        send(std::move(asked), file.handle, begin, bytes, part.sums,
             fmt::format("part {}", index + 1));
    part.etag = response.header("etag");
    if (part.etag.empty())
      throw Error(
          ExitCode::kIo, {file.url, {}},
          fmt::format("the server names no ETag for part {}", index + 1));
  }

  // Until the server has what is here. Replies other than 2xx are the
  // caller's, if `lenient`.
  Response send(Request asked, const std::shared_ptr<const io::Handle>& body,
                uint64_t begin, uint64_t bytes, const Sums& sums,
                const std::string& what, bool lenient = false) {
    asked.body = body;
    asked.body_begin = begin;
    asked.body_bytes = bytes;
    asked.headers.push_back("Content-MD5: " + base64_of_hex(sums.md5));
    if (speaks_amz())
      asked.headers.push_back("x-amz-checksum-sha256: " +
                              base64_of_hex(sums.sha256));
    std::string wrong;
    for (int i = 0; i < kTries; ++i) {
      Response response = fetch(asked);
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

  // ------------------------------------------------------------ appearing
  void publish() {
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
          threads());
    };
    const OneFile* const last = &files_.back();
    each([&](const OneFile& f) { return &f != last && f.large(); });
    each([&](const OneFile& f) { return &f != last && !f.large(); });
    appear(files_.back());
    if (options_.overwrite && !options_.single_file) remove_strangers();
    release_claim();
  }

  Error taken(const std::string& url) const {
    return unfaithful_error({url, {}}, "already exists")
        .with_hint(
            "choose another target, or replace this one with --overwrite");
  }

  void check_free() {
    if (options_.overwrite) return;
    if (io::look_at_target(target_) != io::Standing::kNothing)
      throw taken(target_);
  }

  // One of two runs that end at the same time goes on, where the server knows
  // If-None-Match for writes; the other's parts stay unseen.
  void claim() {
    if (options_.single_file) return;
    const std::string url = target_ + std::string(kClaim);
    const Sums sums = sums_of(record_.mark);
    Request asked = ask(url, "PUT", "", sums.sha256);
    asked.text = record_.mark;
    asked.headers.push_back(mark_header());
    if (speaks_amz()) asked.headers.push_back("If-None-Match: *");
    const Response response = fetch(asked);
    if (response.status == 412 || response.status == 409) {
      if (is_ours(url)) return;
      throw Error(ExitCode::kIo, {target_, {}},
                  "another run is publishing there",
                  "wait for it; if it is dead, remove " + url);
    }
    check_status(asked, response);
  }

  void release_claim() {
    if (options_.single_file) return;
    // A try whose answer was not waited for may be done after the first look.
    const std::string url = target_ + std::string(kClaim);
    for (int i = 0; i < kTries; ++i) {
      remove(url);
      if (!is_ours(url)) return;
    }
  }

  void remove(const std::string& url) {
    const Request asked = ask(url, "DELETE");
    const Response response = fetch(asked);
    if (response.status != 404) check_status(asked, response);
  }

  bool is_ours(const std::string& url) {
    Request asked = ask(url, "");
    asked.head = true;
    const Response response = fetch(asked);
    if (response.status == 404) return false;
    check_status(asked, response);
    return response.header(std::string(kMark)) == record_.mark ||
           response.header("x-goog-meta-ckpt-upload") == record_.mark;
  }

  void appear(OneFile& file) {
    if (interrupted()) throw Interrupted("");
    if (file.done) return;
    const Response response = file.large() ? complete(file) : put(file);
    // The answer to a first try may have been lost; then it is there.
    const bool failed = response.status < 200 || response.status >= 300 ||
                        response.body.find("<Error>") != std::string::npos;
    if (!failed) {
      check_size(file);
      return;
    }
    const bool beaten = response.status == 412 || response.status == 409;
    if ((beaten || response.status == 404) && is_ours(file.url)) return;
    if (beaten) throw taken(file.url);
    check_status(ask(file.url, "PUT"), response);
    throw Error(
        ExitCode::kIo, {file.url, {}},
        "the server can't put its parts together: " + describe(response));
  }

  Response complete(const OneFile& file) {
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
    Request asked = ask(file.url, "POST", "uploadId=" + encode(file.id),
                        sums_of(xml).sha256);
    asked.text = std::move(xml);
    asked.headers.push_back("Content-Type: application/xml");
    constexpr uint64_t kPatience = 300;  // a server may copy all of it
    asked.patience = std::max(settings().stall_seconds, kPatience);
    add_condition(asked);
    return fetch(asked);
  }

  Response put(const OneFile& file) {
    const uint64_t size = file.handle->size();
    const Sums sums = sums_of(*file.handle, 0, size);
    Request asked = ask(file.url, "PUT", "", sums.sha256);
    asked.headers.push_back(mark_header());
    asked.headers.push_back("Content-Type: application/octet-stream");
    add_condition(asked);
    return send(std::move(asked), file.handle, 0, size, sums, "the object",
                true);
  }

  void check_size(const OneFile& file) {
    if (!file.large()) return;
    Request asked = ask(file.url, "");
    asked.head = true;
    const Response response = fetch(asked);
    check_status(asked, response);
    const uint64_t there = number(response.header("content-length"));
    if (there != file.handle->size())
      throw Error(ExitCode::kIo, {file.url, {}},
                  fmt::format("has {} bytes there, {} were sent", there,
                              file.handle->size()),
                  "remove the target, and write it again");
  }

  // ------------------------------------------------------------- replacing
  // A manifest that tells about others' bytes goes before those change.
  void remove_first() {
    remove(files_.back().url);
    if (!options_.single_file) return;
    for (const std::string& companion : options_.companions)
      remove(target_ + companion);
  }

  void remove_strangers() {
    std::set<std::string> ours{target_ + std::string(kClaim)};
    for (const OneFile& file : files_) ours.insert(file.url);
    std::vector<std::string> gone;
    forget_all();
    std::vector<std::string> folders{target_};
    for (size_t i = 0; i < folders.size(); ++i) {
      const std::string folder = folders[i];
      const auto names = store_of(folder).list(folder);
      if (!names) continue;
      for (const std::string& name : *names) {
        const std::string url = folder + "/" + name;
        const auto facts = store_of(url).look(url);
        if (facts && facts->directory)
          folders.push_back(url);
        else if (!ours.contains(url))
          gone.push_back(url);
      }
    }
    parallel_for(
        gone.size(), [&](size_t i) { remove(gone[i]); }, threads());
  }

  const std::string root_;
  const std::string target_;
  const io::UploadOptions& options_;
  Record record_;
  std::mutex mutex_;  // of the record's file
  std::vector<OneFile> files_;
};

}  // namespace
}  // namespace ckpt::net

namespace ckpt::io {

Standing look_at_target(const std::string& url) {
  net::forget_all();
  const std::string path = net::normal(url);
  const auto facts = net::store_of(path).look(path);
  if (!facts) return Standing::kNothing;
  if (!facts->directory) return Standing::kFile;
  // A bucket without objects is there, and empty.
  const auto names = net::store_of(path).list(path);
  return names && !names->empty() ? Standing::kDirectory : Standing::kNothing;
}

void upload(const std::string& root, const std::string& target,
            const std::vector<std::string>& files,
            const UploadOptions& options) {
  net::Uploader(root, target, files, options).run();
  net::forget_all();
}

UploadCost upload_cost(uint64_t bytes) {
  const uint64_t part = net::part_size(bytes);
  if (bytes <= part) return {bytes, 1, 1};
  const uint64_t parts = (bytes + part - 1) / part;
  return {part, parts, parts + 3};  // begin, complete, look at the size
}

}  // namespace ckpt::io
