/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hold until drained, as a Promela model of a one-sided writer: a write that
 * was launched lands some time later, and nobody can recall it.
 *
 * Rooms 0..ROOMS-1 share EXTENTS extents, one each. Rooms 0 and 1 are two
 * attempts at one room id (of 3 rooms), the last is another room: the second
 * attempt may start as soon as the first has failed, while it still drains.
 * Two ranks write CHUNKS0 and CHUNKS1 chunks; a rank without any (a zero-byte
 * rank) takes part in everything else. Nothing but an acknowledgement
 * protects an extent here: no key is closed when an acknowledged room is
 * freed, as it would be on hardware. So every rule stands alone.
 *
 * Claims
 *   landing  no write lands in an extent that is another room's by then; with
 *            all rules in, nor in a free one
 *   holds    every hold ends: when nothing can happen any more, every room is
 *            over (or quarantined, where revocation may fail). Every
 *            transition uses something up, so each run ends and no fairness
 *            is assumed; pan -l (built with NP) shows that there is no cycle.
 *            Without CLOCK the holds end although no hold timeout exists.
 *
 * Options. What may go wrong, FAULTS times in all: FAIL a send fails but
 * lands all the same; GIVE_UP a rank does; CRASH a rank's process ends, its
 * launched writes go on; STALL a write never completes. CLOCK: there is a
 * hold timeout. QUARANTINE (with CLOCK): revocation may fail. FANOUT: rooms 0
 * and 1 are one room at two receivers, and a rank has one state for both.
 * REASK: a rank may be asked twice (with it, an answer lost for want of R2 is
 * given again). KEEP_LAST, for fewer states: the last room is not aborted
 * without a reason.
 *
 * Rules that can be taken out: -DNO_R2 .. -DNO_R8, or a part of one as listed
 * below; -DNO_HOLD frees on abort. REUSED_ONLY leaves writes into free
 * extents out of the first claim, so that a trail ends in corruption.
 *
 *   here                     in the C code
 *   room(), st[]             struct kvs_room and its state, pipeline/room.c
 *   admit                    kvs_room_take_memory(), kvs_pool_alloc(); that a
 *                            loan is called in (kvs_room_take_back()) is no
 *                            step here: nobody was granted it
 *   grant                    kvs_room_open(), kvs_room_grant()
 *   room_fail()              kvs_room_fail()
 *   arm()                    kvs_drain_arm(), pinned/drain.c
 *   tell()                   room_tell_abort()
 *   party[], live[], leave() struct kvs_party, drain.live, kvs_party_leave()
 *   ack()                    worker_ack(), kvs_drain_ack()
 *   poison_party()           worker_nak(), kvs_worker_session_lost(),
 *                            kvs_drain_poison()
 *   hold timeout             hold_expired(), revoke_walk()
 *   proof of revocation      rank_revoke(), kvs_worker_receive_end()
 *   P_STUCK                  KVS_DRAIN_STUCK, KVS_ROOM_QUARANTINED
 *   release()                room_drain_over(), kvs_pool_release()
 *   room_last()              kvs_room_last(), room_try_ready()
 *   rank()                   kvs_send_room_granted(), kvs_send_room_aborted()
 *   failed[], poisoned[]     KVS_SEND_FAILED, kvs_send_room.poison
 *   OUTSTANDING              kvs_send_room.outstanding
 *   asked[]                  kvs_send_room.aborts; with FANOUT of as many
 *                            struct kvs_sender as there are receivers
 *   settle()                 answer_aborts(), drop_queue(); for a room that
 *                            its user has closed, answer_forgotten(), where
 *                            sender_past.c keeps the poison
 *   send_fail()              kvs_send_room_fail(), say_abort()
 *   send_poison()            kvs_send_room_poison()
 *   writer(): launch         chunk_send()
 *             lands, fails   the network adapter, chunk_done()
 *             LAST           send_last()
 */
