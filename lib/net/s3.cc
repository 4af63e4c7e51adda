// SPDX-License-Identifier: Apache-2.0
// s3://BUCKET/KEY and gs://BUCKET/KEY: objects, through S3's API. A directory
// is the prefix that keys share, up to a slash:
//
//   GET /?list-type=2&prefix=runs/step_5/&delimiter=/
//     <Contents><Key>runs/step_5/model.safetensors</Key><Size>…<ETag>…
//     <CommonPrefixes><Prefix>runs/step_5/optim/</Prefix>
//
// One listing answers for everything in it: sizes, versions, what is absent.
#include <fmt/format.h>

#include <functional>

#include "lib/net/aws.h"
#include "lib/net/listed.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"

namespace ckpt::net {
namespace {

// SHA-256 of nothing: the body of requests that only read.
constexpr std::string_view kEmptySum =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct Access {
  std::string endpoint;
  bool path_style = true;
  std::string region;
  std::optional<Credentials> credentials;
  std::string bearer;
};

Access s3_access() {
  const AwsSettings aws = find_aws();
  return {aws.endpoint, aws.path_style, aws.region, aws.credentials, ""};
}

// HMAC keys sign as for S3, with the region "auto".
Access gcs_access() {
  Access access{.region = "auto"};
  for (const char* name : {"GS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"})
    if (access.endpoint.empty()) access.endpoint = environment(name);
  if (access.endpoint.empty())
    access.endpoint = "https://storage.googleapis.com";
  else if (access.endpoint.find("://") == access.endpoint.npos)
    access.endpoint = "http://" + access.endpoint;
  for (const char* name :
       {"GOOGLE_OAUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"})
    if (access.bearer.empty()) access.bearer = environment(name);
  const std::string key = environment("GS_ACCESS_KEY_ID");
  if (access.bearer.empty() && !key.empty())
    access.credentials =
        Credentials{key, environment("GS_SECRET_ACCESS_KEY"), ""};
  if (access.bearer.empty() && key.empty())
    access.bearer = google_machine_token();
  return access;
}

class ObjectStore final : public ListedStore {
 public:
  explicit ObjectStore(Access (*find)()) : find_(find) {}

  Request request(const std::string& path) override {
    const Place place = parse_place(path);
    return ask(path, place.bucket, "/" + encode_path(place.key), "");
  }

  // The region is known to be right: a target is looked at first.
  Request write_request(const std::string& path, const std::string& method,
                        const std::string& query,
                        const std::string& sha256) override {
    const Place place = parse_place(path);
    Request made = ask(path, place.bucket, "/" + encode_path(place.key), query,
                       sha256.empty() ? kEmptySum : std::string_view(sha256));
    made.method = method;
    return made;
  }

  // Temporary keys are looked up again when they expire.
  bool refused(const std::string&, const Request& asked) override {
    if (!asked.signing) return false;
    const std::lock_guard lock(access_mutex_);
    const auto key = [&] {
      return access_->credentials ? access_->credentials->key : "";
    };
    if (key() == asked.signing->key)
      access_ = std::make_shared<const Access>(find_());
    return key() != asked.signing->key;
  }

 private:
  std::shared_ptr<const Access> access() {
    const std::lock_guard lock(access_mutex_);
    if (!access_) access_ = std::make_shared<const Access>(find_());
    return access_;
  }

  Request ask(const std::string& path, const std::string& bucket,
              const std::string& key, const std::string& query,
              std::string_view sum = kEmptySum) {
    const std::shared_ptr<const Access> held = access();
    const Access& how = *held;
    const std::string region = region_of(bucket);
    Request made;
    made.path = path;
    std::string host = how.endpoint;
    if (host.empty()) {
      // The service's certificates are for names without dots.
      const bool dotted = bucket.find('.') != bucket.npos;
      host =
          dotted
              ? fmt::format("https://s3.{}.amazonaws.com/{}", region, bucket)
              : fmt::format("https://{}.s3.{}.amazonaws.com", bucket, region);
    } else {
      host += "/" + bucket;
    }
    made.url = host + key + (query.empty() ? "" : "?" + query);
    if (!how.bearer.empty()) {
      made.secret_headers.push_back("Authorization: Bearer " + how.bearer);
    } else if (how.credentials) {
      made.signing = Signing{fmt::format("aws:amz:{}:s3", region),
                             how.credentials->key, how.credentials->secret};
      made.secret_headers.push_back(
          fmt::format("x-amz-content-sha256: {}", sum));
      if (!how.credentials->session.empty())
        made.secret_headers.push_back("X-Amz-Security-Token: " +
                                      how.credentials->session);
    }
    return made;
  }

