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

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "lib/net/access.h"
#include "lib/net/aws.h"
#include "lib/net/listed.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/text/format.h"

namespace ckpt::net {
namespace {

// SHA-256 of nothing: the body of requests that only read.
constexpr std::string_view kEmptySum =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

Access s3_access() {
  const AwsSettings aws = find_aws();
  return {aws.endpoint, aws.path_style, aws.region, aws.credentials,
          "",           aws.lasting};
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
  check_endpoint("GS_ENDPOINT_URL", access.endpoint);
  for (const char* name :
       {"GOOGLE_OAUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"})
    if (access.bearer.empty()) access.bearer = environment(name);
  const std::string key = environment("GS_ACCESS_KEY_ID");
  if (access.bearer.empty() && !key.empty())
    access.credentials =
        Credentials{key, environment("GS_SECRET_ACCESS_KEY"), ""};
  access.lasting = true;
  if (access.bearer.empty() && key.empty()) {
    access.bearer = google_machine_token();
    access.lasting = access.bearer.empty();
  }
  return access;
}

class ObjectStore final : public ListedStore {
 public:
  explicit ObjectStore(Access (*find)()) : access_(find) {}

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
  bool refused(const std::string&, const Request& asked,
               const Response& response) override {
    return may_have_expired(response) &&
           !is_elsewhere(parse_place(asked.path).bucket, response) &&
           access_.renew(asked, has_expired(asked, response));
  }

  bool renew(Request& asked, const Response& response) override {
    if (!refused(asked.path, asked, response)) return false;
    // What was sent unsigned has no sum.
    std::string sum = sum_of(asked);
    const std::shared_ptr<const Access> held = access_.get();
    if (sum.empty() && held->credentials && !asked.method.empty()) return false;
    if (sum.empty()) sum = kEmptySum;
    authorize(asked, *held, region_of(parse_place(asked.path).bucket), sum);
    return true;
  }

 private:
  Request ask(const std::string& path, const std::string& bucket,
              const std::string& key, const std::string& query,
              std::string_view sum = kEmptySum) {
    const std::shared_ptr<const Access> held = access_.get();
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
    made.as_stored = true;
    if (!how.bearer.empty()) check_scheme(made.url, path);
    authorize(made, how, region, sum);
    return made;
  }

  std::string region_of(const std::string& bucket) {
    const std::string usual = access_.get()->region;
    const std::lock_guard lock(regions_mutex_);
    const auto found = regions_.find(bucket);
    return found == regions_.end() ? usual : found->second;
  }

  // The service reports where a bucket is, if it is elsewhere.
  bool is_elsewhere(const std::string& bucket, const Response& response) {
    const std::string told = response.header("x-amz-bucket-region");
    return response.status >= 300 && !told.empty() && told != region_of(bucket);
  }
  bool moved(const std::string& bucket, const Response& response) {
    if (!is_elsewhere(bucket, response)) return false;
    const std::lock_guard lock(regions_mutex_);
    regions_[bucket] = response.header("x-amz-bucket-region");
    return true;
  }

  std::optional<Listing> list_all(const std::string& path) override {
    const Place place = parse_place(path);
    Listing all;
    bool any = place.key.empty();
    const bool listed = list_pages(path, "/", [&](const Page& page) {
      for (const std::string_view part : elements(page.xml, "Contents")) {
        any = true;
        std::string name = page.name(key_of(path, part));
        const uint64_t size = size_number(fmt::format("{}/{}", path, name),
                                          element(part, "Size"));
        add_object(path, std::move(name), size, element(part, "ETag"), all);
      }
      for (const std::string_view part : elements(page.xml, "CommonPrefixes"))
        for (const std::string_view one : elements(part, "Prefix")) {
          any = true;
          add_folder(path, page.name(one), all);
        }
      check_names(path, all.entries.size());
      return true;
    });
    if (!listed || !any) return std::nullopt;
    return all;
  }

  Folders list_below(const std::string& path) override {
    return list_flat(path, false).value_or(Folders());
  }

  std::optional<Folders> list_small(const std::string& path) override {
    return list_flat(path, true);
  }