#ifndef ROOMS
#define ROOMS 3
#endif
#ifndef EXTENTS
#define EXTENTS 2
#endif
#ifndef CHUNKS0
#define CHUNKS0 1
#endif
#ifndef CHUNKS1
#define CHUNKS1 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define RANKS 2

#ifdef NO_R3
#define NO_R3_GENERATION /* an acknowledgement of any attempt counts */
#define NO_R3_DISTINCT /* messages are counted, not parties */
#endif
/* NO_R3_ZERO: a zero-byte rank does not acknowledge */
#ifdef NO_R4
#define NO_R4_OUTSTANDING /* acknowledge without waiting */
#define NO_R4_MARK /* go on taking chunks of a failed room */
#endif
/* NO_R4_COUNT: the count rises after the chunk left the queue */
#ifdef NO_R5
#define NO_R5_POISON /* a failed send counts as finished */
#endif
/* NO_R5_KEEP: the poison is forgotten with the room */
/* NO_R5_REVOKE: wait for the hold timeout though no answer can come */

/* one rank of one room */
#define PAIRS (ROOMS * RANKS)
#define PAIR(g, r) ((g) * RANKS + (r))
#define G(p) ((p) / RANKS)
#define R(p) ((p) % RANKS)
#define O(p) OBJECT(G(p))

#ifdef FANOUT
#define RECEIVERS 2
#define RECEIVER(g) ((g) == 1)
#define SAME_ID(g, h) (false)
#define OBJECT(g) ((g) == 1 -> 0 : (g))
#define OUTSTANDING(o, r)                                                     \
	(BUSY(PAIR(o, r)) + ((o) == 0 -> BUSY(PAIR(1, r)) : 0))
#define MAY_USE(g, e) ((e) == RECEIVER(g))
#else
#define RECEIVERS 1
#define RECEIVER(g) 0
#define SAME_ID(g, h) (((g) == ROOMS - 1) == ((h) == ROOMS - 1))
#define OBJECT(g) (g)
#define OUTSTANDING(o, r) BUSY(PAIR(o, r))
#define MAY_USE(g, e) (true)
#endif

/* one control connection of a receiver and a rank */
#define CONNS (RECEIVERS * RANKS)
#define CONN(g, r) (RECEIVER(g) * RANKS + (r))

mtype = { GRANT, ABORT, ACK, NAK, LAST, LOST };
chan down[CONNS] = [3 * ROOMS] of { mtype, byte }; /* to a rank */
chan up[CONNS] = [4 * ROOMS] of { mtype, byte }; /* to the receiver */

/* ---- receiver ---- */

#define NEW 0 /* not admitted */
#define RECEIVING 1
#define TOLD 2 /* only without R2: told, not armed */
#define DRAINING 3 /* armed: a hold */
#define FREE 4 /* over, its extent released */
byte st[ROOMS];
byte extent[ROOMS];
byte live[ROOMS]; /* parties that have not left */
byte lasts[ROOMS]; /* bit of each rank whose LAST came */
bool told[ROOMS];
byte owner[EXTENTS]; /* room + 1; 0: free */

#define P_OUT 0 /* never granted */
#define P_IN 1
#define P_DEAF 2 /* only without R5: no answer can come, nobody acts */
#define P_REVOKING 3 /* an acknowledgement may still come first */
#define P_POISONED 4 /* being revoked; an acknowledgement is no proof */
#define P_STUCK 5 /* cannot be revoked */
#define P_LEFT 6
byte party[PAIRS];
bool closed[PAIRS]; /* the grant is: writes are refused */
bool again[PAIRS]; /* was asked twice */
bool lost[CONNS]; /* connection, as the receiver sees it */

/* ---- ranks and the wire ---- */

byte queue[PAIRS]; /* chunks not taken yet */
byte taken[PAIRS]; /* only without R4: left the queue, not counted */
byte flying[PAIRS]; /* launched: will land, and complete then */
byte loose[PAIRS]; /* completed as failed, will land all the same */
byte stalled[PAIRS]; /* will land, but no completion ever comes */
byte mute[PAIRS]; /* was stalled, and has landed */
#define BUSY(p) (flying[p] + stalled[p] + mute[p])

