// An attention kernel in a shared library. Decides how a problem is handed over and what is looked
// at besides its values: every output lies between guards and arrives as poison (SPEC VER-22.5).
#pragma once

#include <memory>
#include <string>

#include "verify/attention/subject.hpp"
#include "verify/subject/attention_subject.h"

namespace assay::verify {

// Opens the library and asks it for its table. Errors: the loader's own words, a library without
// the entry point, another version, a table that is too small or has no function.
Expected<std::unique_ptr<AttentionSubject>> load_attention_plugin(const std::string& file);

// A table that outlives the subject, under the name that reports print.
Expected<std::unique_ptr<AttentionSubject>> wrap_attention_table(
    const assay_attention_subject* table, std::string spec);

}  // namespace assay::verify
