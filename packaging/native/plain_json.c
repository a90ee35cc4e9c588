/* What headgate_native/__init__.py documents. Nothing is allocated or kept.
 *
 * The byte behind a text is NUL, as behind all bytes of Python. No rule takes a NUL, so none reads beyond it. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum {
  DEPTH_MAX = 32,
  CONTAINERS_MAX = 10000,
  MEMBERS_MAX = 64, /* of one object: each name is compared with those before it */
  NAME_BYTES_MAX = 255,
  NUMBER_CHARS_MAX = 200,
  EXPONENT_DIGITS_MAX = 2, /* so numbers are below 1e299, which a double holds */
};

typedef unsigned char Byte;

typedef struct { const Byte *at; size_t size; } Name;

typedef struct { Byte closing; int members; Name names[MEMBERS_MAX]; } Container;

static const Byte *skip_space(const Byte *at) {
  while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
  return at;
}

static const Byte *skip_digits(const Byte *at) {
  while (*at >= '0' && *at <= '9') at++;
  return at;
}

/* The next four give what is behind that which begins at `at`, NULL where that does not, or has too much.
 *
 * Strings must be looked through for control characters only where the text has any: line breaks between tokens. */
static const Byte *behind_string(const Byte *at, const Byte *end, bool has_controls) {
  const Byte *quote = memchr(at + 1, '"', (size_t)(end - at - 1));
  if (!quote) return NULL;
  if (has_controls)
    for (at++; at < quote; at++)
      if (*at < ' ') return NULL;
  return quote + 1;
}

static const Byte *behind_number(const Byte *at) {
  const Byte *first = at, *behind;
  if (*at == '-') at++;
  behind = *at == '0' ? at + 1 : skip_digits(at);
  if (behind == at) return NULL;
  if (*behind == '.') {
    at = behind + 1;
    behind = skip_digits(at);
    if (behind == at) return NULL;
  }
  if (*behind == 'e' || *behind == 'E') {
    at = behind + 1;
    if (*at == '+' || *at == '-') at++;
    behind = skip_digits(at);
    if (behind == at || behind - at > EXPONENT_DIGITS_MAX) return NULL;
  }
  return behind - first <= NUMBER_CHARS_MAX ? behind : NULL;
}

static const Byte *behind_word(const Byte *at, const char *word) {
  while (*word)
    if (*at++ != (Byte)*word++) return NULL;
  return at;
}

static const Byte *behind_scalar(const Byte *at, const Byte *end, bool has_controls) {
  switch (*at) {
    case '"': return behind_string(at, end, has_controls);
    case 't': return behind_word(at, "true");
    case 'f': return behind_word(at, "false");
    case 'n': return behind_word(at, "null");
    default: return behind_number(at);
  }
}

static bool add_name(Container *object, const Byte *at, size_t size) {
  if (object->members == MEMBERS_MAX || size > NAME_BYTES_MAX) return false;
  for (int i = 0; i < object->members; i++)
    if (object->names[i].size == size && !memcmp(object->names[i].at, at, size)) return false;
  object->names[object->members++] = (Name){at, size};
  return true;
}

bool headgate_is_plain(const Byte *text, size_t size) {
  Container open[DEPTH_MAX], *in = NULL; /* `in` is the innermost one, NULL outside all */
  const Byte *at = skip_space(text), *end = text + size;
  Byte odd = 0, controls = 0;
  int depth = 0, containers = 0;
  for (size_t i = 0; i < size; i++) { /* without a branch, so that compilers make it a loop over vectors */
    odd |= (text[i] > '~') | (text[i] == '\\');
    controls |= text[i] < ' ';
  }
  if (odd) return false;
  for (;;) {
    if (in && in->closing == '}') {
      const Byte *name = at + 1;
      if (*at != '"' || !(at = behind_string(at, end, controls))) return false;
      if (!add_name(in, name, (size_t)(at - 1 - name))) return false;
      at = skip_space(at);
      if (*at != ':') return false;
      at = skip_space(at + 1);
    }
    if (*at == '{' || *at == '[') {
      if (depth == DEPTH_MAX || ++containers > CONTAINERS_MAX) return false;
      in = &open[depth++];
      in->closing = *at + 2; /* in ASCII */
      in->members = 0;
      at = skip_space(at + 1);
      if (*at != in->closing) continue;
    } else if (!(at = behind_scalar(at, end, controls)))
      return false;
    at = skip_space(at);
    for (; in && *at == in->closing; at = skip_space(at + 1)) in = --depth ? &open[depth - 1] : NULL;
    if (!in) return at == end;
    if (*at != ',') return false;
    at = skip_space(at + 1);
  }
}

size_t headgate_containers(const Byte *text, size_t size) {
  size_t count = 0;
  for (size_t i = 0; i < size; i++) count += (text[i] == '[') | (text[i] == '{');
  return count;
}