bool granted[PAIRS];
bool finished[PAIRS]; /* LAST sent */
bool failed[PAIRS]; /* by object and rank, as the next two */
bool poisoned[PAIRS];
byte asked[PAIRS]; /* bit of each room whose ABORT is not answered */
bool crashed[RANKS];
byte faults = FAULTS;

hidden byte i, k, about, target; /* scratch of one step */
hidden mtype type;

#ifdef REUSED_ONLY
#define MAY_LAND(g) (owner[extent[g]] == (g) + 1 || owner[extent[g]] == 0)
#else
#define MAY_LAND(g) (owner[extent[g]] == (g) + 1)
#endif

/* ---- what the receiver does ---- */

inline release(g)
{
	owner[extent[g]] = 0;
	st[g] = FREE;
	/* of no meaning any more: fewer states to tell apart */
	told[g] = true;
	lasts[g] = 0;
	live[g] = 0;
	party[PAIR(g, 0)] = P_LEFT;
	party[PAIR(g, 1)] = P_LEFT;
	again[PAIR(g, 0)] = false;
	again[PAIR(g, 1)] = false
}

inline end_if_done(g)
{
	if
	:: st[g] == DRAINING && live[g] == 0 -> release(g)
	:: else
	fi
}

inline leave(g, r)
{
	party[PAIR(g, r)] = P_LEFT;
	live[g]--;
	end_if_done(g)
}

inline arm(g)
{
	st[g] = DRAINING;
	end_if_done(g)
}

inline tell(g)
{
	told[g] = true;
	for (i : 0 .. RANKS - 1) {
		if
		:: party[PAIR(g, i)] != P_OUT && !lost[CONN(g, i)] ->
			down[CONN(g, i)]!ABORT(g)
		:: else
		fi
	};
	i = 0
}

/* tell() is a step of its own: others run between the two */
inline room_fail(g)
{
	if
	:: st[g] == RECEIVING ->
#if defined(NO_HOLD)
		tell(g);
		release(g)
#elif defined(NO_R2)
		tell(g);
		st[g] = TOLD
#else
		arm(g)
#endif
	:: else
	fi
}

/* the sender's failure, not our abort */
inline room_fail_remote(g)
{
#ifdef NO_R7
	if
	:: st[g] == RECEIVING ->
		tell(g);
		release(g)
	:: else
	fi
#else
	room_fail(g)
#endif
}

inline ack(g, r)
{
	target = g;
#ifdef NO_R3_GENERATION
	for (i : 0 .. ROOMS - 1) {
		if
		:: SAME_ID(i, g) && st[i] == DRAINING -> target = i
		:: else
		fi
	};
	i = 0
#endif
	if
#ifdef NO_R3_DISTINCT
	:: st[target] == DRAINING && live[target] > 0 ->
		live[target]--;
		end_if_done(target)
#else
	:: st[target] == DRAINING &&
	   (party[PAIR(target, r)] == P_IN ||
	    party[PAIR(target, r)] == P_REVOKING ||
	    party[PAIR(target, r)] == P_STUCK) ->
		leave(target, r)
#endif
	:: else
	fi
}

inline poison_party(p)
{
	if
#ifdef NO_R5_REVOKE
	:: party[p] == P_IN -> party[p] = P_DEAF
#else
	:: party[p] == P_IN || party[p] == P_REVOKING ->
		party[p] = P_POISONED
#endif
	:: else
	fi
}

/* R9: the grants are closed before anything else may use the extent */
inline room_last(g, r)
{
	lasts[g] = lasts[g] | (1 << (r));
	if
	:: st[g] == RECEIVING && lasts[g] == (1 << RANKS) - 1 ->
		for (i : 0 .. RANKS - 1) {
			closed[PAIR(g, i)] = true;
			party[PAIR(g, i)] = P_LEFT
		};
		i = 0;
		live[g] = 0;
		release(g)
	:: else
	fi
}

