/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/sim/cover.h"

#include <string.h>

#include "lib/assert.h"

#define KVS_NAME_(n, s) [SIM_EV_##n] = s,
const char *const sim_event_name[SIM_EV_MAX] = { SIM_EVENTS(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [SIM_AWAY_EV_##n] = s,
const char *const sim_away_event_name[SIM_AWAY_EV_MAX] = { SIM_AWAY_EVENTS(
	KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [SIM_KEPT_##n] = s,
const char *const sim_kept_name[SIM_KEPT_MAX] = { SIM_KEPT(KVS_NAME_) };
#undef KVS_NAME_
#define KVS_NAME_(n, s) [SIM_FAULT_##n] = s,
const char *const sim_fault_name[SIM_FAULT_MAX] = { SIM_FAULTS(KVS_NAME_) };
#undef KVS_NAME_

const char *sim_state_name(unsigned int state)
{
	return state < KVS_ROOM_STATE_MAX ? kvs_room_state_name[state] : "gone";
}

const char *sim_away_state_name(unsigned int state)
{
	return state < KVS_RETRACT_STATE_MAX ? kvs_retract_state_name[state]
					     : "gone";
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
struct cover_never {
	unsigned int event; /* SIM_EV_MAX: all of them */
	unsigned int states;
	const char *why;
};

static const struct cover_never never[] = {
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
	{ SIM_EV_PREFIX_ABORT, ST(WAITING), "what waits owns nothing" },
	{ SIM_EV_PREFIX_ABORT, ST(QUARANTINED),
	  "its engine has aborted it, or is gone" },
	{ SIM_EV_PREFIX_ABORT, ST(FREE) | GONE,
	  "it has given its blocks back" },
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

struct cover_rare {
	unsigned int event;
	unsigned int states;
};

static const struct cover_rare rare[] = {
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
	{ SIM_EV_PREFIX_ABORT, ST(SEALING) | ST(DRAINING) },
	{ SIM_EV_ENGINE_LOST, ST(SEALING) | ST(QUARANTINED) },
	{ SIM_EV_SHUTDOWN, ST(SEALING) },
	{ SIM_EV_END, ST(WAITING) },
};

#define AW(n) (1u << KVS_RETRACT_##n)
#define AW_GONE (1u << SIM_AWAY_GONE)
#define AW_ALL ((AW_GONE << 1) - 1)

#define AW_LIVE                                                     \
	(AW(LEAVING) | AW(SUMMING) | AW(RETRACTED) | AW(CHECKING) | \
	 AW(RESUMING))

static const struct cover_never away_never[] = {
	{ SIM_AWAY_EV_MAX, AW(DONE), "passed through within one call" },
	{ SIM_AWAY_EV_MAX, AW(KEEPING), "no schedule offloads" },
	{ SIM_AWAY_EV_MAX, AW(VERIFYING) | AW(PINNED), "no schedule pins" },
	{ SIM_AWAY_EV_MAX, AW(FREE), "deleted at the end of a turn" },
	{ SIM_AWAY_EV_MEMORY, AW_ALL & ~AW_GONE, "asked for once" },
	{ SIM_AWAY_EV_NO_MEMORY, AW_ALL & ~AW_GONE, "asked for once" },
	{ SIM_AWAY_EV_OUT, AW_ALL & ~AW(LEAVING),
	  "said once; of one that has failed it is COPY_OVER" },
	{ SIM_AWAY_EV_OUT_FAILED, AW_ALL & ~AW(LEAVING),
	  "said once; of one that has failed it is COPY_OVER" },
	{ SIM_AWAY_EV_COMMIT, AW_ALL & ~AW(RETRACTED),
	  "an engine resumes what is READY" },
	{ SIM_AWAY_EV_COMMITTED, AW_ALL & ~AW(RESUMING),
	  "only its engine ends one that comes back, and says COPY_OVER then" },
	{ SIM_AWAY_EV_COPY_FAILED, AW_ALL & ~AW(RESUMING),
	  "only its engine ends one that comes back, and says COPY_OVER then" },
	{ SIM_AWAY_EV_COPY_OVER, AW_LIVE, "said of one that has failed" },
	{ SIM_AWAY_EV_ABORT, AW(DRAINING) | AW(QUARANTINED) | AW_GONE,
	  "its engine has dropped it, or is gone" },
	{ SIM_AWAY_EV_ENGINE_EXIT, AW_LIVE, "the end of file came before" },
	{ SIM_AWAY_EV_ENGINE_LOST, AW_GONE, "counted by retraction" },
	{ SIM_AWAY_EV_ENGINE_EXIT, AW_GONE, "counted by retraction" },
	{ SIM_AWAY_EV_ENGINE_LOST, AW(SUMMING) | AW(CHECKING),
	  "a few turns, and a rare fault" },
	{ SIM_AWAY_EV_HOLD, AW_ALL & ~AW(DRAINING),
	  "runs while a drain is armed" },
	{ SIM_AWAY_EV_SHUTDOWN, AW(SUMMING) | AW(CHECKING),
	  "a few turns, and a rare fault" },
	{ SIM_AWAY_EV_SHUTDOWN, AW(DRAINING) | AW(QUARANTINED),
	  "two rare faults at once" },
	{ SIM_AWAY_EV_SHUTDOWN, AW_GONE, "counted by retraction" },
	{ SIM_AWAY_EV_END, AW(LEAVING) | AW(SUMMING) | AW(CHECKING),
	  "only by a kill: going down has ended it; a few turns, as a rule" },
	{ SIM_AWAY_EV_END, AW(QUARANTINED), "two rare faults at once" },
	{ SIM_AWAY_EV_END, AW_GONE, "counted by retraction" },
};

static const struct cover_rare away_rare[] = {
	{ SIM_AWAY_EV_COPY_OVER, AW(QUARANTINED) | AW_GONE },
	{ SIM_AWAY_EV_ABORT, AW(SUMMING) | AW(CHECKING) },
	{ SIM_AWAY_EV_ENGINE_LOST, AW(DRAINING) | AW(QUARANTINED) },
	{ SIM_AWAY_EV_SHUTDOWN, AW(LEAVING) | AW(RETRACTED) | AW(RESUMING) },
	{ SIM_AWAY_EV_END, AW(RETRACTED) | AW(RESUMING) | AW(DRAINING) },
};

struct cover_table {
	const char *of;
	unsigned int n_states;
	unsigned int n_events;
	const char *(*state)(unsigned int state);
	const char *const *event;
	const struct cover_never *never;
	size_t n_never;
	const struct cover_rare *rare;
	size_t n_rare;
};

static const struct cover_table rooms = {
	.of = "room",
	.n_states = SIM_STATES,
	.n_events = SIM_EV_MAX,
	.state = sim_state_name,
	.event = sim_event_name,
	.never = never,
	.n_never = KVS_ARRAY_SIZE(never),
	.rare = rare,
	.n_rare = KVS_ARRAY_SIZE(rare),
};

static const struct cover_table retractions = {
	.of = "retraction",
	.n_states = SIM_AWAY_STATES,
	.n_events = SIM_AWAY_EV_MAX,
	.state = sim_away_state_name,
	.event = sim_away_event_name,
	.never = away_never,
	.n_never = KVS_ARRAY_SIZE(away_never),
	.rare = away_rare,
	.n_rare = KVS_ARRAY_SIZE(away_rare),
};

/* Why no schedule has to show this pair, or so few need not; NULL. */
static const char *excuse(const struct cover_table *t, unsigned int state,
			  unsigned int e, uint64_t schedules)
{
	for (size_t i = 0; i < t->n_never; i++)
		if ((t->never[i].event == e ||
		     t->never[i].event == t->n_events) &&
		    t->never[i].states & (1u << state))
			return t->never[i].why;
	for (size_t i = 0; i < t->n_rare && schedules < COVER_RARE; i++)
		if (t->rare[i].event == e && t->rare[i].states & (1u << state))
			return "rare, and these were few schedules";
	return NULL;
}

/* @pair: n_events of each state. */
static unsigned int print_pairs(const struct cover_table *t,
				const uint64_t *pair, uint64_t schedules,
				bool json, FILE *out)
{
	unsigned int missing = 0;

	if (!json) {
		fprintf(out, "%-16s%16s", "event", t->of);
		for (unsigned int s = 0; s < t->n_states; s++)
			fprintf(out, " %11.11s", t->state(s));
		fputc('\n', out);
	}
	for (unsigned int e = 0; e < t->n_events; e++) {
		if (!json)
			fprintf(out, "%-32s", t->event[e]);
		for (unsigned int s = 0; s < t->n_states; s++) {
			uint64_t n = pair[(size_t)s * t->n_events + e];
			const char *why = excuse(t, s, e, schedules);

			missing += !n && !why;
			if (json)
				fprintf(out,
					"{\"of\": \"%s\", \"event\": "
					"\"%s\", \"state\": \"%s\", "
					"\"count\": %llu, \"excused\": "
					"\"%s\"}\n",
					t->of, t->event[e], t->state(s),
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
	unsigned int missing =
		print_pairs(&rooms, &c->pair[0][0], schedules, json, out);

	if (!json)
		fputc('\n', out);
	missing +=
		print_pairs(&retractions, &c->away[0][0], schedules, json, out);

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
	for (int i = 0; i < SIM_KEPT_MAX; i++)
		missing += print_fault("hicache", sim_kept_name[i], c->kept[i],
				       json, out);
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
