#include "tools/cli/catalog_fits.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "models/base/error.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/request.h"

namespace plimsoll::tools {

namespace {
constexpr std::string_view kTokens = "2048";

struct Need {
  bool known = false;  // the planner has an answer
  bool fits = false;
  double device = 0, least = 0;  // as planned; without any rounding and gaps of the allocator
};

Need asked(const std::string& model, const WayToTrain& way, const std::string& gpu,
           Sources& sources) {
  Options options;
  for (const auto& [name, value] : way.options) options.add(name, std::string(value));
  options.add("gpu", gpu);
  Need need;
  try {
    const std::int64_t longest = sources.models.load(model, "")->spec.max_positions;
    options.add("seq-len",
                longest > 0 && longest < 2048 ? std::to_string(longest) : std::string(kTokens));
    Request request = request_from(model, options, sources);
    request.question.detail = planner::Detail::none;
    request.question.remedies = false;
    const reports::Plan plan = answer(request);
    need = {true, plan.fits, plan.device.real(), (plan.peak + plan.overhead.total()).real()};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
  }
  return need;
}

// What a step needs hardly depends on the card within one family. It is planned on the largest, and
// again on each whose capacity is near to that; far from it the answer is clear.
std::vector<bool> fits_on(const std::string& model, const WayToTrain& way,
                          std::span<const models::Gpu> gpus, Sources& sources) {
  constexpr double kNear = 1.25;
  const auto capacity = [&](std::size_t i) { return gpus[i].cuda_total.bytes.real(); };
  std::map<std::string, std::size_t> largest;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto [at, is_new] = largest.emplace(gpus[i].compute_capability, i);
    if (!is_new && capacity(i) > capacity(at->second)) at->second = i;
  }
  std::map<std::string, Need> of_family;
  for (const auto& [family, i] : largest)
    of_family[family] = asked(model, way, gpus[i].name, sources);
  std::vector<bool> out(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const std::string& family = gpus[i].compute_capability;
    const Need& need = of_family[family];
    if (!need.known) continue;
    if (largest[family] == i)
      out[i] = need.fits;
    else if (need.device * kNear <= capacity(i))
      out[i] = true;
    else if (need.least <= capacity(i) * kNear)
      out[i] = asked(model, way, gpus[i].name, sources).fits;
  }
  return out;
}
}  // namespace

const std::vector<WayToTrain>& ways_to_train() {
  static const std::vector<WayToTrain> ways{
      {"all parameters, one GPU", {{"recompute", "full"}}},
      {"all parameters, 8 GPUs", {{"gpus", "8"}, {"zero", "3"}, {"recompute", "full"}}},
      {"LoRA, one GPU", {{"lora-rank", "16"}, {"param-dtype", "bf16"}, {"recompute", "full"}}},
      {"QLoRA, one GPU",
       {{"lora-rank", "16"}, {"quantize", "nf4"}, {"kbit-prep", "yes"}, {"recompute", "full"}}}};
  return ways;
}

std::string options_text(const WayToTrain& way) {
  std::string out;
  for (const auto& [name, value] : way.options)
    out += "--" + std::string(name) + " " + std::string(value) + " ";
  return out + "--seq-len " + std::string(kTokens);
}

CatalogFits catalog_fits(std::span<const std::string> models, std::span<const models::Gpu> gpus,
                         bool quiet) {
  const std::vector<WayToTrain>& ways = ways_to_train();
  CatalogFits out(models.size(), std::vector<std::vector<bool>>(ways.size()));
  ProgressLine progress("models", models.size() * ways.size(), quiet);
  std::atomic<std::size_t> next = 0;
  std::mutex one_writes;
  const auto work = [&] {
    Sources sources;
    for (std::size_t i; (i = next++) < models.size() * ways.size();) {
      const std::size_t model = i / ways.size(), way = i % ways.size();
      out[model][way] = fits_on(models[model], ways[way], gpus, sources);
      const std::lock_guard lock(one_writes);
      progress.advance();
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned n = std::max(1U, std::thread::hardware_concurrency()); n > 0; --n)
    threads.emplace_back(work);
  threads.clear();
  return out;
}

}  // namespace plimsoll::tools
