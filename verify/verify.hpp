// Start here: does a subject (a kernel under test) agree with the model? A subject gets rounds of
// one-sided dispatch and combine; its bytes are compared with the only legal ones; what differs is
// a Mismatch with domain coordinates, never an error. Read in this order:
//
//   subject/subject.h     what can be tested, as a C interface (simulated, CUDA, plugin library);
//                         subject/one_sided_kernels.h: GPU kernels alone
//   subject/subject.hpp   the same for C++: loading by name, ownership
//   subject/round.hpp     what a subject is given: a group and its rounds
//   subject/driver.hpp    runs rounds on a subject and checks everything it wrote
//   checks/checks.hpp     the checks, one file each, with the order in which they speak
//   compare/mismatch.hpp  what a check says
//   compare/report.hpp    how people and scripts read it: verdict, at most 40 lines, JSON, REPRO
//   gen/gen.hpp           cases into rounds; gen/cases.hpp: random cases and smaller ones
//   suites/suites.hpp     the axes under test as data; what each suite must have exercised
//   mutants/mutants.hpp   wrong kernels, and the check that must catch each
//   golden/golden.hpp     the legal output of one operation as a file; a file against it
//   CONTRACT.md           per output: bitwise, or equal as sets; variations allowed
//
//   auto subject = load_subject("sim");                          // or "plugin:libmine.so"
//   auto result = run_suite("dispatch", *subject, {.budget_seconds = 10, .seed = 1});
//   std::cout << to_text(result->report);                         // exit_code(report.verdict)
//
// The other way in, with rounds of one's own (a replayer):
//   auto driver = Driver::make(*subject, setup);                  // GroupSetup
//   auto outcome = driver->run(rounds);                           // span<const Round>
//
// This folder decides SPEC VER: verdicts, checks, reports. What the bytes must be is SPEC MOE.
#pragma once

#include "verify/checks/checks.hpp"
#include "verify/compare/mismatch.hpp"
#include "verify/compare/report.hpp"
#include "verify/gen/gen.hpp"
#include "verify/subject/driver.hpp"
#include "verify/subject/round.hpp"
#include "verify/subject/subject.hpp"
#include "verify/suites/suites.hpp"