  std::string region_of(const std::string& bucket) {
    const std::string usual = access()->region;
    const std::lock_guard lock(access_mutex_);
    const auto found = regions_.find(bucket);
    return found == regions_.end() ? usual : found->second;
  }

  // The service reports where a bucket is, if it is elsewhere.
  bool moved(const std::string& bucket, const Response& response) {
    const std::string told = response.header("x-amz-bucket-region");
    if (response.status < 300 || told.empty() || told == region_of(bucket))
      return false;
    const std::lock_guard lock(access_mutex_);
    regions_[bucket] = told;
    return true;
  }

  std::optional<Listing> list_all(const std::string& path) override {
    const Place place = parse_place(path);
    Listing all;
    bool any = place.key.empty();
    const bool listed = list_pages(path, "/", [&](const Page& page) {
      for (const std::string_view part : elements(page.xml, "Contents")) {
        any = true;
        std::string name = page.name(part, "Key");
        const uint64_t size =
            size_number(path + "/" + name, element(part, "Size"));
        add_object(std::move(name), size, element(part, "ETag"), all);
      }
      for (const std::string_view part : elements(page.xml, "CommonPrefixes")) {
        any = true;
        add_folder(page.name(part, "Prefix"), all);
      }
      check_names(path, all.entries.size());
    });
    if (!listed || !any) return std::nullopt;
    return all;
  }

  Folders list_below(const std::string& path) override {
    Folders all;
    size_t count = 0;
    const bool listed = list_pages(path, "", [&](const Page& page) {
      for (const std::string_view part : elements(page.xml, "Contents")) {
        const std::string name = page.name(part, "Key");
        const uint64_t size =
            size_number(path + "/" + name, element(part, "Size"));
        add_below(path, name, size, element(part, "ETag"), all);
        ++count;
      }
      check_names(path, count);
    });
    return listed ? all : Folders();
  }

  // A page of a listing.
  struct Page {
    std::string_view xml;
    const std::string& prefix;
    bool encoded;

    // The part after the prefix.
    std::string name(std::string_view part, const char* tag) const {
      std::string key = element(part, tag);
      if (encoded) {
        for (char& c : key)
          if (c == '+') c = ' ';
        key = decode(key);
      }
      if (!key.starts_with(prefix)) return std::string();
      return key.substr(prefix.size());
    }
  };

  // False if it can't be listed: permission to read an object doesn't always
  // include listing.
  bool list_pages(const std::string& path, const std::string& delimiter,
                  const std::function<void(const Page&)>& take) {
    const Place place = parse_place(path);
    const std::string prefix = place.prefix();
    std::string token;
    do {
      const Response page =
          list_page(path, place.bucket, prefix, delimiter, token);
      // The rest of a list that has begun is no matter of rights.
      if (token.empty() && page.status == 403 && !place.key.empty())
        return false;
      if (token.empty() && page.status == 404) return false;
      const Request asked = ask(path, place.bucket, "/", "");
      check_status(asked, page);
      check_answer(asked, page, "ListBucketResult");
      take({page.body, prefix, element(page.body, "EncodingType") == "url"});
      token = element(page.body, "IsTruncated") == "true"
                  ? element(page.body, "NextContinuationToken")
                  : "";
    } while (!token.empty());
    return true;
  }

  // The query's names are in order, as the signature requires.
  Response list_page(const std::string& path, const std::string& bucket,
                     const std::string& prefix, const std::string& delimiter,
                     const std::string& token) {
    std::string query;
    if (!token.empty()) query = "continuation-token=" + encode(token) + "&";
    if (!delimiter.empty()) query += "delimiter=" + encode(delimiter) + "&";
    query += "encoding-type=url&list-type=2&prefix=" + encode(prefix);
    Response page = fetch(ask(path, bucket, "/", query));
    if (moved(bucket, page)) page = fetch(ask(path, bucket, "/", query));
    return page;
  }

  std::optional<Facts> head(const std::string& path, bool beside) override {
    Request asked = request(path);
    asked.head = true;
    Response response = fetch(asked);
    if (moved(parse_place(path).bucket, response)) {
      asked = request(path);
      asked.head = true;
      response = fetch(asked);
    }
    return facts_of_head(asked, response, beside);
  }

  Access (*const find_)();
  std::mutex access_mutex_;
  std::shared_ptr<const Access> access_;
  std::map<std::string, std::string> regions_;  // by bucket
};

}  // namespace

std::unique_ptr<Store> make_s3_store() {
  return std::make_unique<ObjectStore>(&s3_access);
}

std::unique_ptr<Store> make_gcs_store() {
  return std::make_unique<ObjectStore>(&gcs_access);
}

}  // namespace ckpt::net
