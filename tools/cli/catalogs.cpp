#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>

#include "models/base/utf8.h"
#include "models/gpu_catalog.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "models/trainers.h"
#include "reports/gpu_json.h"
#include "reports/json_writer.h"
#include "reports/text.h"
#include "tools/cli/catalog_fits.h"
#include "tools/cli/doors.h"
#include "tools/cli/output.h"

namespace plimsoll::tools {

namespace {
using reports::JsonWriter;
using reports::padded;
using reports::right;

struct ListedModel {
  models::CatalogEntry entry;
  models::ModelSpec spec;
};

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Whether letters and digits of `text` stand in one of the names, in whatever case and however they
// are separated ("phi3" in "Phi-3-mini").
bool is_found(const std::string* text, std::string_view name,
              std::span<const std::string> aliases) {
  if (text == nullptr) return true;
  const std::string wanted = folded(*text);
  const auto holds = [&](std::string_view one) {
    return folded(one).find(wanted) != std::string::npos;
  };
  return holds(name) || std::ranges::any_of(aliases, holds);
}

std::vector<ListedModel> found_models(const std::string* text) {
  std::vector<ListedModel> list;
  for (const std::string_view name : models::catalog_names()) {
    models::CatalogEntry entry = models::find_catalog_entry(name).value();
    if (is_found(text, entry.name, entry.aliases))
      list.push_back({std::move(entry), models::catalog_model(name)});
  }
  return list;
}

// "  also A, B" under a line of a search, so that one sees what was found.
std::string aliases_text(std::span<const std::string> aliases, const reports::Terminal& terminal) {
  if (aliases.empty()) return "";
  std::string text;
  for (const std::string& alias : aliases) text += (text.empty() ? "  also " : ", ") + alias;
  std::string out;
  for (const std::string& line : reports::wrapped(text, terminal.columns, "       "))
    out += line + "\n";
  return out;
}

// 1: nothing has that name.
int nothing_found(const std::string& text, const std::string& near) {
  say(fmt::format("nothing has '{}' in its names{}", shortened(text),
                  near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  return 1;
}

void begin_document(JsonWriter& json, std::string_view schema) {
  json.begin_object();
  json.member("schema", schema);
  json.key("tool");
  json.begin_object(JsonWriter::Layout::line);
  json.member("version", this_tool().version);
  json.member("commit", this_tool().commit);
  json.end_object();
}

std::vector<models::Gpu> found_gpus(const std::string* text) {
  std::vector<models::Gpu> gpus = models::all_gpus();
  std::erase_if(gpus, [&](const models::Gpu& gpu) {
    return !is_found(text, gpu.name, gpu.aliases) && !is_found(text, gpu.title, {});
  });
  return gpus;
}

// For a page: who trains on what (fits[model][way][gpu]).
struct Trains {
  std::vector<std::string> models;  // whose step is modelled
  std::vector<models::Gpu> gpus;  // the smallest first
  CatalogFits fits;
};

void write_ways(JsonWriter& json) {
  json.key("ways");
  json.begin_array();
  for (const WayToTrain& way : ways_to_train()) {
    json.begin_object(JsonWriter::Layout::line);
    json.member("name", way.name);
    json.member("options", options_text(way));
    json.end_object();
  }
  json.end_array();
}

// A list of names for each way.
template <class Fits>
void write_trains(JsonWriter& json, std::size_t count, Fits fits) {
  json.key("trains");
  json.begin_array();
  for (std::size_t way = 0; way < ways_to_train().size(); ++way) {
    json.begin_array(JsonWriter::Layout::line);
    for (std::size_t i = 0; i < count; ++i)
      if (const std::string* name = fits(way, i)) json.value(*name);
    json.end_array();
  }
  json.end_array();
}

// Of each GPU, the smallest first, the models that train on it, the smallest first.
void write_trains_on_gpus(JsonWriter& json, const Trains& trains) {
  json.key("models_of_gpus");
  json.begin_array();
  for (std::size_t gpu = 0; gpu < trains.gpus.size(); ++gpu) {
    json.begin_object();
    json.member("gpu", trains.gpus[gpu].name);
    write_trains(json, trains.models.size(), [&](std::size_t way, std::size_t model) {
      return trains.fits[model][way][gpu] ? &trains.models[model] : nullptr;
    });
    json.end_object();
  }
  json.end_array();
}

Trains trains_of(const std::vector<ListedModel>& list, std::vector<models::Gpu> gpus, bool quiet) {
  Trains out{.gpus = std::move(gpus)};
  std::ranges::stable_sort(out.gpus, {},
                           [](const models::Gpu& gpu) { return gpu.cuda_total.bytes; });
  std::vector<const ListedModel*> planned;
  for (const ListedModel& one : list)
    if (one.spec.decoder) planned.push_back(&one);
  std::ranges::stable_sort(planned, {},
                           [](const ListedModel* m) { return m->spec.parameter_count(); });
  for (const ListedModel* one : planned) out.models.push_back(one->entry.name);
  out.fits = catalog_fits(out.models, out.gpus, quiet);
  return out;
}

std::string models_document(const std::vector<ListedModel>& list, const Trains* trains = nullptr) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  begin_document(json, "plimsoll.models/1");
  if (trains) write_ways(json);
  json.key("models");
  json.begin_array();
  for (const auto& [entry, spec] : list) {
    json.begin_object(JsonWriter::Layout::line);
    json.member("name", entry.name);
    json.key("aliases");
    json.begin_array();
    for (const std::string& alias : entry.aliases) json.value(alias);
    json.end_array();
    json.member("model_type", spec.model_type);
    json.member("architecture", spec.architecture);
    json.member("parameters", spec.parameter_count());
    json.member("active_parameters", spec.active_parameter_count());
    json.member("max_positions", spec.max_positions > 0
                                     ? std::optional<std::int64_t>(spec.max_positions)
                                     : std::nullopt);
    json.member("step_program", spec.decoder.has_value());
    json.member("source", entry.source);
    if (trains && spec.decoder) {
      const auto model = static_cast<std::size_t>(std::ranges::find(trains->models, entry.name) -
                                                  trains->models.begin());
      write_trains(json, trains->gpus.size(), [&](std::size_t way, std::size_t gpu) {
        return trains->fits[model][way][gpu] ? &trains->gpus[gpu].name : nullptr;
      });
    }
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return text + "\n";
}

std::string models_table(const std::vector<ListedModel>& list, bool aliases,
                         const reports::Terminal& terminal) {
  std::string text = padded("NAME", 28) + "  " + padded("TYPE", 12) + right("PARAMETERS", 16) +
                     right("ACTIVE", 10) + right("CONTEXT", 10) + "\n";
  bool counts_only = false;
  for (const auto& [entry, spec] : list) {
    counts_only = counts_only || !spec.decoder;
    const std::string context =
        spec.max_positions > 0 ? std::to_string(spec.max_positions) : std::string("any");
    const Count active = spec.active_parameter_count();
    const std::string visited =
        active == spec.parameter_count() ? "all" : reports::short_count(active);
    const std::string mark = spec.decoder ? "  " : " *";
    text += padded(reports::clipped(entry.name, 28, terminal), 28) + mark +
            padded(reports::clipped(spec.model_type, 12, terminal), 12) +
            right(reports::grouped(spec.parameter_count()), 16) + right(visited, 10) +
            right(context, 10) + "\n";
    if (aliases) text += aliases_text(entry.aliases, terminal);
  }
  if (counts_only) text += "* counts and model states only\n";
  return text;
}

std::string gpus_document(const std::vector<models::Gpu>& gpus, const Trains* trains = nullptr) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  begin_document(json, "plimsoll.gpus/1");
  if (trains) write_ways(json);
  json.key("gpus");
  json.begin_array();
  for (const models::Gpu& gpu : gpus) reports::write_gpu(json, gpu);
  json.end_array();
  if (trains) write_trains_on_gpus(json, *trains);
  json.end_object();
  return text + "\n";
}

std::string gpus_table(const std::vector<models::Gpu>& gpus, bool aliases,
                       const reports::Terminal& terminal) {
  std::string text = padded("NAME", 30) + right("CAPACITY", 10) + right("BF16", 10) +
                     right("MEMORY", 11) + right("LINK", 10) + "\n" + padded("", 30) +
                     right("as CUDA", 10) + right("TFLOP/s", 10) + right("GB/s", 11) +
                     right("GB/s", 10) + "\n";
  bool assumed = false;
  for (const models::Gpu& gpu : gpus) {
    const bool guess = gpu.cuda_total.basis == "assumed";
    assumed = assumed || guess;
    const auto figure = [](std::optional<double> value, double unit) {
      return value ? fmt::format("{:.0f}", *value / unit) : std::string("-");
    };
    text += padded(reports::clipped(gpu.name, 30, terminal), 30) +
            right(reports::bytes_text(gpu.cuda_total.bytes), 10) + (guess ? "*" : " ") +
            right(figure(gpu.bf16_flops, 1e12), 9) + right(figure(gpu.memory_bandwidth, 1e9), 11) +
            right(figure(gpu.link_bandwidth, 1e9), 10) + "\n";
    if (aliases) text += aliases_text(gpu.aliases, terminal);
  }
  if (assumed) text += "* assumed: no figure from such a card was found\n";
  return text + "Peaks are dense; links count one direction of one GPU.\n";
}
std::string named(const models::Trainer& trainer) {
  return fmt::format("{}@{}", trainer.name, trainer.version);
}

std::vector<models::Trainer> found_trainers(const std::string* text) {
  std::vector<models::Trainer> found;
  for (const models::Trainer& trainer : models::trainers())
    if (is_found(text, named(trainer), {})) found.push_back(trainer);
  return found;
}

std::string trainers_document(const std::vector<models::Trainer>& list) {
  std::string text;
  JsonWriter json(text, JsonWriter::Style::pretty);
  begin_document(json, "plimsoll.trainers/1");
  json.key("trainers");
  json.begin_array();
  for (const models::Trainer& trainer : list) {
    json.begin_object();
    json.member("name", trainer.name);
    json.member("version", trainer.version);
    json.member("title", trainer.title);
    json.member("source", trainer.source);
    json.member("beside", trainer.beside);
    json.key("defaults");
    json.begin_array();
    for (const models::TrainerDefault& one : trainer.defaults) {
      json.begin_object(JsonWriter::Layout::line);
      json.member("option", one.option);
      json.member("value", one.value);
      json.member("source", one.source);
      if (one.base != models::TrainerBase::any) json.member("where", name_of(one.base));
      json.end_object();
    }
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return text + "\n";
}

std::string trainers_table(const std::vector<models::Trainer>& list,
                           const reports::Terminal& terminal) {
  std::string text;
  for (const models::Trainer& trainer : list) {
    text += fmt::format("{}{}: {}\n", text.empty() ? "" : "\n", named(trainer), trainer.title);
    const std::string from = fmt::format("  from {}", trainer.source);
    for (const std::string& line : reports::wrapped(from, terminal.columns, "    "))
      text += line + "\n";
    for (const models::TrainerDefault& one : trainer.defaults) {
      const std::string set = fmt::format("  --{} {}", one.option, one.value);
      const std::string where = one.base == models::TrainerBase::any
                                    ? std::string()
                                    : fmt::format("{}: ", name_of(one.base));
      for (std::string line :
           reports::wrapped(fmt::format("{}  ({}{})", padded(set, 34), where, one.source),
                            terminal.columns, "      ")) {
        line.erase(line.find_last_not_of(' ') + 1);  // of the padding, where its source wraps
        text += line + "\n";
      }
    }
    for (const std::string& line :
         reports::wrapped(fmt::format("  {}", trainer.beside), terminal.columns, "    "))
      text += line + "\n";
  }
  return text;
}
}  // namespace

std::string models_document(const Options& options) {
  return models_document(found_models(options.find("search")));
}

std::string gpus_document(const Options& options) {
  return gpus_document(found_gpus(options.find("search")));
}

int list_models(const CommandLine& line) {
  const std::string* text = line.options.find("search");
  const std::vector<ListedModel> list = found_models(text);
  std::optional<Trains> trains;
  if (line.options.has("html"))
    trains = trains_of(list, models::all_gpus(), line.options.has("quiet"));
  deliver(line.options,
          wants_document(line.options) ? models_document(list, trains ? &*trains : nullptr) : "",
          models_table(list, text != nullptr, standard_output_terminal()));
  return list.empty() ? nothing_found(*text, models::nearest_model(*text)) : 0;
}

int list_gpus(const CommandLine& line) {
  const std::string* text = line.options.find("search");
  const std::vector<models::Gpu> gpus = found_gpus(text);
  std::optional<Trains> trains;
  if (line.options.has("html"))
    trains = trains_of(found_models(nullptr), gpus, line.options.has("quiet"));
  deliver(line.options,
          wants_document(line.options) ? gpus_document(gpus, trains ? &*trains : nullptr) : "",
          gpus_table(gpus, text != nullptr, standard_output_terminal()));
  return gpus.empty() ? nothing_found(*text, "") : 0;
}

int list_trainers(const CommandLine& line) {
  const std::string* text = line.options.find("search");
  const std::vector<models::Trainer> list = found_trainers(text);
  deliver(line.options, line.options.has("json") ? trainers_document(list) : "",
          trainers_table(list, standard_output_terminal()));
  return list.empty() ? nothing_found(*text, "") : 0;
}

}  // namespace plimsoll::tools
