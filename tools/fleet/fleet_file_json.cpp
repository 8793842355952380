#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/json_reader.h"
#include "reports/text.h"
#include "tools/cli/query_json.h"
#include "tools/fleet/fleet_file.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::json;
constexpr std::int64_t kMostGpus = 1'000'000, kMostJobs = 100'000, kMostPools = 1000;
constexpr double kMostPrice = 1e9;

constexpr std::array<std::string_view, 4> kTop{"pools", "jobs", "currency", "note"};
constexpr std::array<std::string_view, 5> kOfPool{"name", "count", "gpus_per_node", "price",
                                                  "most_count"};
// What else belongs to the cards, as options of fit.
constexpr std::array<std::string_view, 6> kOfCards{
    "gpu", "gpu_memory", "intra_node_bandwidth", "inter_node_bandwidth", "reserve", "host_memory"};
constexpr std::array<std::string_view, 6> kOfJob{"name",  "count", "priority",
                                                 "pools", "gpus",  "min_tokens_per_second"};

// Who is wrong: "fleet.json: pool 'a100'".
struct At {
  std::string where;
  [[noreturn]] void refuse(const std::string& what) const {
    fail(ErrorKind::bad_input, where + ": " + what);
  }
};

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "…" : text;
}

std::int64_t whole(const At& at, const Json& object, const char* key, std::int64_t least,
                   std::int64_t most, std::optional<std::int64_t> otherwise = std::nullopt) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    if (otherwise) return *otherwise;
    at.refuse(fmt::format("\"{}\" is missing", key));
  }
  const bool is_whole = found->is_number_integer() &&
                        (!found->is_number_unsigned() || found->get<std::uint64_t>() <= INT64_MAX);
  if (!is_whole || found->get<std::int64_t>() < least || found->get<std::int64_t>() > most)
    at.refuse(fmt::format("\"{}\" {}: must be a whole number from {} to {}", key, shown(*found),
                          least, most));
  return found->get<std::int64_t>();
}

std::optional<double> real(const At& at, const Json& object, const char* key, double least,
                           double most) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return std::nullopt;
  if (!found->is_number() || !(found->get<double>() >= least) || !(found->get<double>() <= most))
    at.refuse(fmt::format("\"{}\" {}: must be a number from {:g} to {:g}", key, shown(*found),
                          least, most));
  return found->get<double>();
}

std::string text(const At& at, const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  if (!found->is_string() || found->get<std::string>().empty() ||
      found->get<std::string>().size() > 200)
    at.refuse(fmt::format("\"{}\" {}: must be a name", key, shown(*found)));
  return reports::printable(found->get<std::string>());
}

template <std::size_t N>
bool is_one_of(std::string key, const std::array<std::string_view, N>& names) {
  std::ranges::replace(key, '-', '_');
  return std::ranges::find(names, key) != names.end();
}

[[noreturn]] void refuse_key(const At& at, const std::string& key,
                             std::vector<std::string_view> names) {
  const std::string near = nearest(key, names);
  std::string list;
  for (const std::string_view name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  at.refuse(fmt::format("unknown key \"{}\"; {}", reports::printable(key.substr(0, 60)),
                        near.empty() ? "known are " + list : "did you mean \"" + near + "\"?"));
}

// The members that are no key of ours, as options of fit.
Query query_of(const At& at, const Json& object) {
  std::string id;
  try {
    return query_from(object.dump(-1, ' ', false, Json::error_handler_t::replace), id);
  } catch (const Error& error) {
    at.refuse(error.message());
  }
}

const Json& list_of(const Json& json, const char* key, const std::string& source) {
  static const Json none = Json::array();
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return none;
  check(found->is_array(), ErrorKind::bad_input,
        [&] { return fmt::format("{}: \"{}\": must be a list of objects", source, key); });
  return *found;
}

At place_of(const std::string& source, const char* what, std::size_t index, const Json& object) {
  At at{fmt::format("{}: {} {}", source, what, index + 1)};
  if (!object.is_object()) at.refuse("must be an object");
  const std::string name = text(at, object, "name");
  if (!name.empty()) at.where = fmt::format("{}: {} '{}'", source, what, name);
  return at;
}

void read_pool(const std::string& source, std::size_t index, const Json& object, FleetFile& out) {
  const At at = place_of(source, "pool", index, object);
  Json cards = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (is_one_of(key, kOfPool)) continue;
    if (!is_one_of(key, kOfCards)) {
      std::vector<std::string_view> names(kOfPool.begin(), kOfPool.end());
      names.insert(names.end(), kOfCards.begin(), kOfCards.end());
      refuse_key(at, key, names);
    }
    cards[key] = value;
  }
  reports::FleetPool pool;
  pool.gpu = text(at, object, "gpu");
  if (pool.gpu.empty()) at.refuse("\"gpu\" is missing: a name of plimsoll gpus");
  pool.name = text(at, object, "name");
  if (pool.name.empty()) pool.name = pool.gpu;
  pool.gpus = whole(at, object, "count", 0, kMostGpus);
  pool.gpus_per_node = whole(at, object, "gpus_per_node", 1, 1024, 8);
  pool.price = real(at, object, "price", 0, kMostPrice);
  if (object.contains("most_count") && !object.at("most_count").is_null())
    pool.most_gpus = whole(at, object, "most_count", pool.gpus, kMostGpus);
  if (pool.most_gpus && !pool.price) at.refuse("\"most_gpus\" says nothing without \"price\"");
  Options options = query_of(at, cards).options;
  options.add("gpus-per-node", std::to_string(pool.gpus_per_node));
  out.of_pool.push_back(std::move(options));
  out.fleet.pools.push_back(std::move(pool));
}

