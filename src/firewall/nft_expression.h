// One expression of an nf_tables rule.
#pragma once

#include "firewall/attributes.h"
#include "firewall/rules.h"

namespace accel::firewall {

/// `name` and `data` as in NFTA_EXPR_NAME and NFTA_EXPR_DATA. A name that is not known refuses.
Expression expression_of(const std::string& name, View data);
/// An extension of xtables, matches and targets alike: those that keep a state for other rules refuse.
Expression extension_effect(Expression e);
/// Reads the content of NFTA_DATA_VERDICT.
Verdict verdict_of(View attributes);

}  // namespace accel::firewall