  // Of everything below, however deep; empty if it can't be listed, nullopt if
  // it has more than the one page that is wanted.
  std::optional<Folders> list_flat(const std::string& path, bool one_page) {
    Folders all;
    size_t count = 0;
    bool cut = false;
    const auto take = [&](const Page& page) {
      cut = one_page && page.goes_on();
      if (cut) return false;
      for (const std::string_view part : elements(page.xml, "Contents")) {
        const std::string name = page.name(key_of(path, part));
        const uint64_t size = size_number(fmt::format("{}/{}", path, name),
                                          element(part, "Size"));
        add_below(path, name, size, element(part, "ETag"), all);
        ++count;
      }
      check_names(path, count);
      return true;
    };
    list_pages(path, "", take);
    if (cut) return std::nullopt;
    return all;
  }

  // A page of a listing.
  struct Page {
    std::string_view xml;
    const std::string& prefix;
    bool encoded;

    bool goes_on() const { return element(xml, "IsTruncated") == "true"; }
    // The part after the prefix.
    std::string name(std::string_view text) const {
      std::string key = unescape(text);
      if (encoded) {
        for (char& c : key)
          if (c == '+') c = ' ';
        key = decode(key);
      }
      if (!key.starts_with(prefix)) return std::string();
      return key.substr(prefix.size());
    }
  };

  static std::string_view key_of(const std::string& path,
                                 std::string_view part) {
    const auto keys = elements(part, "Key");
    if (keys.empty())
      throw Error(ExitCode::kIo, {path, {}},
                  "the server's listing has an object without a key",
                  "is there a proxy that answers in its place?");
    return keys.front();
  }

  // Nothing can be there then, and the name to correct is another.
  static void refuse_bucket(const std::string& path, const Response& response) {
    if (element(response.body, "Code") != "NoSuchBucket") return;
    const std::string bucket = parse_place(path).bucket;
    const std::string scheme = path.substr(0, path.find("://") + 3);
    throw missing_error({scheme + bucket, {}}, "there is no bucket \"{}\" ({})",
                        text::printable(bucket), describe(response))
        .with_hint(path.starts_with("gs://")
                       ? "look at its name, and at GS_ENDPOINT_URL"
                       : "look at its name, at AWS_ENDPOINT_URL and at "
                         "AWS_PROFILE");
  }

  // False if it can't be listed (permission to read an object doesn't always
  // include listing), or if `take` wants no more.
  bool list_pages(const std::string& path, const std::string& delimiter,
                  const std::function<bool(const Page&)>& take) {
    const Place place = parse_place(path);
    const std::string prefix = place.prefix();
    std::string token;
    do {
      const Response page =
          list_page(path, place.bucket, prefix, delimiter, token);
      // The rest of a list that has begun is no matter of rights.
      if (token.empty() && page.status == 403 && !place.key.empty())
        return false;
      if (token.empty() && page.status == 404) {
        refuse_bucket(path, page);
        return false;
      }
      const Request asked = ask(path, place.bucket, "/", "");
      check_status(asked, page);
      check_answer(asked, page, "ListBucketResult");
      const Page taken{page.body, prefix,
                       element(page.body, "EncodingType") == "url"};
      if (!take(taken)) return false;
      if (!taken.goes_on()) return true;
      const std::string before =
          std::exchange(token, element(page.body, "NextContinuationToken"));
      check_marker(path, before, token);
    } while (true);
  }

  // The query's names are in order, as the signature requires.
  Response list_page(const std::string& path, const std::string& bucket,
                     const std::string& prefix, const std::string& delimiter,
                     const std::string& token) {
    std::string query;
    if (!token.empty()) query = "continuation-token=" + encode(token) + "&";
    if (!delimiter.empty()) query += "delimiter=" + encode(delimiter) + "&";
    query += "encoding-type=url&list-type=2&prefix=" + encode(prefix);
    Response page = fetch_renewed(*this, ask(path, bucket, "/", query));
    if (moved(bucket, page))
      page = fetch_renewed(*this, ask(path, bucket, "/", query));
    return page;
  }

  std::optional<Facts> head(const std::string& path, bool beside) override {
    Request asked = request(path);
    asked.head = true;
    Response response = fetch_renewed(*this, asked);
    if (moved(parse_place(path).bucket, response)) {
      asked = request(path);
      asked.head = true;
      response = fetch_renewed(*this, asked);
    }
    return facts_of_head(asked, response, beside);
  }

  AccessKeeper access_;
  std::mutex regions_mutex_;
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
