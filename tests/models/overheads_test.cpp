// What stands outside of allocators, by GPU and stack: the entry that fits most closely, and what
// was measured. Two documents' leaves.
#include "models/overheads.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include "models/calibration.h"
#include "models/json_reader.h"
#include "tests/models/file_settings.h"

using namespace plimsoll;
using namespace plimsoll::models;

namespace {
Gpu gpu(const char* vendor, const char* family) {
  Gpu out;
  out.vendor = vendor;
  out.family = family;
  return out;
}
// "low typical high where basis per", or "none".
std::string entry(const char* stack, const Gpu& on, const char* torch, const char* name) {
  const std::vector<Overhead> all = overheads_of(stack, on, torch);
  const Overhead* const found = find_overhead(all, name);
  if (found == nullptr) return "none";
  constexpr const char* kWhere[] = {"device", "allocator", "count"};
  const std::string range = found->range ? fmt::format("{} {} {}", found->range->low,
                                                       found->range->typical, found->range->high)
                                         : "no range";
  return fmt::format("{} {} {} per {}", range, kWhere[static_cast<int>(found->where)], found->basis,
                     found->per);
}
}  // namespace

// The figures are those of models/specs/overheads.json.
TEST_CASE("a family's entry goes before its vendor's and before any, a stack's before any") {
  const Gpu hopper = gpu("nvidia", "hopper"), other = gpu("nvidia", "rubin"),
            amd = gpu("amd", "cdna3"), nobody = gpu("nobody", "x");
  CHECK(entry("pytorch", hopper, "2.11", "context") ==
        "513802240 723517440 1223688192 device measured per process");
  CHECK(entry("plimsoll", hopper, "2.11", "context") ==
        "419430400 555745280 681574400 device assumed per process");
  CHECK(entry("deepspeed", hopper, "2.11", "context") == "none");
  CHECK(entry("pytorch", other, "2.11", "context") == "none");
  CHECK(entry("pytorch", hopper, "2.11", "cublas_threads") == "1 2 2 count derived per stream");
  CHECK(entry("pytorch", nobody, "2.11", "cublas_threads") == "1 2 2 count derived per stream");
  CHECK(entry("plimsoll", hopper, "2.11", "cublas_threads") == "none");
  CHECK(entry("plimsoll", hopper, "2.11", "nccl_channels") ==
        "8 24 32 count measured per communicator");
  CHECK(entry("pytorch", other, "2.11", "nccl_connection") ==
        "12582912 12582912 12582912 device derived per channel and connection");
  CHECK(entry("pytorch", amd, "2.11", "nccl_connection") == "none");
  CHECK(entry("pytorch", amd, "2.11", "cublaslt_workspace") ==
        "79691776 79691776 79691776 allocator derived per thread and stream");
  CHECK(entry("pytorch", hopper, "2.11", "cudnn_sdpa_backward") ==
        "no range allocator derived per call");
  CHECK(find_overhead(overheads_of("pytorch", hopper, "2.11"), "cudnn_sdpa_backward")
            ->formula.starts_with("4*batch*heads*seq*(head_dim+1)"));
  CHECK(entry("deepspeed", hopper, "2.11", "reserved_underestimate") ==
        "0 0 127 count measured per thousand planned bytes");
  // Sorted by name, each once.
  const std::vector<Overhead> all = overheads_of("pytorch", hopper, "2.11");
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i - 1].name < all[i].name);
}

TEST_CASE("an entry holds up to a release of torch or from one on") {
  const Gpu hopper = gpu("nvidia", "hopper"), blackwell = gpu("nvidia", "blackwell");
  const auto workspace = [&](const Gpu& on, const char* torch) {
    return entry("pytorch", on, torch, "cublas_workspace");
  };
  const char* const old = "8519680 8519680 8519680 allocator derived per thread and stream";
  const char* const later = "8519680 33554432 33554432 allocator assumed per thread and stream";
  for (const char* torch : {"2.9", "2.11", "2.11.0+cu130", "1.13"})
    CHECK(workspace(blackwell, torch) == old);
  for (const char* torch : {"2.12", "2.12.1", "3.0"}) CHECK(workspace(blackwell, torch) == later);
  CHECK(workspace(hopper, "2.12") == "none");
  CHECK(entry("pytorch", hopper, "2.10", "cudnn_sdpa_backward") == "none");
  for (const char* none : {"", "2", "2.", "two.11", "2,11", ".11", "2.x"})
    CHECK_THROWS_WITH_AS(
        (void)overheads_of("pytorch", hopper, none),
        fmt::format("torch version '{}': a version like 2.11 is needed", none).c_str(), Error);
}