inline conn_lost(c)
{
	lost[c] = true;
	for (k : 0 .. ROOMS - 1) {
		if
		:: CONN(k, c % RANKS) == c &&
		   party[PAIR(k, c % RANKS)] != P_OUT ->
			room_fail_remote(k);
			poison_party(PAIR(k, c % RANKS))
		:: else
		fi
	};
	k = 0
}

inline find_free(g)
{
	target = EXTENTS;
	for (i : 0 .. EXTENTS - 1) {
		if
		:: owner[i] == 0 && MAY_USE(g, i) && target == EXTENTS ->
			target = i
		:: else
		fi
	};
	i = 0
}

#ifdef KEEP_LAST
/* but past its deadline */
#define STALLED(p) (stalled[p] + mute[p] > 0)
#define MAY_ABORT(g)                                                          \
	((g) < ROOMS - 1 || STALLED(PAIR(g, 0)) || STALLED(PAIR(g, 1)) ||     \
	 crashed[0] || crashed[1])
#else
#define MAY_ABORT(g) (true)
#endif
#define SOME_FREE(g)                                                          \
	((owner[0] == 0 && MAY_USE(g, 0)) ||                                  \
	 (owner[EXTENTS - 1] == 0 && MAY_USE(g, EXTENTS - 1)))
/* its id is not taken: an earlier attempt has failed, or is over */
#define ID_FREE(g) ((g) == 0 || !SAME_ID(g, (g) - 1) || st[(g) - 1] >= DRAINING)
#define WAITED_FOR(p) (party[p] == P_IN || party[p] == P_DEAF)
#define IS_REVOKED(p) (party[p] == P_REVOKING || party[p] == P_POISONED)

/* What may happen to one rank of a room. */
#define RANK_EVENTS(r)                                                        \
	:: d_step { /* its OPEN comes: grant */                               \
		(st[g] == RECEIVING || st[g] == TOLD) &&                      \
		party[PAIR(g, r)] == P_OUT && !lost[CONN(g, r)] ->            \
		party[PAIR(g, r)] = P_IN;                                     \
		live[g]++;                                                    \
		down[CONN(g, r)]!GRANT(g)                                     \
	   }                                                                  \
	:: d_step { /* proof of revocation: nothing lands after it */         \
		st[g] == DRAINING && IS_REVOKED(PAIR(g, r)) ->                \
		closed[PAIR(g, r)] = true;                                    \
		leave(g, r)                                                   \
	   }

#define REASK_EVENT(r)                                                        \
	:: d_step {                                                           \
		st[g] == DRAINING && told[g] && !again[PAIR(g, r)] &&         \
		party[PAIR(g, r)] == P_IN && !lost[CONN(g, r)] ->             \
		again[PAIR(g, r)] = true;                                     \
		down[CONN(g, r)]!ABORT(g)                                     \
	   }

#define STUCK_EVENT(r)                                                        \
	:: d_step {                                                           \
		st[g] == DRAINING && IS_REVOKED(PAIR(g, r)) ->                \
		party[PAIR(g, r)] = P_STUCK                                   \
	   }

proctype room(byte g)
{
end:
	do
	:: d_step { /* admit */
		st[g] == NEW && ID_FREE(g) && SOME_FREE(g) ->
		find_free(g);
		extent[g] = target;
		owner[target] = g + 1;
		st[g] = RECEIVING
	   }
	:: d_step { /* the engine's abort, or a deadline */
		st[g] == RECEIVING && MAY_ABORT(g) ->
		room_fail(g)
	   }
#ifdef NO_R2
	:: d_step { st[g] == TOLD -> arm(g) }
#else
	:: d_step { st[g] == DRAINING && !told[g] -> tell(g) }
#endif
	RANK_EVENTS(0)
	RANK_EVENTS(1)
#ifdef REASK
	REASK_EVENT(0)
	REASK_EVENT(1)
#endif
#ifdef CLOCK
	:: d_step { /* hold timeout */
		st[g] == DRAINING &&
		(WAITED_FOR(PAIR(g, 0)) || WAITED_FOR(PAIR(g, 1))) ->
#ifdef NO_R8
		release(g)
#else
		for (i : 0 .. RANKS - 1) {
			if
			:: party[PAIR(g, i)] == P_IN ->
				party[PAIR(g, i)] = P_REVOKING
			:: party[PAIR(g, i)] == P_DEAF ->
				party[PAIR(g, i)] = P_POISONED
			:: else
			fi
		};
		i = 0
#endif
	   }
#endif
#ifdef QUARANTINE
	STUCK_EVENT(0)
	STUCK_EVENT(1)
	:: d_step { st[g] == NEW -> st[g] = FREE } /* admission timeout */
#endif
	od
}

