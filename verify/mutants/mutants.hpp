// Wrong kernels, on purpose: the bodies with one realistic fault each, as subjects. A conformance
// suite that does not catch them all is no suite. Each mutant is a file NAME.mutant beside this
// one; make_mutant.py turns it into code. Decides which faults exist and which check must name
// each.
#pragma once

#include <span>

#include "verify/subject/subject.h"

namespace assay::verify {

struct Mutant {
  const char* name;       // "dedup_keeps_last"
  const char* title;      // a sentence
  const char* clause;     // of model/SPEC.md that it breaks
  const char* caught_by;  // name of the check that must report it, e.g. "dispatch.targets"
  const char* needs;      // what a case must have for the fault to matter; may be empty
  const assay_subject* subject;
};

std::span<const Mutant> mutants();  // by name, ascending

}  // namespace assay::verify
