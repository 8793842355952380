#include "runtime/io/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "models/base/quantity.h"
#include "runtime/io/file.h"
#include "runtime/io/keyed_random.h"

namespace plimsoll::runtime::io {

namespace {
constexpr std::int64_t kByteValues = 256;
// llm.c's files.
constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr std::int32_t kGpt2Magic = 20240520, kLlama3Magic = 20240801, kEvaluationMagic = 20240522;

void check_vocabulary(std::int64_t vocab) {
  check(vocab >= 1 && vocab <= std::numeric_limits<std::int32_t>::max(), ErrorKind::bad_input,
        [&] { return fmt::format("a vocabulary of {} tokens", vocab); });
}

void check_text_fits(const std::string& origin, std::int64_t vocab) {
  check(vocab >= kByteValues, ErrorKind::bad_input, [&] {
    return fmt::format(
        "{}: a text is read as bytes, which needs a vocabulary of at least 256 tokens; this model "
        "has {} (give a .bin file of ids, or synthetic)",
        origin, vocab);
  });
}

void check_enough(const std::string& origin, std::int64_t tokens) {
  check(tokens >= 2, ErrorKind::bad_input, [&] {
    return fmt::format("{}: {} to train on: at least 2 are needed", origin,
                       tokens == 0 ? "no token" : "one token");
  });
}

void check_inside(const std::string& origin, std::int64_t first, std::size_t count,
                  std::int64_t tokens) {
  check(first >= 0 && first <= tokens && static_cast<std::int64_t>(count) <= tokens - first,
        ErrorKind::internal, [&] { return "tokens beyond the end of " + origin; });
}

// Little-endian unsigned numbers of 1, 2 or 4 bytes, `begin` bytes into a file.
class FileTokens : public TokenSource {
 public:
  FileTokens(InputFile file, std::int64_t begin, std::int64_t width, std::int64_t vocab)
      : file_(std::move(file)),
        begin_(begin),
        width_(width),
        tokens_((file_.size() - begin) / width),
        vocab_(vocab) {
    check_vocabulary(vocab);
    check_enough(file_.path(), tokens_);
  }

  std::int64_t tokens() const override { return tokens_; }
  std::string origin() const override { return file_.path(); }

  void read(std::int64_t first, std::span<std::int32_t> into) const override {
    check_inside(file_.path(), first, into.size(), tokens_);
    std::array<std::byte, 16384> buffer;
    const std::size_t step = buffer.size() / static_cast<std::size_t>(width_);
    for (std::size_t done = 0; done < into.size(); done += step) {
      const std::size_t n = std::min(step, into.size() - done);
      const std::int64_t at = first + static_cast<std::int64_t>(done);
      const auto bytes = std::span(buffer).first(n * static_cast<std::size_t>(width_));
      file_.read(begin_ + at * width_, bytes);
      for (std::size_t i = 0; i < n; ++i) into[done + i] = id(bytes, i, at);
    }
  }

 private:
  std::int32_t id(std::span<const std::byte> bytes, std::size_t i, std::int64_t first) const {
    std::uint32_t value = 0;
    const auto width = static_cast<std::size_t>(width_);
    std::memcpy(&value, bytes.data() + i * width, width);
    check(value < static_cast<std::uint64_t>(vocab_), ErrorKind::bad_input, [&] {
      return fmt::format("{}: token {} is {}, the model's vocabulary has {} (0 to {})",
                         file_.path(), first + static_cast<std::int64_t>(i), value, vocab_,
                         vocab_ - 1);
    });
    return static_cast<std::int32_t>(value);
  }

  InputFile file_;
  std::int64_t begin_, width_, tokens_, vocab_;
};

class ShippedTokens : public TokenSource {
 public:
  std::int64_t tokens() const override { return std::ssize(shipped_text()); }
  std::string origin() const override { return "the shipped text (Coriolanus)"; }
  void read(std::int64_t first, std::span<std::int32_t> into) const override {
    check_inside(origin(), first, into.size(), tokens());
    for (std::size_t i = 0; i < into.size(); ++i)
      into[i] = static_cast<unsigned char>(shipped_text()[static_cast<std::size_t>(first) + i]);
  }
};

// Token i is word i mod 4 of block i / 4, scaled: floor(word · vocab / 2^32).
class SyntheticTokens : public TokenSource {
 public:
  SyntheticTokens(std::int64_t vocab, std::uint64_t seed)
      : vocab_(static_cast<std::uint64_t>(vocab)), key_(keyed("tokens", seed)) {
    check_vocabulary(vocab);
  }

