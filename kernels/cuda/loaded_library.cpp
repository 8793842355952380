#include "kernels/cuda/loaded_library.h"

#include <dlfcn.h>

#include <string>

#include "models/base/error.h"

namespace plimsoll::kernels::cuda {

void* LoadedLibrary::find(const char* name) const {
  const auto reason = [] {
    const char* text = ::dlerror();
    return std::string(text == nullptr ? "no reason is given" : text);
  };
  void* library = ::dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL);
  check(library != nullptr, ErrorKind::device,
        [&] { return file_ + " cannot be loaded: " + reason(); });
  void* function = ::dlsym(library, name);
  check(function != nullptr, ErrorKind::device,
        [&] { return std::string(name) + " is not in " + file_ + ": " + reason(); });
  return function;
}

}  // namespace plimsoll::kernels::cuda
