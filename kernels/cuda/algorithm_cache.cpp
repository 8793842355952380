#include "kernels/cuda/algorithm_cache.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <thread>

namespace plimsoll::kernels::cuda {

namespace {

constexpr std::size_t kDigits = 16;  // of one word

std::optional<Algorithm> algorithm_from(std::string_view digits) {
  Algorithm algorithm{};
  if (digits.size() != algorithm.size() * kDigits) return std::nullopt;
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* first = digits.data() + i * kDigits;
    const auto [end, error] = std::from_chars(first, first + kDigits, algorithm[i], 16);
    if (error != std::errc() || end != first + kDigits) return std::nullopt;
  }
  return algorithm;
}

std::string digits_of(const Algorithm& algorithm) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string digits;
  for (const std::uint64_t word : algorithm)
    for (int shift = 60; shift >= 0; shift -= 4) digits += kHex[(word >> shift) & 15];
  return digits;
}

// A name of its own for every writer: processes, and ranks that are threads.
std::string beside(const std::string& path) {
  const std::size_t thread = std::hash<std::thread::id>{}(std::this_thread::get_id());
  return path + "." + std::to_string(getpid()) + "." + std::to_string(thread);
}

}  // namespace

AlgorithmCache::AlgorithmCache(std::string path) : path_(std::move(path)) {
  read();
}

void AlgorithmCache::read() {
  if (path_.empty()) return;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos || tab == 0) continue;
    if (const auto algorithm = algorithm_from(std::string_view(line).substr(tab + 1)))
      found_.emplace(line.substr(0, tab), *algorithm);  // what this process found itself stays
  }
}

std::optional<Algorithm> AlgorithmCache::find(const std::string& key) const {
  const auto at = found_.find(key);
  if (at == found_.end()) return std::nullopt;
  return at->second;
}

void AlgorithmCache::add(const std::string& key, const Algorithm& algorithm) {
  found_[key] = algorithm;
  if (path_.empty()) return;
  read();
  const std::string made = beside(path_);
  {
    std::ofstream file(made);
    for (const auto& [name, value] : found_) file << name << '\t' << digits_of(value) << '\n';
    file.flush();
    if (!file) {
      std::error_code ignored;
      std::filesystem::remove(made, ignored);
      return;
    }
  }
  std::error_code failed;
  std::filesystem::rename(made, path_, failed);
  if (failed) std::filesystem::remove(made, failed);
}

}  // namespace plimsoll::kernels::cuda