  std::int64_t tokens() const override { return std::int64_t{1} << 62; }
  std::string origin() const override {
    return "synthetic (seed " + std::to_string(key_.seed) + ")";
  }
  void read(std::int64_t first, std::span<std::int32_t> into) const override {
    check_inside("synthetic tokens", first, into.size(), tokens());
    kernels::Philox words{};
    for (std::size_t i = 0; i < into.size(); ++i) {
      const std::uint64_t at = static_cast<std::uint64_t>(first) + i;
      if (i == 0 || at % 4 == 0) words = kernels::random_block(key_, at / 4);
      into[i] = static_cast<std::int32_t>(words[at % 4] * vocab_ >> 32);
    }
  }

 private:
  std::uint64_t vocab_;
  kernels::RandomKey key_;
};

std::array<std::int32_t, 3> header_of(const InputFile& file) {
  std::array<std::int32_t, 3> header{};
  const auto bytes = std::as_writable_bytes(std::span(header));
  const auto there = static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 12));
  file.read(0, bytes.first(there));
  return header;
}

// The width of a token in a file that llm.c wrote; nothing where the file has no such header.
std::optional<std::int64_t> width_in(const InputFile& file) {
  const auto [magic, version, count] = header_of(file);
  if (magic != kGpt2Magic && magic != kLlama3Magic && magic != kEvaluationMagic)
    return std::nullopt;
  const auto refuse = [&](ErrorKind kind, const std::string& what) {
    fail(kind, file.path() + ": " + what);
  };
  if (magic == kEvaluationMagic)
    refuse(ErrorKind::unsupported, "an evaluation file of llm.c, which is not one text");
  const std::int64_t width = magic == kGpt2Magic ? 2 : 4;
  if (version != (width == 2 ? 1 : 7))
    refuse(ErrorKind::unsupported,
           fmt::format("version {} of llm.c's token files (magic {})", version, magic));
  const std::int64_t have = file.size() - kHeaderBytes;
  if (count < 0 || have < count * width)
    refuse(ErrorKind::bad_input,
           fmt::format("truncated: its header says {} tokens of {} bytes, {} bytes follow it",
                       count, width, std::max<std::int64_t>(have, 0)));
  if (have > count * width)
    refuse(ErrorKind::bad_input,
           fmt::format("{} bytes more than the {} tokens that its header says",
                       have - count * width, count));
  return width;
}
}  // namespace

std::unique_ptr<TokenSource> text_tokens(const std::filesystem::path& file, std::int64_t vocab) {
  InputFile input(file);
  check_text_fits(input.path(), vocab);
  return std::make_unique<FileTokens>(std::move(input), 0, 1, vocab);
}

std::unique_ptr<TokenSource> id_file_tokens(const std::filesystem::path& file, std::int64_t vocab) {
  InputFile input(file);
  if (const std::optional<std::int64_t> width = width_in(input))
    return std::make_unique<FileTokens>(std::move(input), kHeaderBytes, *width, vocab);
  check(input.size() % 2 == 0, ErrorKind::bad_input, [&] {
    return fmt::format("{}: truncated: {} bytes are no whole number of uint16 ids", input.path(),
                       input.size());
  });
  return std::make_unique<FileTokens>(std::move(input), 0, 2, vocab);
}

std::unique_ptr<TokenSource> synthetic_tokens(std::int64_t vocab, std::uint64_t seed) {
  return std::make_unique<SyntheticTokens>(vocab, seed);
}

std::unique_ptr<TokenSource> shipped_tokens(std::int64_t vocab) {
  check_text_fits("the shipped text", vocab);
  return std::make_unique<ShippedTokens>();
}

std::unique_ptr<TokenSource> open_tokens(const std::string& data, std::int64_t vocab,
                                         std::uint64_t seed) {
  if (data.empty() || data == "shipped") return shipped_tokens(vocab);
  if (data == "synthetic") return synthetic_tokens(vocab, seed);
  return data.ends_with(".bin") ? id_file_tokens(data, vocab) : text_tokens(data, vocab);
}

}  // namespace plimsoll::runtime::io
