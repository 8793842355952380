#include "tools/hub/http.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "models/base/error.h"

namespace plimsoll::tools {

namespace {
// Of curl/curl.h, whose values never change (libcurl's ABI, curl.se/libcurl/abi.html).
using Curl = void;
struct List;
enum Option : int {
  low_speed_limit = 19,
  low_speed_time = 20,
  follow_location = 52,
  max_redirects = 68,
  connect_timeout_ms = 156,
  no_signal = 99,
  protocols = 181,
  redirect_protocols = 182,
  write_data = 10001,
  url = 10002,
  range = 10007,
  user_agent = 10018,
  http_header = 10023,
  header_data = 10029,
  write_function = 20011,
  header_function = 20079,
};
enum Info : int { effective_url = 0x100001, response_code = 0x200002 };
constexpr long kHttpAndHttps = 1 | 2;
constexpr int kWriteError = 23;  // CURLE_WRITE_ERROR: our own function stopped it

struct Api {
  Curl* (*init)();
  void (*cleanup)(Curl*);
  int (*set)(Curl*, int option, ...);
  int (*perform)(Curl*);
  int (*info)(Curl*, int what, ...);
  const char* (*message)(int code);
  List* (*append)(List*, const char*);
  void (*free_list)(List*);
};

const Api& api() {
  static const Api loaded = [] {
    void* library = nullptr;
    for (const char* file : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"})
      if (library == nullptr) library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
    check(library != nullptr, ErrorKind::unsupported,
          "a model of the hub needs libcurl.so.4, which cannot be loaded (Debian, Ubuntu: apt-get "
          "install libcurl4)");
    const auto find = [&]<class Function>(const char* name, Function*& function) {
      function = reinterpret_cast<Function*>(::dlsym(library, name));
      check(function != nullptr, ErrorKind::unsupported,
            [&] { return fmt::format("the libcurl that is installed has no function {}", name); });
    };
    Api out{};
    find("curl_easy_init", out.init);
    find("curl_easy_cleanup", out.cleanup);
    find("curl_easy_setopt", out.set);
    find("curl_easy_perform", out.perform);
    find("curl_easy_getinfo", out.info);
    find("curl_easy_strerror", out.message);
    find("curl_slist_append", out.append);
    find("curl_slist_free_all", out.free_list);
    return out;
  }();
  return loaded;
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Transfer {
  const HttpRequest& request;
  HttpResponse response;
};

std::size_t take_body(const char* data, std::size_t, std::size_t count, void* target) {
  auto& [request, response] = *static_cast<Transfer*>(target);
  const std::size_t room = request.most - response.body.size();
  response.body.append(data, std::min(room, count));
  response.is_cut = count > room;
  return response.is_cut ? 0 : count;  // fewer than came: the transfer ends
}

// A line at a time; those of a redirect come before those of the answer.
std::size_t take_header(const char* data, std::size_t, std::size_t count, void* target) {
  HttpResponse& response = static_cast<Transfer*>(target)->response;
  std::string_view line(data, count);
  if (line.starts_with("HTTP/")) {
    response.size = 0;
    response.retry_after.reset();
  }
  const std::size_t colon = line.find(':');
  if (colon == line.npos) return count;
  std::string name(line.substr(0, colon));
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string_view value = line.substr(colon + 1);
  const std::size_t first = value.find_first_not_of(" \t");
  if (first == value.npos) return count;
  value = value.substr(first, value.find_last_not_of(" \t\r\n") - first + 1);
  if (name == "content-length" && response.size == 0)
    response.size = number<std::uint64_t>(value).value_or(0);
  if (name == "content-range")
    response.size = number<std::uint64_t>(value.substr(value.rfind('/') + 1)).value_or(0);
  if (name == "retry-after") response.retry_after = number<std::int64_t>(value);
  return count;
}

struct Released {
  void operator()(Curl* curl) const { api().cleanup(curl); }
  void operator()(List* list) const { api().free_list(list); }
};

void set_options(Curl* curl, Transfer& transfer) {
  const HttpRequest& request = transfer.request;
  const long seconds = std::max(1L, static_cast<long>(request.timeout_seconds));
  api().set(curl, url, request.url.c_str());
  api().set(curl, no_signal, 1L);
  api().set(curl, user_agent, "plimsoll");
  api().set(curl, protocols, kHttpAndHttps);
  api().set(curl, redirect_protocols, kHttpAndHttps);
  api().set(curl, follow_location, 1L);
  api().set(curl, max_redirects, 10L);
  api().set(curl, connect_timeout_ms, static_cast<long>(1000 * request.timeout_seconds));
  api().set(curl, low_speed_limit, 1L);
  api().set(curl, low_speed_time, seconds);
  api().set(curl, write_function, &take_body);
  api().set(curl, write_data, &transfer);
  api().set(curl, header_function, &take_header);
  api().set(curl, header_data, &transfer);
}
}  // namespace

HttpResponse http_get(const HttpRequest& request) {
  const std::unique_ptr<Curl, Released> curl(api().init());
  check(curl != nullptr, ErrorKind::internal, "libcurl cannot be started");
  Transfer transfer{request, {}};
  set_options(curl.get(), transfer);
  std::unique_ptr<List, Released> headers;
  if (!request.token.empty())
    headers.reset(
        api().append(nullptr, fmt::format("Authorization: Bearer {}", request.token).c_str()));
  if (headers) api().set(curl.get(), http_header, headers.get());
  const std::string bytes =
      request.from ? fmt::format("{}-{}", *request.from, *request.from + request.most - 1) : "";
  if (request.from) api().set(curl.get(), range, bytes.c_str());
  const int code = api().perform(curl.get());
  HttpResponse& response = transfer.response;
  api().info(curl.get(), response_code, &response.status);
  const char* answered = nullptr;
  api().info(curl.get(), effective_url, &answered);
  response.url = answered == nullptr ? request.url : answered;
  check(code == 0 || (code == kWriteError && response.is_cut), ErrorKind::internal,
        [&] { return fmt::format("{}: {}", request.url, api().message(code)); });
  return response;
}

}  // namespace plimsoll::tools