TEST_CASE("a measured overhead is read member by member; what it lacks or says twice is refused") {
  const auto document = [](const std::string& entries) {
    return R"({"schema": "plimsoll.calibrated_overheads/1", "entries": [)" + entries + "]}";
  };
  const std::string head =
      R"({"stack": "pytorch", "gpu": "h100", "driver": "580.1", "evidence": "e")";
  const std::string bytes = R"(, "context_bytes": 11, "libraries_bytes": 22)";
  const std::string fitted = R"(, "fitted": ["a"], "fitted_fingerprints": ["1", "2"])";
  const std::string judged =
      R"(, "deviation_bytes": 33, "judged": ["b"], "judged_fingerprints": ["3"])";
  const auto read = [&](const std::string& entries) {
    return read_calibrations(document(entries), "c");
  };
  const std::string whole = head + bytes + fitted + judged + "}";
  CHECK(read(whole) == std::vector{Calibration{.stack = "pytorch",
                                               .gpu = "h100",
                                               .driver = "580.1",
                                               .evidence = "e",
                                               .context = 11_B,
                                               .libraries = 22_B,
                                               .deviation = 33_B,
                                               .fitted = {"a"},
                                               .fitted_fingerprints = {"1", "2"},
                                               .judged = {"b"},
                                               .judged_fingerprints = {"3"}}});
  CHECK_FALSE(read(head + bytes + fitted + "}")[0].deviation.has_value());
  const auto refused = [&](const std::string& entries) {
    return tests::refusal([&](const std::string& text) { return read(text); }, entries,
                          ErrorKind::bad_input);
  };
  const std::string where = "c: entries: ";
  CHECK(refused(head + R"(, "context_bytes": 1)" + fitted + "}") ==
        where + "libraries_bytes is missing, but a number of bytes is needed");
  CHECK(refused(head + R"(, "libraries_bytes": 1)" + fitted + "}") ==
        where + "context_bytes is missing, but a number of bytes is needed");
  CHECK(refused(R"({"stack": "pytorch", "gpu": ""})") ==
        where + "gpu is \"\", but a text is needed");
  CHECK(refused(head + bytes + "}") ==
        where +
            "fitted_fingerprints is missing, but the workloads that the figures were fitted on "
            "is needed");
  CHECK(refused(head + bytes + fitted + R"(, "deviation_bytes": 33})") ==
        where + "deviation_bytes is 33, but null where no other model was measured is needed");
  CHECK(refused(whole + ", " + whole) ==
        "c: entries: gpu is \"h100\", but one entry for each GPU and stack is needed");
  std::string deepspeed = whole, other = whole;
  deepspeed.replace(deepspeed.find("pytorch"), 7, "deepspeed");
  other.replace(other.find("h100"), 4, "h200");
  const std::vector<Calibration> all = read(whole + ", " + deepspeed + ", " + other);
  CHECK(all.size() == 3);
  CHECK(find_calibration(all, "deepspeed") == &all[1]);
  CHECK(find_calibration(all, "plimsoll") == nullptr);
  CHECK(tests::refusal([](const std::string& text) { return read_calibrations(text, "c"); },
                       R"({"schema": "x"})", ErrorKind::bad_input) ==
        "c: schema is \"x\", but plimsoll.calibrated_overheads/1, as tools/evidence fit writes it, "
        "is needed");
}

TEST_CASE("where two documents differ, leaf by leaf, in the order of their paths") {
  std::string out;
  for (const LeafDifference& d :
       leaf_differences(R"({"z": 1, "a": {"b": [1, 2], "same": "x"}, "gone": null})",
                        R"({"a": {"b": [1, "ä"], "same": "x"}, "new": {"deep": true}, "z": 1.5})"))
    out += d.path + ": " + d.first + " | " + d.second + "\n";
  CHECK(out ==
        "a.b.1: 2 | \"ä\"\n"
        "gone: null | absent\n"
        "new.deep: absent | true\n"
        "z: 1 | 1.5\n");
  CHECK(leaf_differences(R"({"a": [1, {"b": 2}]})", R"({"a": [1, {"b": 2}]})").empty());
}
