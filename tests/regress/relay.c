/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/regress/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/regress/puppet_sender.h"
#include "tests/regress/service_rig.h"

#define RELAY_RCVBUF 65536 /* bytes; little hides here */

static void pair_close(struct relay_pair *p, bool reset)
{
	if (reset) {
		ps_reset(&p->from);
		ps_reset(&p->to);
	} else {
		ps_fin(&p->from);
		ps_fin(&p->to);
	}
}

/* What is there goes to the other side; false: an end. */
static bool forward(int from, int to)
{
	static char buf[1 << 18];
	ssize_t n = recv(from, buf, sizeof(buf), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	return n && ps_write(to, buf, (size_t)n) == n;
}

static void relay_accept(struct relay *r)
{
	int from = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
	struct relay_pair *p = r->pair;

	if (from < 0)
		return;
	while (p < r->pair + RELAY_MAX && p->from >= 0)
		p++;
	if (p == r->pair + RELAY_MAX) {
		close(from);
		return;
	}
	p->to = ps_dial(r->to);
	if (p->to < 0) {
		close(from);
		return;
	}
	p->from = from;
	r->n++;
}

static void relay_turn(struct relay *r)
{
	struct pollfd f[1 + 2 * RELAY_MAX];
	bool hold = atomic_load(&r->hold);

	f[0] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
	for (unsigned int i = 0; i < RELAY_MAX; i++) {
		f[1 + 2 * i] = (struct pollfd){
			.fd = i && hold ? -1 : r->pair[i].from,
			.events = POLLIN,
		};
		f[2 + 2 * i] = (struct pollfd){ .fd = r->pair[i].to,
						.events = POLLIN };
	}
	/* short: it also looks at what it is told */
	if (poll(f, 1 + 2 * RELAY_MAX, 2) <= 0)
		return;
	for (unsigned int i = 0; i < RELAY_MAX; i++) {
		struct relay_pair *p = &r->pair[i];

		if ((f[1 + 2 * i].revents && !forward(p->from, p->to)) ||
		    (f[2 + 2 * i].revents && !forward(p->to, p->from)))
			pair_close(p, false);
	}
	if (f[0].revents)
		relay_accept(r);
}

static void *relay_run(void *arg)
{
	struct relay *r = arg;

	while (!atomic_load(&r->stop)) {
		if (atomic_load(&r->cut)) {
			for (unsigned int i = 1; i < RELAY_MAX; i++)
				pair_close(&r->pair[i], true);
			atomic_store(&r->cut, false);
		}
		relay_turn(r);
	}
	return NULL;
}

void relay_up(struct relay *r, unsigned int to)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(sa);
	int size = RELAY_RCVBUF;

	memset(r, 0, sizeof(*r));
	r->to = to;
	for (unsigned int i = 0; i < RELAY_MAX; i++)
		r->pair[i].from = r->pair[i].to = -1;
	r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(r->listener >= 0);
	assert_int_equal(setsockopt(r->listener, SOL_SOCKET, SO_RCVBUF, &size,
				    sizeof(size)),
			 0);
	assert_int_equal(bind(r->listener, (struct sockaddr *)&sa, len), 0);
	assert_int_equal(listen(r->listener, 16), 0);
	assert_int_equal(getsockname(r->listener, (struct sockaddr *)&sa, &len),
			 0);
	r->port = ntohs(sa.sin_port);
	assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
}

void relay_down(struct relay *r)
{
	atomic_store(&r->stop, true);
	assert_int_equal(pthread_join(r->thread, NULL), 0);
	for (unsigned int i = 0; i < RELAY_MAX; i++)
		pair_close(&r->pair[i], false);
	close(r->listener);
}

void relay_hold(struct relay *r, bool hold)
{
	atomic_store(&r->hold, hold);
}

void relay_cut(struct relay *r)
{
	uint64_t until = rig_until();

	atomic_store(&r->cut, true);
	while (atomic_load(&r->cut))
		rig_pause(until, "the cut", __FILE__, __LINE__);
}
