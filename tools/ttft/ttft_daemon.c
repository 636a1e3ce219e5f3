/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons there are in a run, and their settings: on both clocks. */
#include <stdio.h>

#include "pipeline/settings.h"
#include "tools/ttft/ttft.h"

#define HUGE_PAGE (2ULL << 20) /* bytes */

bool ttft_uses(enum ttft_mode mode, enum ttft_rx rx)
{
	switch (mode) {
	case TTFT_DIRECT:
		return rx == TTFT_DEVICE;
	case TTFT_AUTO:
		return true;
	case TTFT_STAGED:
	case TTFT_IDEAL:
	case TTFT_MODES:
		break;
	}
	return rx == TTFT_HOST;
}

uint64_t ttft_device_pool(const struct ttft_opts *o, unsigned int devices)
{
	uint64_t bytes = devices * o->s.device_tokens * o->s.token_bytes;

	return (bytes | (HUGE_PAGE - 1)) + 1;
}

int ttft_settings(const struct ttft_opts *o, struct kvs_settings *s, char *why,
		  size_t len)
{
	static const char *const fixed[][2] = {
		/* a user may wait as long as he likes */
		{ "admission.timeout", "24h" },
		{ "open.timeout", "24h" },
		{ "open.parked", "1048576" },
		{ "transfer.timeout", "24h" },
		{ "claim.timeout", "24h" },
		{ "admission.queue", "1048576" },
		{ "engine.slots", "65536" },
		{ "hold.check", "warn" },
	};
	char text[32];
	int r = 0;

	kvs_settings_init(s);
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]) && !r; i++)
		r = kvs_settings_set(s, fixed[i][0], fixed[i][1], why, len);
	snprintf(text, sizeof(text), "%lluns",
		 (unsigned long long)o->s.hold_timeout);
	if (!r)
		r = kvs_settings_set(s, "hold.timeout", text, why, len);
	return r;
}
