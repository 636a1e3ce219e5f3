/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of misbehaving senders have in common: a model with something of
 * every kind (two ranks, a state, aux blocks, a room of two extents), so that
 * there are edges of every kind to step over.
 */
#ifndef KVS_TESTS_MISBEHAVE_H
#define KVS_TESTS_MISBEHAVE_H

#include "tests/regress/puppet_engine.h"
#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define MIS_PAGES 12u /* of a room */
#define MIS_AUX 100u /* bytes of a rank's aux block */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MIS_RSS_COUNTS 0 /* the sanitizer's own memory grows */
#else
#define MIS_RSS_COUNTS 1
#endif

/* Two ranks: layers 0 and 1, layers 2 and 3; a state in 3. */
extern const struct kvs_layout mis_layout;

/* A daemon with the group's TCP engine, and an engine that is attached. */
void mis_start(struct rig *g, struct pe *e);
void mis_admit(struct pe *e, struct pe_room *r, uint32_t slot, const char *peer,
	       uint64_t room, uint32_t n_ranks);
/* Until the rank is granted. */
void mis_open(struct ps *p, struct ps_room *w, uint64_t room, uint64_t seed);
/* Protocol errors of every kind, as rig_refresh() found them. */
uint64_t mis_errors(const struct rig *g);

#endif /* KVS_TESTS_MISBEHAVE_H */
