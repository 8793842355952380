// NVIDIA's large libraries are loaded when one of their functions is first called: a run on the
// host needs none of them, neither the files nor the address space for 800 MB.
#pragma once

#include <atomic>
#include <string>
#include <utility>

namespace plimsoll::kernels::cuda {

class LoadedLibrary {
 public:
  explicit LoadedLibrary(std::string file) : file_(std::move(file)) {}

  // The function's address. Error{device} with the loader's own words: the library or the function
  // is not there. It stays loaded until the process ends.
  void* find(const char* name) const;

 private:
  std::string file_;
};

template <class Function>
class LoadedFunction;

// Called like the function that `name` says.
template <class Result, class... Arguments>
class LoadedFunction<Result(Arguments...)> {
 public:
  LoadedFunction(const LoadedLibrary& library, const char* name) : library_(library), name_(name) {}

  Result operator()(Arguments... arguments) const {
    Function* function = function_.load(std::memory_order_acquire);
    if (function == nullptr) {  // several threads may find it at once, and find the same
      function = reinterpret_cast<Function*>(library_.find(name_));
      function_.store(function, std::memory_order_release);
    }
    return function(arguments...);
  }

 private:
  using Function = Result(Arguments...);
  const LoadedLibrary& library_;
  const char* name_;
  mutable std::atomic<Function*> function_{nullptr};
};

}  // namespace plimsoll::kernels::cuda
