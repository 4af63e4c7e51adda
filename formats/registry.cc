#include "formats/format.h"
