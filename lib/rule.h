/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DOC: rules
 *
 * KVS_RULE(R4, OUTSTANDING) stands where the code keeps a safety rule of
 * kvstage-safety(7). It is the constant true, and nothing of it is left in
 * the program. In a build with the CMake option KVS_MUTATE it is false while
 * the environment's KVS_MUTATE_OFF names the rule ("R4") or the place
 * ("R4_OUTSTANDING"), several separated by commas: tests/mutate shows with it
 * that each claim test fails without the rule it is about. Such a build
 * cannot be a release.
 */
#ifndef KVS_LIB_RULE_H
#define KVS_LIB_RULE_H

#include <stdbool.h>
#include <stdint.h>

#define KVS_RULE_AT(rule, place, text) KVS_RULE_##rule##_##place,
enum kvs_rule {
#include "lib/rule.def"
	KVS_RULE_MAX
};
#undef KVS_RULE_AT

#ifdef KVS_MUTATE
#ifdef NDEBUG
#error "KVS_MUTATE takes safety rules out: not in a release build"
#endif
/* bit of each place that is switched off; constant after start */
extern uint64_t kvs_rules_off;
/* Take a rule or a place out, by name: 0, -1 there is none such. */
int kvs_rule_off(const char *name);
#define KVS_RULE(rule, place) \
	(!(kvs_rules_off >> KVS_RULE_##rule##_##place & 1))
#else
#define KVS_RULE(rule, place) ((void)KVS_RULE_##rule##_##place, true)
#endif

#endif /* KVS_LIB_RULE_H */
