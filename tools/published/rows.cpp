#include "tools/published/rows.h"

#include <algorithm>
#include <filesystem>

#include "models/base/error.h"
#include "models/json_reader.h"

namespace plimsoll::tools {

std::string PublishedRow::command() const {
  std::string text = "plimsoll fit " + model + (config.empty() ? "" : ".json");
  for (const auto& [name, value] : options.given())
    text += " --" + name + (value.empty() ? "" : " " + value);
  return text;
}

std::size_t PublishedDocument::figures() const {
  std::size_t count = rows.size();
  for (const auto& [why, left] : left_out) count += static_cast<std::size_t>(left);
  return count;
}

std::vector<PublishedDocument> published_documents(const std::string& folder) {
  if (folder.empty())
    return {read_published(published_memory_text(), "memory"),
            read_published(published_throughput_text(), "throughput")};
  constexpr std::int64_t kMostBytes = 64 << 20;
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  check(!error && !files.empty(), ErrorKind::bad_input,
        folder + ": no folder with documents of published figures (*.json)");
  std::ranges::sort(files);
  std::vector<PublishedDocument> documents;
  for (const std::filesystem::path& file : files)
    documents.push_back(
        read_published(models::read_text_file(file.string(), kMostBytes), file.stem().string()));
  return documents;
}

}  // namespace plimsoll::tools
