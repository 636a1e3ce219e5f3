/* SPDX-License-Identifier: Apache-2.0 */
/* Only in a build with KVS_MUTATE. */
#include "lib/rule.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(KVS_RULE_MAX <= 64, "one bit each");

uint64_t kvs_rules_off;

static const struct {
	const char *rule;
	const char *place;
} rules[] = {
#define KVS_RULE_AT(r, p, text) { #r, #r "_" #p },
#include "lib/rule.def"
#undef KVS_RULE_AT
};

int kvs_rule_off(const char *name)
{
	uint64_t bits = 0;

	for (int i = 0; i < KVS_RULE_MAX; i++)
		if (!strcmp(name, rules[i].rule) ||
		    !strcmp(name, rules[i].place))
			bits |= 1ull << i;
	kvs_rules_off |= bits;
	return bits ? 0 : -1;
}

/* Before main(), and before any thread. */
__attribute__((constructor)) static void read_environment(void)
{
	const char *env = getenv("KVS_MUTATE_OFF");
	char *names, *rest, *name;

	if (!env || !*env)
		return;
	names = rest = strdup(env);
	while ((name = names ? strsep(&rest, ",") : NULL)) {
		if (!kvs_rule_off(name))
			continue;
		/* a name that switches nothing would pass as a rule kept */
		fprintf(stderr, "KVS_MUTATE_OFF: no rule %s\n", name);
		_Exit(2);
	}
	if (!names)
		_Exit(2);
	free(names);
	fprintf(stderr, "KVS_MUTATE_OFF: %s taken out\n", env);
}