std::vector<std::int64_t> sizes_of(const At& at, const Json& object) {
  const auto found = object.find("gpus");
  if (found == object.end() || found->is_null()) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<std::int64_t> sizes;
  for (const Json& one : list)
    sizes.push_back(whole(at, Json{{"gpus", one}}, "gpus", 1, kMostGpus));
  if (sizes.empty() || sizes.size() > 32) at.refuse("\"gpus\": a number, or a list of 1 to 32");
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  return sizes;
}

void read_job(const At& at, const Json& object, const std::string& name, FleetFile& out) {
  Json question = Json::object();
  for (const auto& [key, value] : object.items()) {
    if (is_one_of(key, kOfJob)) continue;
    if (is_one_of(key, kOfCards) || is_one_of(key, kOfPool))
      at.refuse(
          fmt::format("\"{}\": a pool says that, not a job (\"pools\" names those that it "
                      "may run on)",
                      reports::printable(key)));
    question[key] = value;
  }
  reports::FleetJob job;
  job.name = name;
  job.count = whole(at, object, "count", 1, kMostJobs, 1);
  job.priority = real(at, object, "priority", 1e-3, 1e6).value_or(1);
  job.min_tokens_per_second = real(at, object, "min_tokens_per_second", 0, 1e15);
  FleetQuery asked;
  Query query = query_of(at, question);
  asked.model = query.model;
  asked.options = std::move(query.options);
  if (asked.model.empty() && !asked.options.has("params")) at.refuse("\"model\" is missing");
  asked.sizes = sizes_of(at, object);
  if (const auto pools = object.find("pools"); pools != object.end() && !pools->is_null()) {
    if (!pools->is_array() || pools->empty()) at.refuse("\"pools\": a list of names of pools");
    for (const Json& one : *pools) {
      if (!one.is_string()) at.refuse("\"pools\": a list of names of pools");
      asked.pools.push_back(reports::printable(one.get<std::string>()));
    }
  }
  out.fleet.jobs.push_back(std::move(job));
  out.of_job.push_back(std::move(asked));
}
}  // namespace

FleetFile read_fleet(std::string_view content, const std::string& source) {
  const Json json = models::parse_json(content, source);
  const At top{source};
  if (!json.is_object()) top.refuse("a fleet is a JSON object with \"pools\" and \"jobs\"");
  for (const auto& [key, value] : json.items())
    if (!is_one_of(key, kTop)) refuse_key(top, key, {kTop.begin(), kTop.end()});
  FleetFile out;
  out.fleet.currency = text(top, json, "currency");
  const Json &pools = list_of(json, "pools", source), &jobs = list_of(json, "jobs", source);
  if (pools.empty()) top.refuse("\"pools\" is missing, or empty");
  if (pools.size() > kMostPools) top.refuse(fmt::format("at most {} pools", kMostPools));
  for (std::size_t i = 0; i < pools.size(); ++i) read_pool(source, i, pools[i], out);
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const At at = place_of(source, "job", i, jobs[i]);
    std::string name = text(at, jobs[i], "name");
    if (name.empty()) name = text(at, jobs[i], "model");
    if (name.empty()) at.refuse("\"name\" is missing");
    read_job(at, jobs[i], name, out);
  }
  return out;
}

void add_job(FleetFile& file, std::string_view line, std::int64_t number,
             const std::string& source) {
  const At at{fmt::format("{}: line {}", source, number)};
  Json object = Json::parse(line, nullptr, false);
  if (object.is_discarded()) at.refuse("not JSON");
  if (!object.is_object()) at.refuse("must be an object");
  std::string name = text(at, object, "name");
  if (const auto id = object.find("id"); id != object.end()) {
    if (name.empty())
      name = reports::printable(id->is_string() ? id->get<std::string>() : shown(*id));
    object.erase("id");
  }
  read_job(at, object, name.empty() ? fmt::format("line {}", number) : name, file);
}

void check_fleet(const FleetFile& file, const std::string& source) {
  const At at{source};
  std::set<std::string> pools, jobs;
  for (const reports::FleetPool& pool : file.fleet.pools)
    if (!pools.insert(pool.name).second) at.refuse(fmt::format("two pools '{}'", pool.name));
  if (file.fleet.jobs.empty()) at.refuse("no jobs: \"jobs\", or QUERIES.jsonl with a job a line");
  for (const reports::FleetJob& job : file.fleet.jobs)
    if (!jobs.insert(job.name).second)
      at.refuse(fmt::format("two jobs '{}' (\"count\" is for equal ones)", job.name));
  check(file.fleet.jobs_in_all() <= kMostJobs, ErrorKind::bad_input,
        [&] { return fmt::format("{}: at most {} jobs in all", source, kMostJobs); });
  const std::vector<std::string_view> names(pools.begin(), pools.end());
  for (std::size_t j = 0; j < file.of_job.size(); ++j)
    for (const std::string& pool : file.of_job[j].pools)
      if (!pools.contains(pool)) {
        const std::string near = nearest(pool, names);
        at.refuse(fmt::format("job '{}': there is no pool '{}'{}", file.fleet.jobs[j].name, pool,
                              near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
      }
}

std::vector<std::int64_t> usual_sizes(const reports::FleetPool& pool) {
  constexpr std::int64_t kMostUsual = 64;
  const std::int64_t most =
      std::min(kMostUsual, pool.price ? pool.most_gpus.value_or(kMostUsual) : pool.gpus);
  std::vector<std::int64_t> sizes;
  for (std::int64_t n = 1; n < pool.gpus_per_node && n <= most; n *= 2) sizes.push_back(n);
  for (std::int64_t n = pool.gpus_per_node; n <= most; n *= 2) sizes.push_back(n);
  return sizes;
}

}  // namespace plimsoll::tools
