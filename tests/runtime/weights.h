// What the tests of weights share.
#pragma once

#include <doctest/doctest.h>

#include <functional>

#include "models/model_reader.h"
#include "runtime/io/float_storage.h"
#include "runtime/io/weight_source.h"
#include "tests/runtime/goldens.h"

namespace plimsoll::runtime::test {

inline std::vector<double> read(const io::WeightSource& weights, const std::string& name,
                                std::int64_t first, std::int64_t count, DType dtype = DType::fp32) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(storage(Count(count), dtype).value()));
  weights.read(name, first, {bytes.data(), dtype, {count}});
  std::vector<float> wide(static_cast<std::size_t>(count));
  io::convert({bytes.data(), dtype, {count}}, {wide.data(), DType::fp32, {count}});
  return {wide.begin(), wide.end()};
}

inline models::ModelSpec golden_spec(const GoldenModel& golden) {
  return models::model_from_path(golden.config());
}

// The adapter that write_adapter of tools/oracle/numerics_goldens.py makes.
inline std::vector<models::LoraModule> golden_adapter(const std::string& name, std::int64_t rank) {
  models::Lora lora;
  lora.rank = rank;
  lora.targets = {"all-linear"};
  if (name == "gpt2-lora") lora.targets = {"c_attn", "c_fc", "mlp.c_proj"};
  return models::lora_modules(golden_spec(GoldenModel(name.substr(0, name.find('-')))), lora);
}

inline void check_refused(const std::function<void()>& act, ErrorKind kind,
                          const std::string& part) {
  try {
    act();
  } catch (const Error& error) {
    CHECK_MESSAGE(error.kind() == kind, error.message());
    CHECK_MESSAGE(error.message().find(part) != std::string::npos, error.message());
    return;
  }
  FAIL("no error: " << part);
}

}  // namespace plimsoll::runtime::test
