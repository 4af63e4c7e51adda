// SPDX-License-Identifier: Apache-2.0
// s3://BUCKET/KEY and gs://BUCKET/KEY: objects by the API of S3. A directory
// is what keys have in common up to a slash:
//
//   GET /?list-type=2&prefix=runs/step_5/&delimiter=/
//     <Contents><Key>runs/step_5/model.safetensors</Key><Size>…<ETag>…
//     <CommonPrefixes><Prefix>runs/step_5/optim/</Prefix>
//
// One listing answers for everything in it: sizes, versions, what is absent.
#include <fmt/format.h>

#include <charconv>
#include <set>

#include "lib/net/aws.h"
#include "lib/net/settings.h"
#include "lib/net/store.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"

namespace ckpt::net {
namespace {

constexpr size_t kMostNames = 1'000'000;
// SHA-256 of nothing: the body of requests that only ask.
constexpr std::string_view kEmptySum =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct Place {
  std::string bucket;
  std::string key;
};

Place parse_place(const std::string& path) {
  const std::string_view rest = std::string_view(path).substr(5);
  const size_t slash = rest.find('/');
  if (slash == rest.npos) return {std::string(rest), ""};
  return {std::string(rest.substr(0, slash)),
          std::string(rest.substr(slash + 1))};
}

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

// HMAC keys sign as for S3, for the region "auto".
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
  return access;
}

uint64_t size_number(const std::string& text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Keys of a directory, as a listing gives them.
struct Listing {
  std::map<std::string, Facts> entries;  // by name
};

class ObjectStore final : public Store {
 public:
  explicit ObjectStore(Access (*find)()) : find_(find) {}

  std::optional<Facts> look(const std::string& path) override {
    const Place place = parse_place(path);
    if (place.bucket.empty()) return std::nullopt;
    if (!place.key.empty()) {
      const std::string folder = folder_of(path);
      const std::lock_guard lock(mutex_);
      const auto found = listings_.find(folder);
      if (found != listings_.end() && found->second) {
        const auto entry = found->second->entries.find(last_name(path));
        if (entry == found->second->entries.end()) return std::nullopt;
        return entry->second;
      }
    }
    if (listing(path)) {
      Facts folder;
      folder.directory = true;
      return folder;
    }
    return place.key.empty() ? std::nullopt : head(path);
  }

  std::optional<Facts> look_again(const std::string& path) override {
    return head(path);
  }

  std::optional<std::vector<std::string>> list(
      const std::string& path) override {
    const Listing* const found = listing(path);
    if (!found) return std::nullopt;
    std::vector<std::string> names;
    for (const auto& [name, facts] : found->entries) names.push_back(name);
    return names;
  }

  Request request(const std::string& path) override {
    const Place place = parse_place(path);
    return ask(path, place.bucket, "/" + encode_path(place.key), "");
  }

  // The region is the right one: a target is looked at first.
  Request write_request(const std::string& path, const std::string& method,
                        const std::string& query,
                        const std::string& sha256) override {
    const Place place = parse_place(path);
    Request made = ask(path, place.bucket, "/" + encode_path(place.key), query,
                       sha256.empty() ? kEmptySum : std::string_view(sha256));
    made.method = method;
    return made;
  }

  void forget() override {
    const std::lock_guard lock(mutex_);
    listings_.clear();
  }

 private:
  const Access& access() {
    const std::lock_guard lock(access_mutex_);
    if (!access_) access_ = find_();
    return *access_;
  }

  Request ask(const std::string& path, const std::string& bucket,
              const std::string& key, const std::string& query,
              std::string_view sum = kEmptySum) {
    const Access& how = access();
    const std::string region = region_of(bucket);
    Request made;
    made.path = path;
    std::string host = how.endpoint;
    if (host.empty()) {
      // Certificates of the service are for names without dots.
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
    const std::string& usual = access().region;
    const std::lock_guard lock(access_mutex_);
    const auto found = regions_.find(bucket);
    return found == regions_.end() ? usual : found->second;
  }

  // The service says where a bucket is, if it is elsewhere.
  bool moved(const std::string& bucket, const Response& response) {
    const std::string told = response.header("x-amz-bucket-region");
    if (response.status < 300 || told.empty() || told == region_of(bucket))
      return false;
    const std::lock_guard lock(access_mutex_);
    regions_[bucket] = told;
    return true;
  }

  // Null if nothing lies below it.
  const Listing* listing(const std::string& path) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = listings_.find(path); found != listings_.end())
        return found->second ? &*found->second : nullptr;
    }
    std::optional<Listing> made = list_all(path);
    const std::lock_guard lock(mutex_);
    const auto& kept = listings_.emplace(path, std::move(made)).first->second;
    return kept ? &*kept : nullptr;
  }

