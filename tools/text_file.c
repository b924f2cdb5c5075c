/* SPDX-License-Identifier: MIT */
#include "tools/text_file.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int text_refuse(const struct text_file *f, int code, const char *format, ...)
{
    int n = f->line ? snprintf(f->error, f->error_size, "%s:%lu: ", f->path, f->line)
                    : snprintf(f->error, f->error_size, "%s: ", f->path);
    if (n > 0 && (size_t)n < f->error_size) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(f->error + n, f->error_size - (size_t)n, format, arguments);
        va_end(arguments);
    }
    return code;
}

int text_open(struct text_file *f, const char *path, const char *kind, char *error,
              size_t error_size)
{
    *f = (struct text_file){.path = path, .kind = kind, .error = error, .error_size = error_size};
    f->text = malloc(TEXT_LINE_MOST + 2);
    if (!f->text)
        return text_refuse(f, -ENOMEM, "no memory to read it");
    struct stat status;
    bool is_pipe =
        stat(path, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
    errno = 0;
    f->file = is_pipe ? NULL : gzopen(path, "rb");
    if (!f->file) {
        int code = errno ? errno : ENOMEM;
        free(f->text);
        f->text = NULL;
        return is_pipe ? text_refuse(f, -EINVAL,
                                     "it is a pipe, of which each rank would read a "
                                     "part; put what comes out of it into a file")
                       : text_refuse(f, -code, "cannot open it: %s", strerror(code));
    }
    gzbuffer(f->file, 1 << 18);
    return 0;
}

void text_close(struct text_file *f)
{
    if (f->file)
        gzclose_r(f->file);
    free(f->text);
    f->file = NULL;
    f->text = NULL;
}

/* As gzgets, but with the number of bytes, since there may be a NUL in what is no text. */
static size_t get_line(gzFile file, char *line, size_t most)
{
    size_t n = 0;
    while (n < most) {
        int c = gzgetc(file);
        if (c < 0)
            break;
        line[n++] = (char)c;
        if (c == '\n')
            break;
    }
    line[n] = '\0';
    return n;
}

/* What zlib says about the stream: 0, or the error with its sentence. */
static int stream_error(struct text_file *f)
{
    int code;
    const char *what = gzerror(f->file, &code);
    if (code == Z_ERRNO) {
        int err = errno;
        f->line = 0;
        return text_refuse(f, err ? -err : -EIO, "cannot read it: %s", strerror(err ? err : EIO));
    }
    if (code == Z_BUF_ERROR)
        return text_refuse(f, -EINVAL,
                           "the compressed file ends too early; it seems to be cut off");
    if (code != Z_OK && code != Z_STREAM_END)
        return text_refuse(f, -EINVAL, "the compressed file is damaged: %s", what);
    return 0;
}

static int check_bytes(const struct text_file *f)
{
    for (size_t i = 0; i < f->bytes; i++) {
        unsigned char c = (unsigned char)f->text[i];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return text_refuse(f, -EINVAL,
                               "byte 0x%02x at column %zu is not text; is this a %s file?", c,
                               i + 1, f->kind);
    }
    return 0;
}

int text_next(struct text_file *f)
{
    f->bytes = get_line(f->file, f->text, TEXT_LINE_MOST + 1);
    bool full = f->bytes == TEXT_LINE_MOST + 1;
    f->ended = f->bytes && f->text[f->bytes - 1] == '\n';
    if (f->bytes)
        f->line++;
    /* A line that the end of a damaged stream cut off is the stream's fault. */
    int err = f->ended ? 0 : stream_error(f);
    if (err)
        return err;
    if (!f->bytes) {
        f->line = 0;
        return 0;
    }
    while (f->bytes && strchr("\n\r ", f->text[f->bytes - 1]) && f->text[f->bytes - 1])
        f->text[--f->bytes] = '\0';
    err = check_bytes(f);
    if (!err && full && !f->ended)
        err = text_refuse(f, -EINVAL, "a line of more than %d bytes; is this a %s file?",
                          TEXT_LINE_MOST, f->kind);
    return err ? err : 1;
}

int text_check_end(const struct text_file *f)
{
    return f->ended
               ? 0
               : text_refuse(f, -EINVAL, "the last line has no end; the file seems to be cut off");
}

int text_fields(char *line, char **fields, int most)
{
    int n = 0;
    for (char *at = line, *comma = line; comma; at = comma + 1, n++) {
        comma = strchr(at, ',');
        if (n < most)
            fields[n] = at;
        if (comma && n < most)
            *comma = '\0';
    }
    return n;
}
