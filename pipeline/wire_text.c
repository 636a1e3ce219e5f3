/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "pipeline/wire_text.h"

/*
 * Bytes of the character at s (avail of them readable), 0 when it must not
 * be sent. A NUL inside a sequence fails it, as it is no continuation byte.
 */
static size_t kvs_text_char(const unsigned char *s, size_t avail)
{
	size_t len, i;
	unsigned int c;

	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		len = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		len = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		len = 4;
	else
		return 0;
	if (len > avail)
		return 0;
	c = s[0] & (0xffu >> (len + 1));
	for (i = 1; i < len; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	/* C1 controls, overlong forms, surrogates, past the last plane */
	if (c < 0xa0 || (len == 3 && c < 0x800) || (len == 4 && c < 0x10000) ||
	    (c >= 0xd800 && c <= 0xdfff) || c > 0x10ffff)
		return 0;
	/* line and paragraph separators, and bidirectional overrides, break
	 * or reorder the line they are logged in */
	if (c == 0x2028 || c == 0x2029 || (c >= 0x202a && c <= 0x202e) ||
	    (c >= 0x2066 && c <= 0x2069))
		return 0;
	return len;
}

bool kvs_wire_text_ok(const char *s, size_t size)
{
	const unsigned char *u = (const unsigned char *)s;
	size_t n = strnlen(s, size);
	size_t i, len;

	if (n == size)
		return false;
	for (i = 0; i < n; i += len) {
		len = kvs_text_char(u + i, n - i);
		if (!len)
			return false;
	}
	for (i = n; i < size; i++) {
		if (u[i])
			return false;
	}
	return true;
}

void kvs_wire_text_put(char *dst, size_t size, const char *src)
{
	const unsigned char *u = (const unsigned char *)src;
	size_t n = strlen(src);
	size_t in = 0, out = 0;
	size_t len;

	while (in < n) {
		len = kvs_text_char(u + in, n - in);
		if (out + (len ? len : 1) >= size)
			break;
		if (len) {
			memcpy(dst + out, src + in, len);
		} else {
			dst[out] = '?';
			len = 1;
		}
		in += len;
		out += len;
	}
	memset(dst + out, 0, size - out);
}
