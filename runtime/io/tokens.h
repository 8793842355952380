// Sequences of token ids: texts as bytes, files of ids, synthetic ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace plimsoll::runtime::io {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t tokens() const = 0;  // at least 2
  // Tokens `first` … , as many as `into` holds, from several threads at once. Error{bad_input}: an
  // id outside of the vocabulary (where, which, and how large that is). Error{internal}: beyond the
  // end.
  virtual void read(std::int64_t first, std::span<std::int32_t> into) const = 0;
  virtual std::string origin() const = 0;
};

// A file's bytes as ids 0 … 255. All of these: Error{bad_input} where there are fewer than 2
// tokens, or the vocabulary cannot hold what is read.
std::unique_ptr<TokenSource> text_tokens(const std::filesystem::path& file, std::int64_t vocab);

// Ids as nanoGPT writes them (data/*/prepare.py: uint16, nothing else) or llm.c
// (dev/data/data_common.py: 256 int32 of header: magic 20240520, version 1, number of tokens, then
// uint16; magic 20240801, version 7, then uint32). Error{bad_input}: truncated, or longer than the
// header says. Error{unsupported}: another version, or llm.c's evaluation files.
std::unique_ptr<TokenSource> id_file_tokens(const std::filesystem::path& file, std::int64_t vocab);

// Without end, each id equally likely, the same for the same seed on every machine.
std::unique_ptr<TokenSource> synthetic_tokens(std::int64_t vocab, std::uint64_t seed);

// 41 KB of William Shakespeare's Coriolanus, from act 1, scene 1 on (public domain; the beginning
// of karpathy/char-rnn's data/tinyshakespeare/input.txt). Plain ASCII.
std::string_view shipped_text();
std::unique_ptr<TokenSource> shipped_tokens(std::int64_t vocab);

// What a user named: "" or "shipped", "synthetic", a path that ends in ".bin", any other path as a
// text.
std::unique_ptr<TokenSource> open_tokens(const std::string& data, std::int64_t vocab,
                                         std::uint64_t seed);

}  // namespace plimsoll::runtime::io
