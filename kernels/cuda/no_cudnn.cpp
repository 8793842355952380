// In the place of cuDNN's attention where the build found no cuDNN.
#include "kernels/cuda/attention_library.h"

namespace plimsoll::kernels::cuda {

std::unique_ptr<AttentionLibrary> cudnn_attention() {
  fail(ErrorKind::unsupported,
       "this build has no cuDNN: cudnn.h and libcudnn were not found beside the CUDA toolkit");
}

}  // namespace plimsoll::kernels::cuda
