/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between the device and host memory, as a Promela model: a copy that
 * was launched moves its pieces some time later, one after another, and nobody
 * can recall it.
 *
 * Two requests run on device pages. One may leave the device (retraction; an
 * offload is one that does not come back): it
 * is copied to a host extent, its page serves others, and it comes back to
 * another page. A reader copies what is cached in the extent to a page of its
 * own (recall), and what is cached may be evicted to make room. There is one
 * extent, and there are two pages, for all of them. Any of them may be given up
 * at any time.
 *
 * Claims
 *   landing  no piece is written to a page or an extent that is not its
 *            request's; none is read from another's extent
 *   bytes    what is out, what came back and what was read of the cache is what
 *            it was, every piece of it
 *   ends     whatever happens, all memory is free in the end
 *
 * Rules that can be taken out (R13, and the name of its place in lib/rule.def):
 * -DNO_LEAVE the page is free when the copy out is launched; -DNO_LEAVE_ALL
 * when its first piece is out; -DNO_OFFLOAD the extent is free at an abort of
 * the copy out; -DNO_RESUME the same of the copy back; -DNO_DEVICE the new page
 * is; -DNO_PIN what is being read is evicted.
 *
 *   here                     in the C code
 *   request()                struct kvs_retraction, pipeline/retract.c,
 *                            offload.c, and engine_retract.c
 *   launch(), the device     kvs_device_copy(), gpu/
 *   moved[] == PIECES        kvs_device_query(), RETRACTED, COMMITTED, COPY_OVER
 *   ext_owner[], page_owner[]  struct kvs_extents; kvs_engine_copy_live()
 *   reader()                 struct kvs_prefix, pipeline/cache.c, of a room or
 *                            of a pin (recall.c)
 *   pins                     kvs_index_pin_prefix()
 *   evict()                  kvs_cache_alloc(), cache_victim()
 */
#define REQUESTS 2
#define READER REQUESTS
#define CACHED 9
#define PAGES 2
#define PIECES 2
#define PARTIES (REQUESTS + 1)

byte page_owner[PAGES]; /* request + 1, or 0: free */
byte page_bytes[PAGES * PIECES]; /* whose they are */
byte ext_owner; /* request + 1, CACHED or 0 */
byte ext_bytes[PIECES];
byte pins;

mtype = { none, out, in };
mtype copy[PARTIES] = none;
byte moved[PARTIES];
byte at[PARTIES]; /* page of the copy */
byte ended; /* processes that are over */

#define PIECE(p, k) page_bytes[(p)*PIECES + (k)]
#define ALL_PAGE(p, v) (PIECE(p, 0) == (v) && PIECE(p, 1) == (v))
#define ALL_EXT(v) (ext_bytes[0] == (v) && ext_bytes[1] == (v))

inline take_page(i, p)
{
	atomic {
		if
		:: page_owner[0] == 0 -> p = 0
		:: page_owner[1] == 0 -> p = 1
		fi;
		page_owner[p] = i + 1
	}
}

inline free_page(i, p)
{
	if
	:: page_owner[p] == i + 1 -> page_owner[p] = 0
	:: else
	fi
}

inline free_ext(i)
{
	if
	:: ext_owner == i + 1 -> ext_owner = 0
	:: else
	fi
}

inline launch(i, p, dir)
{
	at[i] = p;
	moved[i] = 0;
	copy[i] = dir
}

/* The copy engine: any piece that is next, at any time. */
active proctype device()
{
	byte i;

end:
	do
	:: atomic {
		copy[0] != none && moved[0] < PIECES -> i = 0;
		goto move
	   }
	:: atomic {
		copy[1] != none && moved[1] < PIECES -> i = 1;
		goto move
	   }
	:: atomic {
		copy[READER] != none && moved[READER] < PIECES -> i = READER;
		goto move
	   }
	od;
move:
	atomic {
		if
		:: copy[i] == out ->
			assert(ext_owner == i + 1); /* landing */
			ext_bytes[moved[i]] = PIECE(at[i], moved[i])
		:: copy[i] == in ->
			assert(page_owner[at[i]] == i + 1); /* landing */
			assert(i == READER || ext_owner == i + 1); /* too */
			PIECE(at[i], moved[i]) = ext_bytes[moved[i]]
		fi;
		moved[i]++;
		i = 0
	}
	goto end
}

proctype request(byte i)
{
	byte p, q;

	take_page(i, p);
	atomic { PIECE(p, 0) = i + 1; PIECE(p, 1) = i + 1 }
	if
	:: goto over /* it never leaves, or there was no memory for it */
	:: atomic {
		ext_owner == 0 -> ext_owner = i + 1;
		launch(i, p, out)
	   }
	fi;
#ifdef NO_LEAVE
	free_page(i, p);
#endif
#ifdef NO_LEAVE_ALL
	moved[i] > 0;
	free_page(i, p);
#endif
	if
	:: /* given up while it leaves */
#ifdef NO_OFFLOAD
		free_ext(i);
#endif
		atomic { moved[i] == PIECES -> copy[i] = none };
		free_ext(i);
		goto over
	:: atomic {
		moved[i] == PIECES -> copy[i] = none;
		assert(ALL_EXT(i + 1)) /* bytes */
	   }
	fi;
	free_page(i, p);
	/* it is out */
	if
	:: free_ext(i);
		goto over
	:: take_page(i, q)
	fi;
	p = q;
	atomic { launch(i, p, in) }
	if
	:: /* given up while it comes back */
#ifdef NO_RESUME
		free_ext(i);
#endif
#ifdef NO_DEVICE
		free_page(i, p);
#endif
		atomic { moved[i] == PIECES -> copy[i] = none }
	:: atomic {
		moved[i] == PIECES -> copy[i] = none;
		assert(ALL_PAGE(p, i + 1)) /* bytes */
	   }
	fi;
	free_ext(i);
over:
	atomic { free_page(i, p); ended++ }
}

proctype reader()
{
	byte p;

	take_page(READER, p);
	if
	:: atomic { ext_owner != CACHED -> goto over }
	:: atomic {
		ext_owner == CACHED -> pins++;
		launch(READER, p, in)
	   }
	fi;
	if
	:: atomic { moved[READER] == PIECES -> copy[READER] = none }
	:: atomic {
		moved[READER] == PIECES -> copy[READER] = none;
		assert(ALL_PAGE(p, CACHED)) /* bytes */
	   }
	fi;
	pins--;
over:
	atomic { free_page(READER, p); ended++ }
}

/* Memory is wanted. */
proctype evict()
{
#ifdef NO_PIN
	atomic { ext_owner == CACHED -> ext_owner = 0; ended++ }
#else
	atomic { ext_owner == CACHED && pins == 0 -> ext_owner = 0; ended++ }
#endif
}

init
{
	atomic {
		ext_owner = CACHED;
		ext_bytes[0] = CACHED;
		ext_bytes[1] = CACHED;
		run request(0);
		run request(1);
		run reader();
		run evict()
	}
	ended == REQUESTS + 2;
	assert(ext_owner == 0 && page_owner[0] == 0 &&
	       page_owner[1] == 0) /* ends */
}
