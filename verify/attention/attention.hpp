// Conformance of attention kernels. Read in this order:
//   cases.hpp     a problem as one line of text, and the memory it stands for
//   subject.hpp   what can be tested; plugin.hpp for shared libraries, device_subject.hpp for our
//                 kernels on a GPU, long.hpp for their problems of 65536 keys
//   judge.hpp     one answer against a profile: bits, decisions, near-ties, whose bits they are
//   property.hpp  what a kernel owes its caller, and which profiles violate it by design
//   mutants.hpp   wrong kernels, each with the property that must catch it
//   suite.hpp     the table of properties and profiles; a subject held to its profile's promises
// A new property is an entry in one of values.cpp, extremes.cpp, layout.cpp, heads.cpp,
// decisions.cpp and thresholds.cpp; a new kind of subject one class and a line in subject.cpp.
// Decides nothing itself: SPEC VER-21 to VER-24.
#pragma once

#include "verify/attention/cases.hpp"
#include "verify/attention/judge.hpp"
#include "verify/attention/mutants.hpp"
#include "verify/attention/plugin.hpp"
#include "verify/attention/property.hpp"
#include "verify/attention/subject.hpp"
#include "verify/attention/suite.hpp"
