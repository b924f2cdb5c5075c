/* SPDX-License-Identifier: MIT */
/* Records: the table, the JSON file and the CSV file of the same rows, and files that appear whole.
 */
#include "tools/record.h"
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64];

static char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    return path;
}

static char *content_of(const char *path)
{
    static char text[8192];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return text;
}

static int make_directory(void **state)
{
    (void)state;
    strcpy(directory, "/tmp/test_record.XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state)
{
    glob_t found;
    (void)state;
    if (!glob(path_of("*"), 0, NULL, &found))
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
    globfree(&found);
    return rmdir(directory); /* fails if anything hidden was left */
}

static json_t *sample(void)
{
    json_t *report = record_new(NULL, "sstar test"), *rows = json_array();
    json_array_append_new(rows, json_pack("{s:s, s:i, s:o}", "name", "plain", "size_bytes", 4096,
                                          "time_us", record_real(1.0 / 3)));
    json_array_append_new(rows, json_pack("{s:s, s:i, s:b}", "name", "comma, \"quote\"\nand line",
                                          "size_bytes", 8, "checked", 1));
    json_array_append_new(rows,
                          json_pack("{s:o, s:[i,i]}", "time_us", record_real(NAN), "list", 1, 2));
    json_object_set_new(report, "test", rows);
    return report;
}

static void numbers_have_six_digits(void **state)
{
    json_t *number = record_real(123456.789012), *third = record_real(1.0 / 3),
           *none = record_real(INFINITY);
    (void)state;
    assert_true(json_real_value(number) == 123457);
    assert_true(json_real_value(third) == 0.333333);
    assert_true(json_is_null(none));
    json_decref(number);
    json_decref(third);
    json_decref(none);
}

static void a_report_says_where_it_is_from(void **state)
{
    json_t *report = record_new(NULL, "sstar fit");
    (void)state;
    assert_string_equal(json_string_value(json_object_get(report, "command")), "fit");
    assert_string_equal(json_string_value(json_object_get(report, "version")), SSTAR_VERSION);
    assert_non_null(
        strstr(json_string_value(json_object_get(report, "command_line")), "test_record"));
    assert_true(json_string_length(json_object_get(report, "host")) > 0);
    assert_int_equal(json_string_length(json_object_get(report, "date")),
                     strlen("2000-01-01T00:00:00Z"));
    json_decref(report);
}

/* Names of files are bytes; what JSON cannot hold is not left out. */
static void text_need_not_be_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *given, *kept;
    } texts[] = {{"a.csv", "a.csv"},
                 {"r\xc3\xa4tsel \"1\".csv", "r\xc3\xa4tsel \"1\".csv"},
                 {"r\xe4tsel.csv", "r\\xe4tsel.csv"},
                 {"\xff\xfe", "\\xff\\xfe"},
                 {"", ""}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        json_t *row = json_object();
        record_text(row, "file", texts[i].given);
        const char *kept = json_string_value(json_object_get(row, "file"));
        assert_non_null(kept);
        assert_string_equal(kept, texts[i].kept);
        json_decref(row);
    }
    assert_null(record_string(NULL));
}

static void the_table_is_aligned(void **state)
{
    static const struct column columns[] = {
        {"size_bytes", "size", "%d", 8}, {"time_us", "time", "%.2f", 8}, {"name", "name", "%s", 6}};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    (void)state;
    table_head(out, columns, 3);
    json_t *row = json_pack("{s:i, s:f, s:s}", "size_bytes", 4096, "time_us", 1.005, "name", "a");
    table_row(out, columns, 3, row);
    json_decref(row);
    row = json_pack("{s:f, s:i, s:n}", "size_bytes", 7.6, "time_us", 3, "name");
    table_row(out, columns, 3, row);
    json_decref(row);
    row = json_pack("{s:b, s:I}", "name", 1, "size_bytes", (json_int_t)5000000000);
    table_row(out, columns, 3, row);
    json_decref(row);
    fclose(out);
    assert_string_equal(text, "#     size     time   name\n"
                              "      4096     1.00      a\n"
                              "         8     3.00      -\n"
                              "  5000000000        -    yes\n");
    free(text);
}

static void json_is_read_back(void **state)
{
    json_t *report = sample();
    json_error_t error;
    (void)state;
    assert_int_equal(record_write_json(report, path_of("a.json")), 0);
    json_t *again = json_load_file(path_of("a.json"), 0, &error);
    assert_non_null(again);
    assert_true(json_equal(report, again));
    assert_non_null(strstr(content_of(path_of("a.json")), "0.333333"));
    assert_null(strstr(content_of(path_of("a.json")), "0.3333330000"));
    assert_int_equal(record_write_json(report, NULL), 0);
    json_decref(report);
    json_decref(again);
}

static void csv_is_quoted(void **state)
{
    json_t *report = sample();
    (void)state;
    assert_int_equal(record_write_csv(report, "test", path_of("a.csv")), 0);
    assert_string_equal(content_of(path_of("a.csv")),
                        "name,size_bytes,time_us,checked,list\n"
                        "plain,4096,0.333333,,\n"
                        "\"comma, \"\"quote\"\"\nand line\",8,,true,\n"
                        ",,,,\"[1,2]\"\n");
    assert_int_equal(record_write_csv(report, "test", NULL), 0);
    json_decref(report);
}

static void a_file_is_replaced_whole(void **state)
{
    json_t *report = sample();
    struct stat before, after;
    char link[128];
    (void)state;
    FILE *file = fopen(path_of("old"), "w");
    fputs("old and much longer than nothing", file);
    fclose(file);
    stat(path_of("old"), &before);
    strcpy(link, path_of("link"));
    assert_int_equal(symlink(path_of("old"), link), 0);
    assert_int_equal(record_write_json(report, link), 0);
    assert_int_equal(lstat(link, &after), 0);
    assert_true(S_ISLNK(after.st_mode)); /* the file behind the link is new, the link is not */
    stat(path_of("old"), &after);
    assert_true(before.st_ino != after.st_ino);
    assert_int_equal(content_of(path_of("old"))[0], '{');
    json_decref(report);
}

static void what_cannot_be_written_fails(void **state)
{
    json_t *report = sample();
    (void)state;
    assert_int_equal(record_write_json(report, "/nonexistent/a.json"), 1);
    assert_int_equal(record_write_csv(report, "test", "/nonexistent/a.csv"), 1);
    assert_int_equal(record_write_json(report, directory), 1);
    assert_int_equal(record_can_write("sstar test", "/nonexistent/a.json", NULL), 1);
    assert_int_equal(record_can_write("sstar test", NULL, "/nonexistent/a.csv"), 1);
    assert_int_equal(record_can_write("sstar test", NULL, NULL), 0);
    assert_int_equal(record_can_write("sstar test", "-", path_of("fresh")), 0);
    assert_int_not_equal(access(path_of("fresh"), F_OK), 0); /* looking leaves nothing */
    if (!access("/dev/full", W_OK)) {
        assert_int_equal(record_write_json(report, "/dev/full"), 1);
        assert_int_equal(record_write_csv(report, "test", "/dev/full"), 1);
        assert_int_equal(access("/dev/full", F_OK), 0);
    }
    json_decref(report);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_six_digits),
        cmocka_unit_test(a_report_says_where_it_is_from),
        cmocka_unit_test(text_need_not_be_utf8),
        cmocka_unit_test(the_table_is_aligned),
        cmocka_unit_test(json_is_read_back),
        cmocka_unit_test(csv_is_quoted),
        cmocka_unit_test(a_file_is_replaced_whole),
        cmocka_unit_test(what_cannot_be_written_fails),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
