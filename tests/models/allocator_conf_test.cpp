// PYTORCH_CUDA_ALLOC_CONF as torch reads it.
#include "models/allocator_conf.h"

#include <doctest/doctest.h>

#include "models/base/error.h"

using namespace plimsoll;
using models::AllocatorConf;

namespace {

std::optional<std::string> again(std::string_view text) {
  return text_of(models::allocator_conf_from(text, "--allocator-conf"));
}

std::string refusal(std::string_view text, ErrorKind kind = ErrorKind::bad_input) {
  try {
    models::allocator_conf_from(text, "--allocator-conf");
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("a setting is read, and written in one way") {
  CHECK(again("") == std::nullopt);
  CHECK(again("expandable_segments:True") == "expandable_segments:True");
  CHECK(again(" max_split_size_mb : 128 ") == "max_split_size_mb:128");
  CHECK(again("roundup_power2_divisions:8,max_split_size_mb:64") ==
        "max_split_size_mb:64,roundup_power2_divisions:8");
  CHECK(again("max_split_size_mb:64,max_non_split_rounding_mb:40") ==
        "max_split_size_mb:64,max_non_split_rounding_mb:40");
  // The first entry of a list counts for all that is smaller, > for the last and all beyond it.
  const AllocatorConf list =
      models::allocator_conf_from("roundup_power2_divisions:[8:2,64:4,>:16]", "");
  const std::array<std::int64_t, 16> expected{2,  2,  2,  2,  0,  0,  16, 16,
                                              16, 16, 16, 16, 16, 16, 16, 16};
  CHECK(list.roundup_power2_divisions == expected);
  CHECK(list.divisions_of(1 << 20) == 2);
  CHECK(list.divisions_of((std::int64_t{1} << 27) - 1) == 16);
  CHECK(list.divisions_of(40LL << 20) == 0);
  CHECK(models::allocator_conf_from(*text_of(list), "") == list);
}

TEST_CASE("what changes no memory leaves nothing behind") {
  for (const char* text :
       {"backend:native", "expandable_segments:False", "garbage_collection_threshold:0.8",
        "release_lock_on_cudamalloc:True", "pinned_use_cuda_host_register:True",
        "pinned_num_register_threads:8", "roundup_power2_divisions:1",
        "graph_capture_record_stream_reuse:True", "max_non_split_rounding_mb:100"})
    CHECK_MESSAGE(again(text) == std::nullopt, text);
}

TEST_CASE("what torch does not know is refused by name, with the nearest") {
  CHECK(refusal("expandable_segment:True") ==
        "--allocator-conf expandable_segment: torch's allocator has no such setting; did you mean "
        "expandable_segments?");
  CHECK(refusal("zzz:1") == "--allocator-conf zzz: torch's allocator has no such setting");
  CHECK(refusal("expandable_segments:yes") ==
        "--allocator-conf expandable_segments: yes is neither True nor False");
  CHECK(refusal("max_split_size_mb:19") ==
        "--allocator-conf max_split_size_mb: 19 is not a whole number of at least 20");
  CHECK(refusal("roundup_power2_divisions:3").find("3 is not a power of two") != std::string::npos);
  for (const char* text :
       {"max_split_size_mb", "max_split_size_mb:", "max_split_size_mb:1e3",
        "max_split_size_mb:64 expandable_segments:True", "garbage_collection_threshold:1",
        "garbage_collection_threshold:nan", "roundup_power2_divisions:[8:2",
        "roundup_power2_divisions:[8]", "roundup_power2_divisions:[7:2]", ",", ":", "[]",
        "backend:jemalloc", "max_split_size_mb:99999999999999999999"})
    CHECK_MESSAGE(!refusal(text).empty(), text);
}

TEST_CASE("what would change memory in ways not modelled is refused by name") {
  const auto unsupported = [](std::string_view text, std::string_view part) {
    return refusal(text, ErrorKind::unsupported).find(part) != std::string::npos;
  };
  CHECK(unsupported("backend:cudaMallocAsync", "backend:cudaMallocAsync"));
  CHECK(unsupported("per_process_memory_fraction:0.5", "per_process_memory_fraction"));
  CHECK(unsupported("large_segment_size_mb:40", "large_segment_size_mb"));
  CHECK(unsupported("pinned_reserve_segment_size_mb:64", "pinned_reserve_segment_size_mb"));
  CHECK(unsupported("expandable_segments:True,max_split_size_mb:64", "max_split_size_mb"));
}

TEST_CASE("each value of a setting has its own refusal, of as much of it as can be read") {
  const std::string name = "--allocator-conf ";
  CHECK(refusal("max_split_size_mb") == "--allocator-conf: ends where ':' is expected");
  CHECK(refusal("max_split_size_mb=64") ==
        name +
            "max_split_size_mb=64: torch's allocator has no such setting; did you mean "
            "max_split_size_mb?");
  CHECK(refusal("max_split_size_mb,64") == name + "max_split_size_mb: ':' is expected, not ,");
  const std::string long_word(61, '9');
  CHECK(refusal("max_split_size_mb:" + long_word) ==
        name + "max_split_size_mb: " + std::string(57, '9') +
            "... is not a whole number of at least 20");
  CHECK(refusal("max_split_size_mb:1099511627777") ==
        name + "max_split_size_mb: 1099511627777 is not a whole number of at least 20");
  CHECK(refusal("max_non_split_rounding_mb:19") ==
        name + "max_non_split_rounding_mb: 19 is not a whole number of at least 20");
  CHECK(refusal("pinned_num_register_threads:0") ==
        name + "pinned_num_register_threads: 0 is not a whole number of at least 1");
  CHECK(refusal("pinned_num_register_threads:6") ==
        name + "pinned_num_register_threads: 6 is not a power of two");
  for (const char* share : {"0", "1", "1.5", "-0.5", "nan", "0.8x", "x"})
    CHECK(refusal("garbage_collection_threshold:" + std::string(share)) ==
          name + "garbage_collection_threshold: " + share + " is not a number between 0 and 1");
  for (const char* share : {"0.001", "0.999"})
    CHECK(again("garbage_collection_threshold:" + std::string(share)) == std::nullopt);
  CHECK(refusal("backend:jemalloc") ==
        name + "backend: jemalloc is neither native nor cudaMallocAsync");
  CHECK(refusal("roundup_power2_divisions:") ==
        "--allocator-conf: ends where a number is expected");
}

TEST_CASE("divisions of a list: those of sizes that it leaves out, of its ends and beyond them") {
  const auto steps = [](const char* list) {
    return models::allocator_conf_from(std::string("roundup_power2_divisions:") + list, "")
        .roundup_power2_divisions;
  };
  using Steps = std::array<std::int64_t, 16>;
  // Entry i is of sizes from 2^i MiB; what is beyond the last, 32768 MiB, counts as the last.
  CHECK(steps("[1:4]") == Steps{4});
  CHECK(steps("[2:4]") == Steps{4, 4});
  CHECK(steps("[16384:4]")[14] == 4);
  CHECK(steps("[32768:4]") == Steps{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4});
  CHECK(steps("[1:2,65536:4]") == Steps{2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4});
  CHECK(steps("[4:0,8:2]") == Steps{0, 0, 0, 2});
  CHECK(steps("[1:1]") == Steps{});  // one division is none
  AllocatorConf conf;
  for (std::size_t i = 0; i < 16; ++i)
    conf.roundup_power2_divisions[i] = static_cast<std::int64_t>(100 + i);
  CHECK(conf.divisions_of(1) == 100);
  CHECK(conf.divisions_of((std::int64_t{1} << 21) - 1) == 100);
  CHECK(conf.divisions_of(std::int64_t{1} << 21) == 101);
  CHECK(conf.divisions_of(std::int64_t{1} << 34) == 114);
  CHECK(conf.divisions_of(std::int64_t{1} << 35) == 115);
  CHECK(conf.divisions_of(std::int64_t{1} << 40) == 115);
}
