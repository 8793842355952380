#include "models/allocator_conf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <utility>
#include <vector>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"

namespace plimsoll::models {

namespace {

constexpr std::int64_t kMebi = 1 << 20;
constexpr std::int64_t kLeastSplitMebi = 20;  // kLargeBuffer

constexpr std::string_view kKeys[] = {"backend",
                                      "expandable_segments",
                                      "garbage_collection_threshold",
                                      "graph_capture_record_stream_reuse",
                                      "large_segment_size_mb",
                                      "max_non_split_rounding_mb",
                                      "max_split_size_mb",
                                      "per_process_memory_fraction",
                                      "pinned_num_register_threads",
                                      "pinned_reserve_segment_size_mb",
                                      "pinned_use_background_threads",
                                      "pinned_use_cuda_host_register",
                                      "release_lock_on_cudamalloc",
                                      "roundup_power2_divisions"};

// Keys of how and when, not of how much: read, and without effect on device memory.
constexpr std::string_view kSwitches[] = {
    "graph_capture_record_stream_reuse",  // within CUDA graphs, which no stack here captures
    "pinned_use_background_threads", "pinned_use_cuda_host_register", "release_lock_on_cudamalloc"};

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view what) : what_(what) {
    std::string word;
    const auto end_word = [&] {
      if (!word.empty()) tokens_.push_back(std::exchange(word, {}));
    };
    for (const char c : text) {
      if (c == ',' || c == ':' || c == '[' || c == ']') {
        end_word();
        tokens_.emplace_back(1, c);
      } else if (c != ' ') {
        word += c;
      }
    }
    end_word();
  }

  AllocatorConf read() {
    while (at_ < tokens_.size()) {
      const std::string key = next("a setting");
      check(has(kKeys, key), ErrorKind::bad_input, [&] { return unknown(key); });
      expect(":", key);
      read_value(key);
      if (at_ < tokens_.size()) expect(",", key);
    }
    return conf_;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    fail(ErrorKind::bad_input, std::string(what_) + " " + key + ": " + why);
  }

  std::string unknown(const std::string& key) const {
    const std::string near = nearest(key, kKeys);
    return std::string(what_) + " " + shortened(key) + ": torch's allocator has no such setting" +
           (near.empty() ? "" : "; did you mean " + near + "?");
  }

  std::string next(const std::string& wanted) {
    check(at_ < tokens_.size(), ErrorKind::bad_input,
          [&] { return std::string(what_) + ": ends where " + wanted + " is expected"; });
    return tokens_[at_++];
  }

  void expect(const char* token, const std::string& key) {
    const std::string got = next("'" + std::string(token) + "'");
    if (got != token)
      refuse(key, "'" + std::string(token) + "' is expected, not " + shortened(got));
  }

