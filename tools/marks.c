/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/marks.h"

#include <string.h>

const char *const kvs_mark_fault_name[KVS_MARK_FAULTS] = {
	[KVS_MARK_FOREIGN] = "foreign",
	[KVS_MARK_MOVED] = "moved",
	[KVS_MARK_CHANGED] = "changed",
};

struct mark {
	uint64_t run;
	uint64_t where; /* room, place */
};

static struct mark mark_of(uint64_t run, uint32_t room, uint32_t at)
{
	return (struct mark){ run, (uint64_t)room << 32 | at };
}

void kvs_marks_fill(void *buf, size_t len, uint64_t run, uint32_t room,
		    uint32_t at)
{
	unsigned char *p = buf;
	size_t n;

	for (; len; len -= n, p += n, at++) {
		struct mark m = mark_of(run, room, at);

		n = len < sizeof(m) ? len : sizeof(m);
		memcpy(p, &m, n);
	}
}

static enum kvs_mark_fault fault_of(const struct mark *have, size_t n,
				    uint64_t run, uint32_t room)
{
	if (n < sizeof(*have) || have->run != run)
		return KVS_MARK_CHANGED;
	return have->where >> 32 == room ? KVS_MARK_MOVED : KVS_MARK_FOREIGN;
}

uint64_t kvs_marks_check(const void *buf, size_t len, uint64_t run,
			 uint32_t room, uint32_t at,
			 struct kvs_marks_found *found)
{
	const unsigned char *p = buf;
	uint64_t before = 0, after = 0;
	size_t n;

	for (unsigned int i = 0; i < KVS_MARK_FAULTS; i++)
		before += found->faults[i];
	after = before;
	for (; len; len -= n, p += n, at++) {
		struct mark want = mark_of(run, room, at), have = { 0 };
		enum kvs_mark_fault f;

		n = len < sizeof(want) ? len : sizeof(want);
		found->marks++;
		if (!memcmp(p, &want, n))
			continue;
		memcpy(&have, p, n);
		f = fault_of(&have, n, run, room);
		if (!after) {
			found->first = f;
			found->first_at = at;
			found->first_room = (uint32_t)(have.where >> 32);
		}
		found->faults[f]++;
		after++;
	}
	return after - before;
}
