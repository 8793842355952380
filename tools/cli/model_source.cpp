#include "tools/cli/model_source.h"

#include <fmt/format.h>

#include <cstdlib>

#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"
#include "tools/cli/layers_json.h"
#include "tools/hub/hub.h"

namespace plimsoll::tools {

namespace fs = std::filesystem;

namespace {
constexpr std::int64_t kMostConfigBytes = 64 << 20;

// "org/name", as the hub allows it.
bool is_hub_id(const std::string& name) {
  const std::size_t slash = name.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == name.size()) return false;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' ||
                         (c == '/' && i == slash);
    if (!allowed) return false;
  }
  return name[0] != '.' && name[slash + 1] != '.';
}

std::string canonical(const std::string& text, const std::string& source) {
  return models::Config::parse(text, source).dump();
}

LoadedModel from_catalog(const models::CatalogEntry& entry, const models::ReadOptions& options) {
  const std::string source = "catalog entry " + entry.name;
  return {.spec = models::read_model(entry.config, entry.name, source, options),
          .config = canonical(entry.config, source)};
}

LoadedModel from_path(const fs::path& path, const models::ReadOptions& options) {
  LoadedModel model{.spec = models::model_from_path(path, options)};
  std::error_code error;
  const std::string file = (fs::is_directory(path, error) ? path / "config.json" : path).string();
  model.config = canonical(models::read_text_file(file, kMostConfigBytes), file);
  return model;
}

// The hub itself, where the cache has it not.
LoadedModel from_hub(const Hub& hub, const std::string& id, const models::ReadOptions& options) {
  const HubModel found = fetch_model(hub, id);
  LoadedModel model{
      .spec = models::read_model(found.config, id, found.source, options),
      .config = canonical(found.config, found.source),
      .note = fmt::format("{}: config.json{} read from {}", id,
                          found.checkpoint ? " and the weights' headers" : "", hub.endpoint)};
  if (found.checkpoint) models::compare_with_checkpoint(model.spec, *found.checkpoint);
  return model;
}

std::string shown(const std::string& name) {
  return shortened(name, 100);
}

[[noreturn]] void refuse_model(const std::string& name) {
  const std::string near = models::nearest_model(name);
  const std::string hint = near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
  const bool path_like = name.ends_with(".json") || name.starts_with('/') || name.starts_with('.');
  if (path_like) fail(ErrorKind::bad_input, fmt::format("{}: no such file or folder", shown(name)));
  if (is_hub_id(name))
    fail(ErrorKind::bad_input,
         fmt::format("model '{}' is not in the catalog, not a path, and not in the Hugging Face "
                     "cache {}{} (HF_HUB_OFFLINE: nothing is asked of the hub)",
                     shown(name), hub_cache().string(), hint));
  fail(ErrorKind::bad_input,
       fmt::format("model '{}' is not in the catalog (plimsoll models) and not a path{}",
                   shown(name), hint));
}
}  // namespace

fs::path hub_cache() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string path = variable("HF_HUB_CACHE"); !path.empty()) return path;
  return hub_home() / "hub";
}

fs::path cached_config(const fs::path& cache, const std::string& hub_id) {
  std::string folder = "models--" + hub_id;
  folder.replace(folder.find('/'), 1, "--");
  std::error_code error;
  const fs::path reference = cache / folder / "refs" / "main";
  if (!fs::is_regular_file(reference, error)) return {};
  std::string revision = models::read_text_file(reference.string(), 1024);
  while (!revision.empty() && static_cast<unsigned char>(revision.back()) <= ' ')
    revision.pop_back();
  if (revision.empty() || revision.find_first_of("/.") != std::string::npos) return {};
  const fs::path config = cache / folder / "snapshots" / revision / "config.json";
  return fs::is_regular_file(config, error) ? config : fs::path();
}

std::shared_ptr<const LoadedModel> ModelSource::load(const std::string& name,
                                                     const std::string& assume) {
  auto& slot = loaded_[{name, assume}];
  if (slot) return slot;
  const models::ReadOptions options{.assume = assume};
  std::error_code error;
  LoadedModel model;
  // A name alone is the catalog's; with a slash it is a path or a hub id first.
  const auto entry = models::find_catalog_entry(name);
  if (entry && name.find('/') == std::string::npos) {
    model = from_catalog(*entry, options);
  } else if (!name.empty() && fs::exists(name, error)) {
    model = from_path(name, options);
  } else if (const fs::path config =
                 is_hub_id(name) ? cached_config(hub_cache(), name) : fs::path();
             !config.empty()) {
    model = from_path(config, options);
    model.spec.name = name;
  } else if (entry) {
    model = from_catalog(*entry, options);
    model.note = fmt::format("{}: the catalog's config of {} is taken", name, entry->name);
  } else {
    const Hub hub = is_hub_id(name) ? hub_from_environment() : Hub{.offline = true};
    if (hub.offline) refuse_model(name);
    if (const auto failed = failed_.find(name); failed != failed_.end())
      throw Error(failed->second);
    try {
      model = from_hub(hub, name, options);
    } catch (const Error& refusal) {
      failed_.emplace(name, refusal);
      throw;
    }
  }
  slot = std::make_shared<const LoadedModel>(std::move(model));
  return slot;
}

void ModelSource::add(const std::string& name, const std::string& config) {
  loaded_[{name, ""}] = std::make_shared<const LoadedModel>(LoadedModel{
      .spec = models::read_model(config, name, name), .config = canonical(config, name)});
}

std::shared_ptr<const LoadedModel> with_dropout(const LoadedModel& model, const std::string& assume,
                                                double rate) {
  const models::ReadOptions options{.assume = assume};
  const models::DropoutKeys keys = models::dropout_keys(model.config, model.spec.name, options);
  check(rate == 0 || !keys.names.empty(), ErrorKind::bad_input, [&] {
    return fmt::format("--dropout {}: {} ({}) has no dropout in Transformers", rate,
                       model.spec.name, model.spec.model_type);
  });
  LoadedModel out = model;
  out.config = config_with_dropout(model.config, keys, rate);
  out.spec = models::read_model(out.config, model.spec.name, model.spec.name, options);
  out.spec.notes = model.spec.notes;  // of the checkpoint beside it too
  return std::make_shared<const LoadedModel>(std::move(out));
}

std::shared_ptr<const LoadedModel> with_task(std::shared_ptr<const LoadedModel> model,
                                             const std::string& assume, const std::string& task) {
  const models::ModelSpec& spec = model->spec;
  const bool classifies = spec.architecture.ends_with("ForSequenceClassification");
  const bool masked = spec.architecture.ends_with("ForMaskedLM");
  const bool has_it = task == "classification" ? classifies
                      : task == "mlm"          ? masked
                                               : !classifies && !masked;
  if (has_it) return model;
  const std::string name = task == "classification" ? models::classifier_of(spec.model_type) : "";
  check(!name.empty(), ErrorKind::bad_input, [&] {
    return fmt::format(
        "--task {}: {} is {}{}", task, spec.name, spec.architecture,
        task == "classification" ? ", and Transformers has no classifier of it" : "");
  });
  LoadedModel out = *model;
  const models::ReadOptions options{.assume = assume};
  out.config = config_with_architecture(model->config, name);
  out.spec = models::read_model(out.config, spec.name, spec.name, options);
  out.spec.notes = spec.notes;  // of the checkpoint beside it too
  return std::make_shared<const LoadedModel>(std::move(out));
}

}  // namespace plimsoll::tools
