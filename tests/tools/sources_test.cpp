#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/scratch_folder.h"
#include "tools/cli/gpu_source.h"
#include "tools/cli/model_source.h"
#include "tools/cli/output.h"

using namespace plimsoll;
using namespace plimsoll::tools;
using plimsoll::test::ScratchFolder;
namespace fs = std::filesystem;

namespace {
std::string content(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

constexpr std::string_view kTiny =
    R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16})";
}  // namespace

TEST_CASE("a hub id is found in the cache through its reference to a revision") {
  const ScratchFolder cache;
  CHECK(cached_config(cache.path(), "org/name") == fs::path());
  cache.write("models--org--name/refs/main", "abc123\n");
  CHECK(cached_config(cache.path(), "org/name") == fs::path());
  cache.write("models--org--name/snapshots/abc123/config.json", kTiny);
  CHECK(cached_config(cache.path(), "org/name") ==
        cache.path() / "models--org--name/snapshots/abc123/config.json");
}

TEST_CASE("a reference cannot lead out of the cache") {
  const ScratchFolder cache;
  cache.write("models--org--name/refs/main", "../../../secret");
  cache.write("secret/config.json", kTiny);
  CHECK(cached_config(cache.path(), "org/name") == fs::path());
}

TEST_CASE("a model is read from a file and from its folder, once, with sorted keys") {
  const ScratchFolder folder;
  folder.write("config.json", kTiny);
  ModelSource source;
  const auto model = source.load((folder.path() / "config.json").string(), "");
  CHECK(model->spec.model_type == "gpt2");
  CHECK(model->config ==
        R"({"model_type":"gpt2","n_embd":8,"n_head":2,"n_layer":1,"vocab_size":16})");
  CHECK(source.load(folder.path().string(), "")->spec.parameter_count() ==
        model->spec.parameter_count());
  CHECK(source.load((folder.path() / "config.json").string(), "") == model);
}

TEST_CASE("the local GPU is read from the driver's files and found under its own name") {
  const ScratchFolder driver;
  CHECK(!local_gpu(driver.path().string(), "/nonexistent"));
  CHECK(!local_gpu((driver.path() / "gone").string(), "/nonexistent"));
  driver.write("0000:65:00.0/information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 24\n");
  driver.write("0000:b3:00.0/information", "Model: \t\t Tesla T4\n");
  CHECK(local_gpu(driver.path().string()) == "NVIDIA H200");
  CHECK(gpu_by_driver_name("NVIDIA H200")->name == "h200-sxm-141gb");
  CHECK(gpu_by_driver_name("Tesla T4")->name == "t4");
  CHECK(!gpu_by_driver_name("NVIDIA H900"));
}

TEST_CASE("a driver that does not know its card's name names none") {
  const auto read = [](std::string_view information) {
    const ScratchFolder driver;
    driver.write("0000:65:00.0/information", information);
    return local_gpu(driver.path().string(), "/nonexistent");
  };
  CHECK(read("Model: NVIDIA L4") == "NVIDIA L4");  // no line end behind it
  CHECK(read("IRQ: 24\nModel:\tTesla T4\n") == "Tesla T4");
  for (const char* text : {"", "IRQ: 24\n", "Model:", "Model: \t", "Model: Unknown\n", "Model: \n"})
    CHECK_MESSAGE(!read(text), text);
}

TEST_CASE("nvidia-smi is asked only where there is a GPU without the driver's files") {
  const ScratchFolder folder;
  folder.write("nvidia-smi", "#!/bin/sh\necho NVIDIA L40S\necho NVIDIA T4\n");
  ::chmod((folder.path() / "nvidia-smi").c_str(), 0755);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (folder.path().string() + ":" + path).c_str(), 1);
  CHECK(!local_gpu("/nonexistent", "/nonexistent"));
  CHECK(local_gpu("/nonexistent", "/dev/null") == "NVIDIA L40S");
  folder.write("nvidia-smi", "#!/bin/sh\necho no driver\nexit 9\n");
  CHECK(!local_gpu("/nonexistent", "/dev/null"));
  ::setenv("PATH", path.c_str(), 1);
}

TEST_CASE("a file appears whole or not at all") {
  const ScratchFolder folder;
  const fs::path path = folder.path() / "plan.json";
  folder.write("plan.json", "old");
  {
    AtomicFile file(path.string());
    file.write("half of the new");
    CHECK(content(path) == "old");
  }
  CHECK(content(path) == "old");
  AtomicFile file(path.string());
  file.write("new");
  file.commit();
  CHECK(content(path) == "new");
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // nothing is left behind
}

TEST_CASE("writing through a link keeps the link, and an old file's permissions stay") {
  const ScratchFolder folder;
  folder.write("target.json", "old");
  ::chmod((folder.path() / "target.json").c_str(), 0600);
  fs::create_symlink("target.json", folder.path() / "link.json");
  AtomicFile file((folder.path() / "link.json").string());
  file.write("new");
  file.commit();
  CHECK(fs::is_symlink(folder.path() / "link.json"));
  CHECK(content(folder.path() / "target.json") == "new");
  CHECK((fs::status(folder.path() / "target.json").permissions() & fs::perms::all) ==
        (fs::perms::owner_read | fs::perms::owner_write));
}

TEST_CASE("a full disk and a folder that is not there are errors with the file's name") {
  const auto message = [](const std::string& path) -> std::string {
    try {
      AtomicFile file(path);
      file.write("x");
      file.commit();
    } catch (const Error& error) {
      const bool full = path == "/dev/full";
      CHECK(error.kind() == (full ? ErrorKind::internal : ErrorKind::bad_input));
      return error.message();
    }
    return "";
  };
  CHECK(message("/dev/full") == "--json /dev/full: cannot be written: No space left on device");
  CHECK(message("/nonexistent/x.json").starts_with("--json /nonexistent/x.json: cannot be"));
  CHECK(message("/dev/null") == "");
}

// Letters, digits, '-', '_' and '.', one slash inside, no dot in front of either part
// (huggingface_hub, validate_repo_id).
TEST_CASE("what the hub does not allow in an id is not looked for in its cache") {
  ModelSource source;
  const auto said = [&](const std::string& name) -> std::string {
    try {
      (void)source.load(name, "");
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  const auto is_looked_for = [&](const std::string& name) {
    return said(name).find("Hugging Face cache") != std::string::npos;
  };
  for (const char* id : {"org/name", "a-b_c.d/E9.z", "0/1"}) CHECK_MESSAGE(is_looked_for(id), id);
  for (const char* id : {"o$g/name", "org/na me", "org/{", "org/`x", "org/[a]", "org/@a", "o/r/g",
                         "/name", "org/", ".org/name", "org/.name", "name"})
    CHECK_MESSAGE(!is_looked_for(id), id);
}
