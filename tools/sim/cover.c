/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sim/cover.h"

#include <string.h>

#include "lib/assert.h"

#define KVS_NAME_(n, s) [SIM_EV_##n] = s,
const char *const sim_event_name[SIM_EV_MAX] = { SIM_EVENTS(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [SIM_FAULT_##n] = s,
const char *const sim_fault_name[SIM_FAULT_MAX] = { SIM_FAULTS(KVS_NAME_) };
#undef KVS_NAME_

const char *sim_state_name(unsigned int state)
{
	return state < KVS_ROOM_STATE_MAX ? kvs_room_state_name[state] : "gone";
}

void sim_cover_add(struct sim_cover *to, const struct sim_cover *from)
{
	uint64_t *a = (uint64_t *)to;
	const uint64_t *b = (const uint64_t *)from;

	_Static_assert(sizeof(*to) % sizeof(*a) == 0, "counters only");
	for (size_t i = 0; i < sizeof(*to) / sizeof(*a); i++)
		a[i] += b[i];
}

#define ST(n) (1u << KVS_ROOM_##n)
#define GONE (1u << SIM_STATE_GONE)
#define ALL ((GONE << 1) - 1)
#define BEFORE_GRANT (ST(WAITING) | ST(ADMITTED))
#define LIVE                                                        \
	(ST(WAITING) | ST(ADMITTED) | ST(RECEIVING) | ST(SEALING) | \
	 ST(READY) | ST(COMMITTING))

/*
 * Pairs that no schedule has to show, and why. Whatever shows one all the same
 * prints its count: the table excuses, it does not forbid.
 */
static const struct {
	enum sim_event event; /* SIM_EV_MAX: all of them */
	unsigned int states;
	const char *why;
} never[] = {
	{ SIM_EV_MAX, ST(DONE), "passed through within one call" },
	{ SIM_EV_MEMORY, ALL & ~ST(WAITING), "only who waits for it asks" },
	{ SIM_EV_NO_MEMORY, ALL & ~ST(WAITING), "only who waits for it asks" },
	{ SIM_EV_LOAN, ALL & ~ST(ADMITTED), "only what is on loan" },
	{ SIM_EV_OPEN, ST(SEALING),
	  "a second OPEN, and that while grants are closing" },
	{ SIM_EV_OPEN, ST(QUARANTINED),
	  "a second OPEN, and that hold.timeout later" },
	{ SIM_EV_CHUNK, BEFORE_GRANT, "nobody was granted anything" },
	{ SIM_EV_CHUNK_END, BEFORE_GRANT, "nobody was granted anything" },
	{ SIM_EV_CHUNK_BROKEN, BEFORE_GRANT, "nobody was granted anything" },
	{ SIM_EV_WRITTEN, BEFORE_GRANT, "nobody was granted anything" },
	{ SIM_EV_LAST, BEFORE_GRANT, "nobody was granted anything" },
	{ SIM_EV_SENDER_ABORT, BEFORE_GRANT,
	  "a rank without a grant withdraws by REFUSE" },
	{ SIM_EV_CHUNK,
	  ST(SEALING) | ST(READY) | ST(COMMITTING) | ST(QUARANTINED),
	  "every byte has come before" },
	{ SIM_EV_CHUNK_END,
	  ST(SEALING) | ST(READY) | ST(COMMITTING) | ST(QUARANTINED) | ST(FREE),
	  "a receive is a party: its room is not sealed, and not free" },
	{ SIM_EV_CHUNK_BROKEN,
	  ST(SEALING) | ST(READY) | ST(COMMITTING) | ST(QUARANTINED) | ST(FREE),
	  "a receive is a party: its room is not sealed, and not free" },
	{ SIM_EV_CHUNK, ST(FREE), "its room is gone with the turn" },
	{ SIM_EV_CHUNK_END, ST(DRAINING),
	  "comes by itself in the very turn that stops it" },
	{ SIM_EV_WRITTEN, ST(QUARANTINED), "every byte has come before" },
	{ SIM_EV_WRITTEN, ST(SEALING), "a second report" },
	{ SIM_EV_WRITTEN, ST(READY) | ST(COMMITTING) | ST(FREE) | GONE,
	  "reported with the bytes, which land while the grant is open; and a "
	  "second report, that much later" },
	{ SIM_EV_LAST, ST(QUARANTINED) | ST(COMMITTING),
	  "a second LAST, and that after a claim" },
	{ SIM_EV_GRANT_OPEN, ALL & ~(ST(RECEIVING) | ST(DRAINING)),
	  "asked for when a rank opens; a party from then on" },
	{ SIM_EV_GRANT_NONE, ALL & ~(ST(RECEIVING) | ST(DRAINING)),
	  "asked for when a rank opens; a party from then on" },
	{ SIM_EV_GRANT_CLOSED, ALL & ~(ST(SEALING) | ST(DRAINING)),
	  "closed to seal, or to drain" },
	{ SIM_EV_GRANT_TORN, ALL & ~(ST(SEALING) | ST(DRAINING)),
	  "closed to seal, or to drain" },
	{ SIM_EV_GRANT_DOUBT, ALL & ~(ST(SEALING) | ST(DRAINING)),
	  "closed to seal, or to drain" },
	{ SIM_EV_SENDER_ABORT, ST(QUARANTINED),
	  "what is quarantined was committed, its ranks are long done" },
	{ SIM_EV_ACK, LIVE | ST(QUARANTINED),
	  "nobody was asked; a room with ranks to ask can be revoked" },
	{ SIM_EV_NAK, LIVE | ST(QUARANTINED),
	  "nobody was asked; a room with ranks to ask can be revoked" },
	{ SIM_EV_NAK, ST(FREE), "two answers to one ABORT within one turn" },
	{ SIM_EV_REFUSE, ST(SEALING) | ST(READY) | ST(COMMITTING),
	  "a rank that is done refuses nothing" },
	{ SIM_EV_REFUSE, ST(QUARANTINED) | ST(FREE) | GONE,
	  "withdrawn while its room ends, twice by chance" },
	{ SIM_EV_SESSION_LOST, ST(ADMITTED), "no rank has opened it" },
	{ SIM_EV_CONN_LOST, ST(ADMITTED), "no rank has opened it" },
	{ SIM_EV_SESSION_LOST, GONE, "counted by room" },
	{ SIM_EV_CONN_LOST, GONE, "counted by room" },
	{ SIM_EV_COMMIT, LIVE & ~ST(READY), "an engine commits what is READY" },
	{ SIM_EV_COMMIT, ST(DRAINING) | ST(QUARANTINED) | ST(FREE),
	  "a READY room has no party, and is gone with the turn" },
	{ SIM_EV_COMMITTED, ALL & ~ST(COMMITTING),
	  "only its engine ends a copying room, and says COPY_OVER then" },
	{ SIM_EV_COPY_FAILED, ALL & ~ST(COMMITTING),
	  "only its engine ends a copying room, and says COPY_OVER then" },
	{ SIM_EV_COPY_OVER, LIVE, "said of a room that has failed" },
	{ SIM_EV_COPY_OVER, ST(FREE), "the copy is a party" },
	{ SIM_EV_ENGINE_ABORT, ST(QUARANTINED),
	  "its engine has aborted it, or is gone" },
	{ SIM_EV_ENGINE_EXIT, LIVE, "the end of file came before" },
	{ SIM_EV_ENGINE_LOST, GONE, "counted by room" },
	{ SIM_EV_ENGINE_EXIT, GONE, "counted by room" },
	{ SIM_EV_DEADLINE, ST(COMMITTING), "a copy has none" },
	{ SIM_EV_DEADLINE, ST(QUARANTINED), "no rank is left to ask again" },
	{ SIM_EV_DEADLINE, ST(FREE), "asked again and over within one turn" },
	{ SIM_EV_DEADLINE, GONE, "cancelled" },
	{ SIM_EV_HOLD, ALL & ~ST(DRAINING), "runs while a drain is armed" },
	{ SIM_EV_SHUTDOWN, ST(FREE), "deleted at the end of a turn" },
	{ SIM_EV_SHUTDOWN, ST(QUARANTINED), "two rare faults at once" },
	{ SIM_EV_SHUTDOWN, GONE, "counted by room" },
	{ SIM_EV_END, ST(SEALING) | ST(QUARANTINED),
	  "two rare faults at once" },
	{ SIM_EV_END, GONE, "counted by room" },
};

/* Pairs so rare that only so many schedules are sure to show them. */
#define COVER_RARE 100000

static const struct {
	enum sim_event event;
	unsigned int states;
} rare[] = {
	{ SIM_EV_CHUNK_BROKEN, GONE },
	{ SIM_EV_GRANT_NONE, ST(DRAINING) },
	{ SIM_EV_GRANT_TORN, ST(SEALING) },
	{ SIM_EV_LAST, ST(SEALING) | ST(READY) | ST(FREE) },
	{ SIM_EV_SENDER_ABORT, ST(SEALING) | ST(COMMITTING) },
	{ SIM_EV_SESSION_LOST, ST(QUARANTINED) },
	{ SIM_EV_CONN_LOST, ST(SEALING) | ST(QUARANTINED) },
	{ SIM_EV_COMMIT, GONE },
	{ SIM_EV_COPY_OVER, GONE },
	{ SIM_EV_ENGINE_ABORT, ST(FREE) },
	{ SIM_EV_ENGINE_LOST, ST(SEALING) | ST(QUARANTINED) },
	{ SIM_EV_SHUTDOWN, ST(SEALING) },
	{ SIM_EV_END, ST(WAITING) },
};

/* Is it no wonder that so many schedules do not show this pair? */
static bool rare_pair(unsigned int state, enum sim_event e, uint64_t schedules)
{
	for (size_t i = 0; i < KVS_ARRAY_SIZE(rare); i++)
		if (rare[i].event == e && rare[i].states & (1u << state))
			return schedules < COVER_RARE;
	return false;
}

static const char *impossible(unsigned int state, enum sim_event e)
{
	for (size_t i = 0; i < KVS_ARRAY_SIZE(never); i++)
		if ((never[i].event == e || never[i].event == SIM_EV_MAX) &&
		    never[i].states & (1u << state))
			return never[i].why;
	return NULL;
}

static unsigned int print_pairs(const struct sim_cover *c, uint64_t schedules,
				bool json, FILE *out)
{
	unsigned int missing = 0;

	if (!json) {
		fprintf(out, "%-32s", "event \\ state");
		for (unsigned int s = 0; s < SIM_STATES; s++)
			fprintf(out, " %11.11s", sim_state_name(s));
		fputc('\n', out);
	}
	for (int e = 0; e < SIM_EV_MAX; e++) {
		if (!json)
			fprintf(out, "%-32s", sim_event_name[e]);
		for (unsigned int s = 0; s < SIM_STATES; s++) {
			uint64_t n = c->pair[s][e];
			const char *why = impossible(s, (enum sim_event)e);

			if (!why && rare_pair(s, (enum sim_event)e, schedules))
				why = "rare, and these were few schedules";
			missing += !n && !why;
			if (json)
				fprintf(out,
					"{\"event\": \"%s\", \"state\": "
					"\"%s\", \"count\": %llu, "
					"\"excused\": \"%s\"}\n",
					sim_event_name[e], sim_state_name(s),
					(unsigned long long)n, why ? why : "");
			else if (n)
				fprintf(out, " %11llu", (unsigned long long)n);
			else
				fprintf(out, " %11s", why ? "-" : "NEVER");
		}
		if (!json)
			fputc('\n', out);
	}
	return missing;
}

static unsigned int print_fault(const char *kind, const char *name, uint64_t n,
				bool json, FILE *out)
{
	if (json)
		fprintf(out,
			"{\"fault\": \"%s\", \"of\": \"%s\", \"count\": "
			"%llu}\n",
			name, kind, (unsigned long long)n);
	else if (n)
		fprintf(out, "%-10s %-44s %12llu\n", kind, name,
			(unsigned long long)n);
	else
		fprintf(out, "%-10s %-44s %12s\n", kind, name, "NEVER");
	return !n;
}

unsigned int sim_cover_print(const struct sim_cover *c, uint64_t schedules,
			     bool json, FILE *out)
{
	unsigned int missing = print_pairs(c, schedules, json, out);

	if (!json)
		fprintf(out, "\n%-10s %-44s %12s\n", "faults", "", "times");
	for (int i = 0; i < SIM_FAULT_MAX; i++)
		missing += print_fault("process", sim_fault_name[i],
				       c->fault[i], json, out);
	for (int i = KVS_LOOP_NO_FAULT + 1; i < KVS_LOOP_FAULT_MAX; i++)
		missing += print_fault(
			"network", kvs_loop_fault_name((enum kvs_loop_fault)i),
			c->net[i], json, out);
	for (int i = KVS_SOFT_NO_FAULT + 1; i < KVS_SOFT_FAULT_MAX; i++)
		missing += print_fault(
			"device", kvs_soft_fault_name((enum kvs_soft_fault)i),
			c->gpu[i], json, out);
	missing += print_fault("network", "a write comes when its key is shut",
			       c->refused_late, json, out);
	if (!json)
		fprintf(out,
			"\n%llu rooms done, %llu failed, %llu quarantined for "
			"a while; %llu steps\n",
			(unsigned long long)c->rooms_done,
			(unsigned long long)c->rooms_failed,
			(unsigned long long)c->quarantined,
			(unsigned long long)c->steps);
	return missing;
}