  std::int64_t number(const std::string& key, std::int64_t least) {
    const std::string text = next("a number");
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least ||
        value > (std::int64_t{1} << 40))
      refuse(key, shortened(text) + " is not a whole number of at least " + std::to_string(least));
    return value;
  }

  bool truth(const std::string& key) {
    const std::string text = next("True or False");
    if (text != "True" && text != "False")
      refuse(key, shortened(text) + " is neither True nor False");
    return text == "True";
  }

  std::int64_t power_of_two(const std::string& key, std::int64_t least) {
    const std::int64_t value = number(key, least);
    if (value != 0 && !std::has_single_bit(static_cast<std::uint64_t>(value)))
      refuse(key, std::to_string(value) + " is not a power of two");
    return value;
  }

  void read_value(const std::string& key) {
    if (key == "expandable_segments")
      conf_.expandable_segments = truth(key);
    else if (key == "max_split_size_mb")
      conf_.max_split_size = Bytes(number(key, kLeastSplitMebi) * kMebi);
    else if (key == "max_non_split_rounding_mb")
      conf_.max_non_split_rounding = Bytes(number(key, kLeastSplitMebi) * kMebi);
    else if (key == "roundup_power2_divisions")
      read_divisions(key);
    else if (key == "pinned_num_register_threads")
      power_of_two(key, 1);
    else if (key == "garbage_collection_threshold")
      read_threshold(key);
    else if (key == "backend")
      read_backend(key);
    else if (has(kSwitches, key))
      truth(key);
    else
      fail(ErrorKind::unsupported, std::string(what_) + " " + key + ": is not modelled yet");
  }

  // Collects only beside a memory fraction (set_fraction in DeviceCachingAllocator::malloc), and
  // the fraction is not modelled.
  void read_threshold(const std::string& key) {
    const std::string text = next("a number");
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value < 1))
      refuse(key, shortened(text) + " is not a number between 0 and 1");
  }

  void read_backend(const std::string& key) {
    const std::string backend = next("native or cudaMallocAsync");
    if (backend == "native") return;
    check(backend != "cudaMallocAsync", ErrorKind::unsupported, [&] {
      return std::string(what_) +
             " backend:cudaMallocAsync: only torch's native allocator is modelled";
    });
    refuse(key, shortened(backend) + " is neither native nor cudaMallocAsync");
  }

  // 8, or [256:1,512:2,>:4]: sizes in MiB.
  void read_divisions(const std::string& key) {
    auto& steps = conf_.roundup_power2_divisions;
    if (at_ >= tokens_.size() || tokens_[at_] != "[") {
      steps.fill(power_of_two(key, 1));
      return;
    }
    ++at_;
    std::size_t last = 0;
    for (bool first = true; at_ < tokens_.size() && tokens_[at_] != "]";) {
      const bool rest = tokens_[at_] == ">";
      const std::int64_t from = rest ? 0 : power_of_two(key, 1);
      if (rest) ++at_;
      expect(":", key);
      const std::int64_t value = power_of_two(key, 0);
      if (rest) {
        std::fill(steps.begin() + static_cast<std::ptrdiff_t>(last), steps.end(), value);
      } else {
        const auto power =
            static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(from)));
        last = std::min(power - 1, steps.size() - 1);
        if (std::exchange(first, false))
          std::fill(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(last), value);
        steps[last] = value;
      }
      if (at_ < tokens_.size() && tokens_[at_] != "]") expect(",", key);
    }
    expect("]", key);
  }

  std::string_view what_;
  std::vector<std::string> tokens_;
  std::size_t at_ = 0;
  AllocatorConf conf_;
};

std::string divisions_text(const AllocatorConf& conf) {
  const auto& steps = conf.roundup_power2_divisions;
  if (std::ranges::count(steps, steps[0]) == static_cast<std::ptrdiff_t>(steps.size()))
    return std::to_string(steps[0]);
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i)
    text += (i == 0 ? "[" : ",") + std::to_string(std::int64_t{1} << i) + ":" +
            std::to_string(steps[i]);
  return text + "]";
}

}  // namespace

std::int64_t AllocatorConf::divisions_of(std::int64_t bytes) const {
  const int power = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - 1;
  return roundup_power2_divisions[static_cast<std::size_t>(std::clamp(power - 20, 0, 15))];
}

AllocatorConf allocator_conf_from(std::string_view text, std::string_view what) {
  AllocatorConf conf = Reader(text, what).read();
  // Torch itself fails there: what gives large blocks back is not made for expandable segments.
  check(!conf.expandable_segments || !conf.max_split_size, ErrorKind::unsupported, [&] {
    return std::string(what) +
           ": max_split_size_mb beside expandable_segments:True is not modelled";
  });
  for (std::int64_t& steps : conf.roundup_power2_divisions)
    if (steps == 1) steps = 0;
  if (!conf.max_split_size) conf.max_non_split_rounding = AllocatorConf().max_non_split_rounding;
  return conf;
}

std::optional<std::string> text_of(const AllocatorConf& conf) {
  const AllocatorConf usual;
  std::string text;
  const auto add = [&](std::string_view key, const std::string& value) {
    text += (text.empty() ? "" : ",") + std::string(key) + ":" + value;
  };
  if (conf.expandable_segments) add("expandable_segments", "True");
  if (conf.max_split_size)
    add("max_split_size_mb", std::to_string(conf.max_split_size->value() / kMebi));
  if (conf.max_non_split_rounding != usual.max_non_split_rounding)
    add("max_non_split_rounding_mb", std::to_string(conf.max_non_split_rounding.value() / kMebi));
  if (conf.roundup_power2_divisions != usual.roundup_power2_divisions)
    add("roundup_power2_divisions", divisions_text(conf));
  if (text.empty()) return std::nullopt;
  return text;
}

}  // namespace plimsoll::models
