// SPDX-License-Identifier: Apache-2.0
#include "app/print/html_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "app/options/written.h"
#include "app/print/console.h"
#include "app/print/table.h"
#include "ckpt/error.h"
#include "lib/embedded.h"
#include "lib/hash/sha256.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kStart = "<!doctype html>";

std::string_view asset(std::string_view name) {
  return page::embedded_text(name);
}

// "sha256-…", a script's name in a policy.
std::string hash_of(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Sha256 sum;
  sum.update(std::as_bytes(std::span(text)));
  const std::string hex = sum.hex();
  std::string out = "sha256-";
  // Three bytes are six hexadecimal digits and four of base64; of 32 bytes, two
  // are left over.
  for (size_t at = 0; at < hex.size(); at += 6) {
    const std::string part = hex.substr(at, 6);
    auto bits = static_cast<uint32_t>(std::stoul(part, nullptr, 16));
    bits <<= 4 * (6 - part.size());
    for (size_t i = 0; i < 4; ++i)
      out += i <= part.size() / 2 ? kDigits[(bits >> (18 - 6 * i)) & 63] : '=';
  }
  return out;
}

std::string script_of(const PageParts& parts) {
  std::string script = "\n";
  for (const std::string_view name : parts.scripts) script += asset(name);
  return script;
}

std::string head_html(const PageParts& parts, const std::string& policy) {
  std::string out(kStart);
  out += fmt::format(
      "\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n{}{}\">\n",
      kPageMark, CKPT_VERSION);
  if (!policy.empty())
    out += fmt::format(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n",
        policy);
  out +=
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<style>";
  out += asset("style");
  out += fmt::format("</style><title>{}</title></head>\n",
                     escaped(cut_middle(parts.title, kLongestName)));
  return out;
}

// The data contain no "<", so no name can end their element.
std::string body_html(PageParts& parts) {
  std::string out =
      fmt::format("<body><main><h1>{}</h1><p class=\"path\">{}</p>\n",
                  breakable(escaped(cut_middle(parts.title, kLongestName))),
                  breakable(escaped(parts.subtitle)));
  out += parts.body;
  parts.body.clear();
  out += fmt::format(
      "<noscript><p class=\"warn\">The drawings and the table need JavaScript."
      "</p></noscript>\n<footer>made by ckpt {}</footer></main>\n"
      "<script type=\"application/json\" id=\"data\">",
      CKPT_VERSION);
  for (const char c : std::move(parts.data).text()) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out += "</script>\n";
}

constexpr std::string_view kEnd = "</script></body></html>\n";

}  // namespace