  std::optional<Listing> list_all(const std::string& path) {
    const Place place = parse_place(path);
    const std::string prefix = place.key.empty() ? "" : place.key + "/";
    Listing all;
    bool any = place.key.empty();
    std::string token;
    do {
      Response page = list_page(path, place.bucket, prefix, token);
      // Who may read an object may not always list.
      if (page.status == 403 && !place.key.empty()) return std::nullopt;
      if (page.status == 404) return std::nullopt;
      const Request asked = ask(path, place.bucket, "/", "");
      check_status(asked, page);
      any |= add_page(page.body, prefix, all);
      token = element(page.body, "IsTruncated") == "true"
                  ? element(page.body, "NextContinuationToken")
                  : "";
      if (all.entries.size() > kMostNames)
        throw input_error({path, {}}, "more than {} names lie in it",
                          kMostNames);
    } while (!token.empty());
    if (!any) return std::nullopt;
    return all;
  }

  // Names of the query in order: the signature is made of them so.
  Response list_page(const std::string& path, const std::string& bucket,
                     const std::string& prefix, const std::string& token) {
    std::string query;
    if (!token.empty()) query = "continuation-token=" + encode(token) + "&";
    query +=
        "delimiter=%2F&encoding-type=url&list-type=2&prefix=" + encode(prefix);
    Response page = fetch(ask(path, bucket, "/", query));
    if (moved(bucket, page)) page = fetch(ask(path, bucket, "/", query));
    return page;
  }

  static bool add_page(std::string_view xml, const std::string& prefix,
                       Listing& all) {
    const bool encoded = element(xml, "EncodingType") == "url";
    const auto name_of = [&](std::string_view part, const char* tag) {
      std::string key = element(part, tag);
      if (encoded) {
        for (char& c : key)
          if (c == '+') c = ' ';
        key = decode(key);
      }
      if (!key.starts_with(prefix)) return std::string();
      key.erase(0, prefix.size());
      while (key.ends_with('/')) key.pop_back();
      return key;
    };
    bool any = false;
    for (const std::string_view part : elements(xml, "Contents")) {
      any = true;
      const std::string name = name_of(part, "Key");
      // "runs/" itself may be an object, which stands for the directory.
      if (name.empty() || name.find('/') != name.npos) continue;
      if (element(part, "Key").ends_with('/')) continue;
      Facts facts;
      facts.size = size_number(element(part, "Size"));
      facts.version.etag = element(part, "ETag");
      facts.tag = facts.version.etag;
      all.entries[name] = std::move(facts);
    }
    for (const std::string_view part : elements(xml, "CommonPrefixes")) {
      any = true;
      const std::string name = name_of(part, "Prefix");
      if (name.empty()) continue;
      Facts facts;
      facts.directory = true;
      all.entries.try_emplace(name, std::move(facts));
    }
    return any;
  }

  std::optional<Facts> head(const std::string& path) {
    Request asked = request(path);
    asked.head = true;
    Response response = fetch(asked);
    if (moved(parse_place(path).bucket, response)) {
      asked = request(path);
      asked.head = true;
      response = fetch(asked);
    }
    if (response.status == 404) return std::nullopt;
    check_status(asked, response);
    Facts facts;
    facts.size = size_number(response.header("content-length"));
    facts.version.etag = response.header("etag");
    facts.tag = facts.version.etag;
    return facts;
  }

  Access (*const find_)();
  std::mutex access_mutex_;
  std::optional<Access> access_;
  std::map<std::string, std::string> regions_;  // by bucket
  std::mutex mutex_;
  std::map<std::string, std::optional<Listing>> listings_;
};

}  // namespace

std::unique_ptr<Store> make_s3_store() {
  return std::make_unique<ObjectStore>(&s3_access);
}

std::unique_ptr<Store> make_gcs_store() {
  return std::make_unique<ObjectStore>(&gcs_access);
}

}  // namespace ckpt::net
