// SPDX-License-Identifier: Apache-2.0
// Turns files into objects, through S3's API.
//
//   POST KEY?uploads=                        an id for each file in parts
//   PUT  KEY?partNumber=N&uploadId=ID        its parts, in any order
//   PUT  TARGET/.ckpt-upload                 the claim, if none stands there
//   POST KEY?uploadId=ID                     files in parts appear,
//   PUT  KEY                                 then the small ones,
//                                            then the last one: the manifest
//   DELETE TARGET/.ckpt-upload
//
// Nothing is visible before all parts of all files are there. Each object
// carries the upload's number in its metadata, so that a request whose answer
// was lost can be told from another run's work.
//
// The local record says what was begun and which parts the server has, before
// their bytes are freed here.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "lib/io/upload.h"
#include "lib/net/store.h"
#include "lib/net/upload_record.h"
#include "lib/net/upload_sums.h"

namespace ckpt::net {

class Uploader final : public io::Upload {
 public:
  Uploader(std::string root, const std::string& target,
           const std::vector<std::string>& files, io::UploadOptions options);
  // Waits for parts in flight.
  ~Uploader() override;
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  uint64_t part_bytes(uint32_t file) const override;
  bool was_sent(uint32_t file, uint64_t part) const override;
  bool stands(uint32_t file, uint64_t part) const override;
  void send(uint32_t file, uint64_t part,
            std::vector<io::ByteRange> spare) override;
  void publish(const std::vector<std::string>& more) override;

 private:
  struct Part {
    Sums sums;
    std::string etag;  // on the server; "": it has none
  };
  struct OneFile {
    std::string name;  // below the root
    std::string url;
    std::shared_ptr<const io::Handle> handle;
    uint64_t part = 0;             // bytes
    std::vector<Part> parts = {};  // empty: it is sent whole
    std::string id = {};           // of its upload, if there is one
    std::mutex opening = {};       // of the id
    std::map<uint64_t, std::pair<std::string, uint64_t>> standing = {};
    bool done = false;  // by an earlier try

    bool in_parts() const { return !parts.empty(); }
  };
  static constexpr uint64_t kOpen = UINT64_MAX;  // no part: ask for an id
  struct Job {
    OneFile* file = nullptr;
    uint64_t index = 0;
    std::vector<io::ByteRange> spare = {};
  };

  void add(const std::string& name);
  void divide_small();
  void begin_record();
  void take_earlier(OneFile& file);
  uint64_t part_size(uint64_t bytes) const;
  Request ask(const std::string& url, const std::string& method,
              const std::string& query = "", const std::string& sha = "");
  // With other keys if those of the request have expired.
  Response send_request(const Request& asked);
  bool speaks_amz() const { return target_.starts_with("s3://"); }
  bool signs() const;
  std::string mark_header() const;
  void add_condition(Request& request) const;

  // The queue.
  void open_early();
  bool add_worker();  // with the mutex held
  void work();
  void run(const Job& job);
  void drain();
  static void release(const Job& job);

  // Parts.
  void open_upload(OneFile& file);
  bool list_parts(OneFile& file);
  void send_rest();
  void send_part(OneFile& file, uint64_t index);
  bool adopt(OneFile& file, uint64_t index, uint64_t bytes);
  Response send_bytes(Request asked,
                      const std::shared_ptr<const io::Handle>& body,
                      uint64_t begin, uint64_t bytes, const Sums& sums,
                      const std::string& what, bool lenient = false);

  // Appearing (upload_publish.cc).
  void appear_all();
  Error taken(const std::string& url) const;
  void check_free();
  void claim();
  void release_claim();
  void remove(const std::string& url);
  bool is_ours(const std::string& url);
  static std::string etag_of(const std::vector<Part>& parts);
  bool has_mark(const Response& response) const;
  void appear(OneFile& file);
  Response complete(const OneFile& file);
  Response put(const OneFile& file);
  void check_size(const OneFile& file);
  void remove_first();
  void remove_strangers();

  const std::string root_;
  const std::string target_;
  const io::UploadOptions options_;
  Record record_;
  bool claimed_once_ = false;  // no other attempt can arrive late
  std::mutex record_mutex_;    // of the record's file
  std::deque<OneFile> files_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<Job> queue_;
  size_t busy_ = 0;
  bool stopped_ = false;
  std::exception_ptr failure_;
  std::vector<std::jthread> workers_;
};

uint64_t upload_number(const std::string& text);
size_t upload_threads();

}  // namespace ckpt::net
