// GET over HTTP and HTTPS: libcurl, loaded when it is first needed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace plimsoll::tools {

struct HttpRequest {
  std::string url;
  std::string token;  // Authorization: Bearer …; never sent to another host. "": none
  std::uint64_t most = 0;  // bytes of a body: what is longer is cut there
  // The first byte that is wanted; the last is `most` further. Nothing: the whole body.
  std::optional<std::uint64_t> from;
  double timeout_seconds = 10;  // to connect, and of silence
};

struct HttpResponse {
  long status = 0;
  std::string body;
  bool is_cut = false;  // there was more of it than `most`
  std::uint64_t size = 0;  // of the whole file, as Content-Range or Content-Length say; 0: neither
  std::optional<std::int64_t> retry_after;  // seconds
  std::string url;  // that answered, after redirects
};

// Redirects are followed (10 at most, to http and https alone). Error{unsupported}: no libcurl.
// Error{internal}: no connection, no answer in time, a body that ends too early.
HttpResponse http_get(const HttpRequest& request);

}  // namespace plimsoll::tools