std::string escaped(std::string_view raw) {
  std::string out;
  for (const char c : text::printable(raw)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string breakable(std::string_view html) {
  std::string out;
  while (!html.empty()) {
    const std::string_view word = html.substr(0, html.find(' '));
    const bool parts = word.find_first_of("/_") != word.npos;
    for (const char c : word) {
      out += c;
      if (parts && std::string_view("/_.-").find(c) != html.npos)
        out += "<wbr>";
    }
    html.remove_prefix(word.size());
    if (html.empty()) break;
    out += ' ';
    html.remove_prefix(1);
  }
  return out;
}

std::string page_name(std::string_view name) {
  if (name.size() <= kLongestName) return text::printable(name);
  return cut_middle(text::printable(name), kLongestName);
}

std::string page_text(PageParts parts) {
  const std::string script = script_of(parts);
  std::string out = head_html(
      parts, fmt::format("default-src 'none'; style-src '{}'; script-src '{}'; "
                         "base-uri 'none'; form-action 'none'",
                         hash_of(asset("style")), hash_of(script)));
  out += body_html(parts);
  out += "<script>";
  out += script;
  return out += kEnd;
}

std::string page_policy(const std::string& nonce) {
  return fmt::format(
      "default-src 'none'; style-src '{}'; script-src 'nonce-{}'; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'",
      hash_of(asset("style")), nonce);
}

std::string page_text(PageParts parts, std::string_view live,
                      const std::string& nonce) {
  const std::string script = script_of(parts);
  std::string out = head_html(parts, "");  // here the policy is a header
  out += body_html(parts);
  out +=
      fmt::format("<script nonce=\"{}\">\n{}</script>\n", nonce, asset(live));
  out += fmt::format("<script nonce=\"{}\">", nonce);
  out += script;
  return out += kEnd;
}

std::string cards_html(
    const std::vector<std::pair<std::string, std::string>>& cards) {
  std::string out = "<dl class=\"cards\">";
  for (const auto& [label, value] : cards)
    out += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escaped(label),
                       breakable(escaped(value)));
  return out += "</dl>\n";
}

std::string map_html(std::string_view heading) {
  return fmt::format(
      "<section><div class=\"head\"><h2>{}</h2><span>areas are to scale"
      "<span class=\"keys\">; <kbd>arrows</kbd> walk, <kbd>Enter</kbd> opens, "
      "<kbd>Esc</kbd> goes up</span></span><div class=\"tabs\" "
      "id=\"colour\"></div></div>\n"
      "<div id=\"path\"></div><div id=\"map\" role=\"group\" "
      "aria-label=\"map of sizes\"></div>\n<div class=\"legend\" "
      "id=\"legend\"></div><div class=\"soft\" id=\"smaller\"></div>"
      "</section>\n",
      heading);
}

std::string table_html(
    std::string_view heading,
    const std::vector<std::pair<std::string_view, std::string_view>>& columns) {
  std::string out = fmt::format(
      "<section class=\"long\"><div class=\"head\"><h2>{}</h2>"
      "<div class=\"tabs\" id=\"grouped\"></div></div>\n<div class=\"tools\">"
      "<input id=\"q\" type=\"search\" placeholder=\"filter: any words of a "
      "row\" aria-label=\"filter\"></div>"
      "<p class=\"soft\" id=\"more\" role=\"status\"></p>"
      "<div class=\"scroll\"><table id=\"t\"><thead><tr>",
      heading);
  for (const auto& [column, style] : columns)
    out +=
        fmt::format("<th class=\"{}\"><button>{}</button></th>", style, column);
  return out += "</tr></thead><tbody></tbody></table></div></section>\n";
}

void check_page_path(const std::string& path, bool json,
                     std::string_view option) {
  if (path == "-" && json)
    throw usage_error({}, "{} - and --json both write to standard output",
                      option)
        .with_hint(fmt::format("give {} the name of a file", option));
  const bool picture = option == "--plot";
  const size_t dot = path.rfind('.');
  if (dot == path.npos || dot == 0) return;
  std::string ending = path.substr(dot);
  std::ranges::transform(ending, ending.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 'a' - 'A') : c;
  });
  // What another program would take the file for.
  constexpr std::string_view kOthers[] = {
      ".bmp", ".eps", ".gif", ".htm", ".html", ".jpeg", ".jpg", ".json",
      ".pdf", ".png", ".ps",  ".svg", ".tif",  ".tiff", ".webp"};
  const bool own = picture ? ending == ".svg" : ending.starts_with(".htm");
  if (own || std::ranges::find(kOthers, ending) == std::end(kOthers)) return;
  throw usage_error({path, {}}, "{} writes {}, not {}", option,
                    picture ? "SVG" : "HTML", ending.substr(1))
      .with_hint(fmt::format("{} {}{}", option, path.substr(0, dot),
                             picture ? ".svg" : ".html"));
}

void save_html(const std::string& path, const std::string& page,
               const OutputOptions& output, std::string_view option) {
  if (path == "-") return print(page);
  write_output(path, option, output, page);
  say_note(fmt::format("wrote {} ({}), to open in a browser", path,
                       text::iec_size(page.size())));
}

}  // namespace ckpt::app