proctype receiver(byte c)
{
end:
	do
	:: d_step {
		up[c]?type(about) ->
		if
		:: type == ACK -> ack(about, c % RANKS)
		:: type == NAK -> poison_party(PAIR(about, c % RANKS))
		:: type == ABORT -> room_fail_remote(about)
		:: type == LAST -> room_last(about, c % RANKS)
		:: type == LOST -> conn_lost(c)
		fi
	   }
	od
}

/* ---- what a rank does ---- */

#ifdef NO_R4_OUTSTANDING
#define MAY_ANSWER(o, r) (true)
#else
#define MAY_ANSWER(o, r)                                                      \
	(poisoned[PAIR(o, r)] || OUTSTANDING(o, r) == 0)
#endif
#ifdef NO_R3_ZERO
#define ANSWERS(r) ((r) == 0 || CHUNKS1 > 0)
#else
#define ANSWERS(r) (true)
#endif

inline settle(o, r)
{
	if
	:: failed[PAIR(o, r)] && MAY_ANSWER(o, r) && ANSWERS(r) &&
	   !crashed[r] ->
		for (i : 0 .. ROOMS - 1) {
			if
			:: !(asked[PAIR(o, r)] & (1 << i))
			:: else ->
				if
				:: poisoned[PAIR(o, r)] ->
					up[CONN(i, r)]!NAK(i)
				:: else -> up[CONN(i, r)]!ACK(i)
				fi
			fi
		};
		i = 0;
		asked[PAIR(o, r)] = 0
	:: else
	fi
}

inline ask(o, r, g)
{
#ifdef NO_R6
	asked[PAIR(o, r)] = 1 << g /* remembers the last one only */
#else
	asked[PAIR(o, r)] = asked[PAIR(o, r)] | (1 << g)
#endif
}

/* Tells every receiver that granted but the one that asked (ROOMS: none). */
inline send_fail(o, r, but)
{
	if
	:: !failed[PAIR(o, r)] ->
		failed[PAIR(o, r)] = true;
		for (i : 0 .. ROOMS - 1) {
			if
			:: OBJECT(i) == o && granted[PAIR(i, r)] &&
			   !crashed[r] ->
				if
				:: i != but -> up[CONN(i, r)]!ABORT(i)
				:: else
				fi;
				granted[PAIR(i, r)] = false;
				finished[PAIR(i, r)] = false;
#ifndef NO_R4_MARK
				queue[PAIR(i, r)] = 0
#endif
			:: else
			fi
		}
		i = 0
	:: else
	fi
}

proctype rank(byte c)
{
end:
	do
	:: d_step {
		!crashed[c % RANKS] && nempty(down[c]) ->
		down[c]?type(about);
		if
		:: type == GRANT && failed[PAIR(OBJECT(about), c % RANKS)] ->
			/* given up while the grant was on its way */
			up[c]!ABORT(about)
		:: type == GRANT && !failed[PAIR(OBJECT(about), c % RANKS)] ->
			granted[PAIR(about, c % RANKS)] = true;
			queue[PAIR(about, c % RANKS)] =
				(c % RANKS == 0 -> CHUNKS0 : CHUNKS1)
		:: type == ABORT ->
			send_fail(OBJECT(about), c % RANKS, about);
			ask(OBJECT(about), c % RANKS, about);
			settle(OBJECT(about), c % RANKS)
		fi
	   }
#ifdef CRASH
	:: d_step {
		c < RANKS && !crashed[c] && faults > 0 ->
		faults--;
		crashed[c] = true;
		for (i : 0 .. RECEIVERS - 1) {
			up[i * RANKS + c]!LOST(0)
		}
		i = 0
	   }
#endif
	od
}

