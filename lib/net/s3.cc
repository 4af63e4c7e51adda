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

  static Page page_of(const Response& page, const std::string& prefix) {
    return {page.body, prefix, element(page.body, "EncodingType") == "url"};
  }

  static std::string_view key_of(const std::string& path,
                                 std::string_view part) {
    const auto keys = elements(part, "Key");
    if (keys.empty())
      throw Error(ExitCode::kIo, {path, {}},
                  "the server's listing has an object without a key",
                  "is there a proxy that answers in its place?");
    return keys.front();
  }

  std::optional<Listing> list_all(const std::string& path) override {
    const Place place = parse_place(path);
    Listing all;
    bool any = place.key.empty();
    const bool listed = list_pages(path, "/", [&](const Page& page) {
      any |= add_page(
          path, page, [](const std::string&) {}, all);
      return true;
    });
    if (!listed || !any) return std::nullopt;
    return all;
  }

  // Adds a page that is cut at slashes, and shows its keys; false if it has
  // none.
  template <class Show>
  static bool add_page(const std::string& path, const Page& page,
                       const Show& show, Listing& all) {
    bool any = false;
    for (const std::string_view part : elements(page.xml, "Contents")) {
      any = true;
      std::string name = page.name(key_of(path, part));
      const uint64_t size =
          size_number(fmt::format("{}/{}", path, name), element(part, "Size"));
      show(name);
      add_object(path, std::move(name), size, element(part, "ETag"), all);
    }
    for (const std::string_view part : elements(page.xml, "CommonPrefixes"))
      for (const std::string_view one : elements(part, "Prefix")) {
        any = true;
        std::string name = page.name(one);
        show(name);
        add_folder(path, std::move(name), all);
      }
    check_names(path, all.entries.size());
    return any;
  }

  // The same of a page that is not cut.
  template <class Show>
  static void add_flat(const std::string& path, const Page& page,
                       const Show& show, Folders& all) {
    for (const std::string_view part : elements(page.xml, "Contents")) {
      const std::string name = page.name(key_of(path, part));
      const uint64_t size =
          size_number(fmt::format("{}/{}", path, name), element(part, "Size"));
      show(name);
      add_below(path, name, size, element(part, "ETag"), all);
    }
  }

  void begin_listings(const std::string& folder,
                      const std::string& path) override {
    begin_page(folder, "/");
    begin_page(path, "");
  }

  void begin_page(const std::string& path, const std::string& delimiter) {
    const Place place = parse_place(path);
    const std::string query = query_of(place.prefix(), delimiter, "", "");
    Ticket ticket = start(ask(path, place.bucket, "/", query));
    const std::lock_guard lock(begun_mutex_);
    begun_.insert_or_assign(place.bucket + "?" + query, std::move(ticket));
  }

  std::optional<std::optional<Listing>> list_begun(
      const std::string& path) override {
    const Place place = parse_place(path);
    const std::string prefix = place.prefix();
    const Ticket begun =
        take_begun(place.bucket, query_of(prefix, "/", "", ""));
    if (!begun) return std::nullopt;
    const Response& page = wait(begun);
    if (page.status != 200) return std::nullopt;
    check_answer(ask(path, place.bucket, "/", ""), page, "ListBucketResult");
    const Page taken = page_of(page, prefix);
    if (taken.goes_on()) return std::nullopt;
    Listing all;
    const bool any = add_page(
        path, taken, [](const std::string&) {}, all);
    if (!any && !place.key.empty()) return std::optional<Listing>();
    return all;
  }

  void forget() override {
    ListedStore::forget();
    const std::lock_guard lock(begun_mutex_);
    begun_.clear();
  }

  void forget_at(const std::string& path) override {
    ListedStore::forget_at(path);
    const std::lock_guard lock(begun_mutex_);
    begun_.clear();
  }

  // The page of a query, if it was begun.
  Ticket take_begun(const std::string& bucket, const std::string& query) {
    const std::lock_guard lock(begun_mutex_);
    const auto found = begun_.find(bucket + "?" + query);
    if (found == begun_.end()) return nullptr;
    Ticket ticket = std::move(found->second);
    begun_.erase(found);
    return ticket;
  }

  // A page says where the next one begins, but so do the keys that were there:
  // all pages are asked for at once, and overlap in case there are more keys by
  // now. What none of them has is asked for by its name.
  Folders list_again(const std::string& path,
                     const std::vector<std::string>& keys,
                     bool below) override {
    constexpr size_t kPerPage = 1000, kStep = 950;
    const auto in_turn = [&] {
      return ListedStore::list_again(path, keys, below);
    };
    if (keys.size() <= kPerPage) return in_turn();
    const std::string delimiter = below ? "" : "/";
    const Place place = parse_place(path);
    const std::string prefix = place.prefix();
    std::vector<std::pair<std::string, Ticket>> pages;
    for (size_t i = 0; i < keys.size(); i += kStep) {
      const std::string after = i == 0 ? "" : keys[i - 1];
      const std::string query =
          query_of(prefix, delimiter, "", i == 0 ? "" : prefix + after);
      pages.emplace_back(after, start(ask(path, place.bucket, "/", query)));
    }
    Folders all;
    const Request asked = ask(path, place.bucket, "/", "");
    for (const auto& one : pages) {
      const std::string& after = one.first;
      const Response& page = wait(one.second);
      if (may_have_expired(page)) return in_turn();
      check_status(asked, page);
      check_answer(asked, page, "ListBucketResult");
      // A server that doesn't know start-after begins at the first key; another
      // one may have shorter pages.
      bool before = false;
      size_t count = 0;
      const Page taken = page_of(page, prefix);
      const auto look = [&](const std::string& key) {
        before |= !after.empty() && key < after;
        ++count;
      };
      if (below)
        add_flat(path, taken, look, all);
      else
        add_page(path, taken, look, all[path]);
      if (before || (taken.goes_on() && count < kStep)) return in_turn();
    }
    return all;
  }

  Folders list_below(const std::string& path) override {
    return list_flat(path, false, SIZE_MAX).value_or(Folders());
  }

  std::optional<Folders> list_small(const std::string& path) override {
    constexpr size_t kMostFlat = 16;  // in vain if a directory is last
    return list_flat(path, true, kMostFlat);
  }

  std::optional<Folders> list_within(const std::string& path,
                                     size_t pages) override {
    return list_flat(path, false, pages);
  }

  // Of everything below, however deep; empty if it can't be listed; nullopt if
  // that takes more than `most` pages. If only what is `small` is wanted, also
  // if it has more than a page and directories: without them, the listing of
  // the top is the same pages.
  std::optional<Folders> list_flat(const std::string& path, bool small,
                                   size_t most) {
    Folders all;
    size_t count = 0, pages = 0;
    bool cut = false;
    const auto take = [&](const Page& page) {
      cut = page.goes_on() &&
            (++pages > most || (small && has_folders(path, page)));
      if (cut) return false;
      add_flat(
          path, page, [&](const std::string&) { ++count; }, all);
      check_names(path, count);
      return true;
    };
    list_pages(path, "", take);
    if (cut) return std::nullopt;
    return all;
  }

  static bool has_folders(const std::string& path, const Page& page) {
    return std::ranges::any_of(
        elements(page.xml, "Contents"), [&](std::string_view part) {
          return page.name(key_of(path, part)).find('/') != std::string::npos;
        });
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
    size_t pages = 0;
    do {
      const Response page =
          list_page(path, place.bucket, prefix, delimiter, token);
      // Only the first page can show that the right to list is lacking.
      if (token.empty() && page.status == 403 && !place.key.empty())
        return false;
      if (token.empty() && page.status == 404) {
        refuse_bucket(path, page);
        return false;
      }
      const Request asked = ask(path, place.bucket, "/", "");
      check_status(asked, page);
      check_answer(asked, page, "ListBucketResult");
      const Page taken = page_of(page, prefix);
      if (!take(taken)) return false;
      if (!taken.goes_on()) return true;
      const std::string before =
          std::exchange(token, element(page.body, "NextContinuationToken"));
      check_marker(path, before, token, ++pages);
    } while (true);
  }

  // The query's names are in order, as the signature requires.
  static std::string query_of(const std::string& prefix,
                              const std::string& delimiter,
                              const std::string& token,
                              const std::string& after) {
    std::string query;
    if (!token.empty()) query = "continuation-token=" + encode(token) + "&";
    if (!delimiter.empty()) query += "delimiter=" + encode(delimiter) + "&";
    query += "encoding-type=url&list-type=2&prefix=" + encode(prefix);
    if (!after.empty()) query += "&start-after=" + encode(after);
    return query;
  }

  Response list_page(const std::string& path, const std::string& bucket,
                     const std::string& prefix, const std::string& delimiter,
                     const std::string& token) {
    const std::string query = query_of(prefix, delimiter, token, "");
    if (const Ticket begun = take_begun(bucket, query)) {
      const Response& page = wait(begun);
      if (page.status == 200) return page;
    }
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
  std::mutex begun_mutex_;
  std::map<std::string, Ticket> begun_;  // listings, by bucket and query
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
