/* SPDX-License-Identifier: Apache-2.0 */
/* Two ends of a connection over the double, as bare verbs. */
#ifndef KVS_TESTS_FAKE_VERBS_ENDS_H
#define KVS_TESTS_FAKE_VERBS_ENDS_H

/* clang-format off: cmocka wants these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
/* clang-format on */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_verbs/fake_verbs.h"

#define MEM (64u << 10)
#define RANGE                                               \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND)

struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *chan;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	unsigned char *mem; /* MEM bytes */
	struct ibv_mr *mr; /* all of it, RANGE */
};

struct ends {
	struct fv_device *dev;
	struct end a; /* the writer */
	struct end b;
};

/* A world with one device of that behaviour, both ends connected. */
void ends_start(struct ends *e, enum fv_model model, char windows);
/* And with a device that was added already. */
void ends_join(struct ends *e, struct fv_device *d);
/* All is given back; the world ends well. */
void ends_stop(struct ends *e);
void end_close(struct end *x);
/* Another queue pair at each end, of the same domains, connected. */
void ends_qps(struct ends *e, struct ibv_qp **ret_a, struct ibv_qp **ret_b);

int post_write(struct end *x, uint64_t id, uint32_t off, uint32_t len,
	       uint64_t to, uint32_t rkey);
int post_read(struct end *x, uint64_t id, uint32_t off, uint32_t len,
	      uint64_t from, uint32_t rkey);
int post_msg(struct end *x, uint64_t id, uint32_t off, uint32_t len);
int post_buf(struct end *x, uint64_t id, uint32_t off, uint32_t len);
/* Return: the status it completes with. */
enum ibv_wc_status bind_on(struct end *x, struct ibv_qp *qp, struct ibv_mw *mw,
			   uint32_t rkey, uint32_t off, uint32_t len);
enum ibv_wc_status invalidate(struct end *x, uint32_t rkey);
void to_err(struct ibv_qp *qp);
/* The next completion is @id with @status. */
void expect_wc(struct end *x, uint64_t id, enum ibv_wc_status status);
void expect_no_wc(struct end *x);
uint64_t at(const struct end *x, uint32_t off);

#endif /* KVS_TESTS_FAKE_VERBS_ENDS_H */
