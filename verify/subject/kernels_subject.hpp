// Somebody's one-sided kernels (one_sided_kernels.h) as a subject: one thread, stream and window
// per rank, every rank on a GPU of its own or all of them on one. Decides what Assay does around
// the kernels: copies, poison, canaries, waits with an end (SPEC CUD-5.5). Its options are
// kernels_options.hpp's. Exists only in builds with nvcc.
#pragma once

#include "verify/subject/kernels_library.hpp"
#include "verify/subject/subject.h"

namespace assay::verify {

// The table and the library live as long as the process. Error: a process holds one library, and
// has another.
Expected<const assay_subject*> kernels_subject(KernelsLibrary library);

}  // namespace assay::verify