#ifdef NO_R4_MARK
#define TAKES(p) (true)
#else
#define TAKES(p) (!failed[PAIR(O(p), R(p))])
#endif

inline send_poison(o, r)
{
#ifndef NO_R5_POISON
	poisoned[PAIR(o, r)] = true;
#endif
	send_fail(o, r, ROOMS);
	settle(o, r)
}

/* One room of one rank, and the network adapter under it. */
proctype writer(byte p)
{
end:
	do
#ifdef NO_R4_COUNT
	:: d_step {
		!crashed[R(p)] && queue[p] > 0 && TAKES(p) ->
		queue[p]--;
		taken[p]++
	   }
	:: d_step {
		!crashed[R(p)] && taken[p] > 0 ->
		taken[p]--;
		flying[p]++
	   }
#else
	:: d_step { /* launch: counted before it leaves the queue */
		!crashed[R(p)] && queue[p] > 0 && TAKES(p) ->
		queue[p]--;
		flying[p]++
	   }
#endif
	:: d_step { /* lands and completes; fails where the grant is closed */
		flying[p] > 0 ->
		flying[p]--;
		if
		:: closed[p] -> send_poison(O(p), R(p))
		:: else ->
			assert(MAY_LAND(G(p)));
			settle(O(p), R(p))
		fi
	   }
	:: d_step { /* LAST */
		!crashed[R(p)] && granted[p] && !finished[p] &&
		queue[p] == 0 && BUSY(p) == 0 ->
		finished[p] = true;
		up[CONN(G(p), R(p))]!LAST(G(p))
	   }
#ifdef GIVE_UP
	:: d_step { /* the prefill side aborts */
		!crashed[R(p)] && granted[p] && faults > 0 ->
		faults--;
		send_fail(O(p), R(p), ROOMS)
	   }
#endif
#ifdef FAIL
	:: d_step { /* fails in an unknown way: it lands all the same */
		!crashed[R(p)] && flying[p] > 0 && faults > 0 ->
		faults--;
		flying[p]--;
		loose[p]++;
		send_poison(O(p), R(p))
	   }
	:: d_step {
		loose[p] > 0 ->
		loose[p]--;
		assert(closed[p] || MAY_LAND(G(p)))
	   }
#endif
#ifdef STALL
	:: d_step {
		flying[p] > 0 && faults > 0 ->
		faults--;
		flying[p]--;
		stalled[p]++
	   }
	:: d_step {
		stalled[p] > 0 ->
		stalled[p]--;
		mute[p]++;
		assert(closed[p] || MAY_LAND(G(p)))
	   }
#endif
#ifdef NO_R5_KEEP
	:: d_step { /* closed by its user, and forgotten */
		poisoned[PAIR(O(p), R(p))] &&
		OUTSTANDING(O(p), R(p)) == 0 &&
		asked[PAIR(O(p), R(p))] == 0 ->
		poisoned[PAIR(O(p), R(p))] = false
	   }
#endif
	od
}

#define HELD_FOR_GOOD(g)                                                      \
	(st[g] == DRAINING && (party[PAIR(g, 0)] == P_STUCK ||                \
			       party[PAIR(g, 1)] == P_STUCK))
#define HOLD_ENDED(g) (st[g] == FREE || HELD_FOR_GOOD(g))

init {
	atomic {
		for (i : 0 .. CONNS - 1) {
			run receiver(i);
			run rank(i)
		}
		for (i : 0 .. ROOMS - 1) {
			run room(i)
		}
		for (i : 0 .. PAIRS - 1) {
			run writer(i)
		}
		i = 0
	}
	timeout -> /* nothing can happen any more */
	assert(HOLD_ENDED(0) && HOLD_ENDED(1) && HOLD_ENDED(ROOMS - 1))
}
