// The names of the sites of ops.hpp, for reports and schedules.
#include "model/core/ops.hpp"

namespace assay {

const char* site_name(Site site) {
  switch (site) {
    case Site::kNone:
      return "None";
#define ASSAY_SITE(name) \
  case Site::k##name:    \
    return #name;
#include "model/core/sites.def"
#undef ASSAY_SITE
  }
  return "unknown site";
}

}  // namespace assay
