#include "ckpt/version.h"

namespace ckpt {

const char* version() { return CKPT_VERSION; }

}  // namespace ckpt
