#include "tools/hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <thread>

#include "models/base/error.h"
#include "models/json_reader.h"
#include "tools/hub/http.h"

namespace plimsoll::tools {

namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kMostConfigBytes = 64 << 20, kMostIndexBytes = 256 << 20;
// Most headers are shorter; huggingface_hub (constants.py, SAFETENSORS_*) asks for 100,000 at
// first.
constexpr std::uint64_t kFirstBytes = 100'000;
constexpr std::size_t kMostFiles = 64;  // whose headers are fetched
constexpr int kAttempts = 3;
constexpr std::int64_t kLongestWait = 30;  // seconds

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// constants.py, ENV_VARS_TRUE_VALUES.
bool is_true(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// _auth.py, get_token: of the variable, else of the file that `hf auth login` leaves.
std::string token() {
  std::string token = variable("HF_TOKEN");
  if (token.empty()) token = variable("HUGGING_FACE_HUB_TOKEN");
  if (token.empty() && !is_true(variable("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) {
    const std::string path = variable("HF_TOKEN_PATH");
    const fs::path file = path.empty() ? hub_home() / "token" : fs::path(path);
    std::error_code error;
    if (fs::is_regular_file(file, error)) token = models::read_text_file(file.string(), 4096);
  }
  const auto blank = [](unsigned char c) { return c <= ' '; };
  while (!token.empty() && blank(token.back())) token.pop_back();
  token.erase(0, std::ranges::find_if_not(token, blank) - token.begin());
  check(std::ranges::all_of(token, [](unsigned char c) { return c > ' ' && c < 0x7F; }),
        ErrorKind::bad_input, "HF_TOKEN holds blanks or characters that no token has");
  return token;
}

class Fetcher {
 public:
  Fetcher(const Hub& hub, const std::string& id) : hub_(hub), id_(id) {}

  std::string address(const std::string& file) const {
    return fmt::format("{}/{}/resolve/main/{}", hub_.endpoint, id_, file);
  }

  // Nothing: not there. Error where the hub refuses, or has no answer.
  std::optional<HttpResponse> get(const std::string& file, std::uint64_t most,
                                  std::optional<std::uint64_t> from = {}) const {
    const std::string url = address(file);
    for (int attempt = 1;; ++attempt) {
      const HttpResponse answer = http_get({.url = url,
                                            .token = hub_.token,
                                            .most = most,
                                            .from = from,
                                            .timeout_seconds = hub_.timeout_seconds});
      if (answer.status == 200 || answer.status == 206) return answer;
      if (answer.status == 404 || answer.status == 410) return std::nullopt;
      if (answer.status == 401 || answer.status == 403) refuse(answer);
      const bool busy = answer.status == 429 || answer.status >= 500;
      const std::int64_t wait = answer.retry_after.value_or(attempt);
      if (!busy || attempt == kAttempts || wait > kLongestWait) give_up(url, answer);
      std::this_thread::sleep_for(std::chrono::seconds(std::max<std::int64_t>(wait, 0)));
    }
  }

  std::string whole(const std::string& file, const HttpResponse& answer) const {
    check(!answer.is_cut, ErrorKind::bad_input,
          [&] { return fmt::format("{}: larger than is read", address(file)); });
    return answer.body;
  }

  std::optional<models::Checkpoint> header(const std::string& file) const {
    const std::string url = address(file);
    std::optional<HttpResponse> answer = get(file, kFirstBytes, 0);
    if (!answer) return std::nullopt;
    const std::uint64_t size = answer->size;
    check(size > 0, ErrorKind::bad_input, [&] { return url + ": the hub does not say its size"; });
    std::string text = std::move(answer->body);
    const std::uint64_t length = models::safetensors_header_bytes(url, text, size);
    const std::uint64_t end = models::kSafetensorsPrefix + length;
    if (text.size() < end) {
      answer = get(file, end - text.size(), text.size());
      // Without ranges the file begins anew.
      if (answer && answer->status == 200) answer = get(file, end), text.clear();
      if (answer) text += answer->body;
    }
    check(text.size() >= end, ErrorKind::bad_input, [&] {
      return fmt::format("{}: truncated: {} of {} bytes of its header", url, text.size(), end);
    });
    return models::parse_safetensors_header(
        url, std::string_view(text).substr(models::kSafetensorsPrefix, length), size);
  }

 private:
  [[noreturn]] void refuse(const HttpResponse& answer) const {
    const char* why = !hub_.token.empty() ? "the token of HF_TOKEN is not allowed to read it"
                                          : "it is gated, private or not there; HF_TOKEN says who "
                                            "asks";
    fail(ErrorKind::bad_input,
         fmt::format("model '{}': {} answers {}: {}", id_, hub_.endpoint, answer.status, why));
  }
  [[noreturn]] void give_up(const std::string& url, const HttpResponse& answer) const {
    const std::string later =
        answer.retry_after ? fmt::format("; again in {} s", *answer.retry_after) : "";
    fail(ErrorKind::internal,
         fmt::format("{}: the hub answers {}{}{}", url, answer.status,
                     answer.status == 429 ? " (too many requests)" : "", later));
  }

  const Hub& hub_;
  const std::string& id_;
};

// What models/safetensors_reader.h, find_checkpoint does with a folder.
std::optional<models::Checkpoint> checkpoint(const Fetcher& fetcher) {
  const std::string index_file = "model.safetensors.index.json";
  const auto answer = fetcher.get(index_file, kMostIndexBytes);
  if (!answer) return fetcher.header("model.safetensors");
  const std::string source = fetcher.address(index_file);
  const models::SafetensorsIndex index =
      models::parse_safetensors_index(source, fetcher.whole(index_file, *answer));
  if (index.files.size() > kMostFiles) return models::names_of_index(source, index);
  models::Checkpoint all{
      .source = source, .tensors = {}, .has_shapes = true, .total_bytes = index.total_bytes};
  for (const std::string& file : index.files) {
    std::optional<models::Checkpoint> part = fetcher.header(file);
    check(part.has_value(), ErrorKind::bad_input, [&] {
      return fmt::format("{}: not there, although the index names it", fetcher.address(file));
    });
    std::ranges::move(part->tensors, std::back_inserter(all.tensors));
  }
  std::ranges::sort(all.tensors, {}, &models::StoredTensor::name);
  return all;
}
}  // namespace

fs::path hub_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface";
  return fs::path(variable("HOME")) / ".cache" / "huggingface";
}

Hub hub_from_environment() {
  Hub hub;
  hub.offline = is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
  if (hub.offline) return hub;
  hub.endpoint = variable("HF_ENDPOINT");
  if (hub.endpoint.empty()) hub.endpoint = "https://huggingface.co";
  while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
  const bool address = hub.endpoint.starts_with("https://") || hub.endpoint.starts_with("http://");
  const bool printable = std::ranges::all_of(
      hub.endpoint, [](unsigned char c) { return c > ' ' && c < 0x7F && c != '?' && c != '#'; });
  check(address && printable, ErrorKind::bad_input, [&] {
    std::string shown = hub.endpoint.substr(0, 100);
    std::ranges::replace_if(
        shown, [](unsigned char c) { return c < ' ' || c == 0x7F; }, '?');
    return fmt::format("HF_ENDPOINT {}: an address is needed, as https://huggingface.co", shown);
  });
  hub.token = token();
  if (const std::string text = variable("HF_HUB_DOWNLOAD_TIMEOUT"); !text.empty()) {
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), hub.timeout_seconds);
    check(error == std::errc() && end == text.data() + text.size() && hub.timeout_seconds > 0 &&
              hub.timeout_seconds <= 3600,
          ErrorKind::bad_input, [&] {
            return fmt::format("HF_HUB_DOWNLOAD_TIMEOUT {}: seconds are needed",
                               text.substr(0, 60));
          });
  }
  return hub;
}

HubModel fetch_model(const Hub& hub, const std::string& id) {
  const Fetcher fetcher(hub, id);
  const auto config = fetcher.get("config.json", kMostConfigBytes);
  check(config.has_value(), ErrorKind::bad_input, [&] {
    return fmt::format("model '{}': {} has no such model, or it has no config.json", id,
                       hub.endpoint);
  });
  return {.config = fetcher.whole("config.json", *config),
          .source = fetcher.address("config.json"),
          .checkpoint = checkpoint(fetcher)};
}

}  // namespace plimsoll::tools
