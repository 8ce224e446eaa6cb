//! Lines of the text that are too long for a reader.

use crate::wrap::wrapped;

#[test]
fn what_fits_is_left() {
    assert_eq!(wrapped("tma_commit();", 4), ["    tma_commit();"]);
    assert_eq!(wrapped("", 4), [""]);
}

#[test]
fn long_lines_are_broken_where_a_reader_would() {
    let a = "a_long_name_of_an_argument";
    let call = format!("tma_load<ROWS, COLUMNS>({a} + 1, {a}, {a} * 2, {a}, {a}, {a});");
    let broken = [
        format!("    tma_load<ROWS, COLUMNS>({a} + 1, {a}, {a} * 2,"),
        format!("        {a}, {a}, {a});"),
    ];
    assert_eq!(wrapped(&call, 4), broken);
    let broken = [
        "    for (u32 i = 0; i < SUBTILES; ++i)".into(),
        format!("        tma_load<ROWS, COLUMNS>({a} + 1, {a},"),
        format!("            {a} * 2, {a}, {a},"),
        format!("            {a});"),
    ];
    let looped = format!("for (u32 i = 0; i < SUBTILES; ++i) {call}");
    assert_eq!(wrapped(&looped, 4), broken);
    let broken = [
        "    const u32 sum =".into(),
        format!("        ({a} + {a}) * {a}"),
        format!("        + {a} * ({a} + {a} + 1);"),
    ];
    let sum = format!("const u32 sum = ({a} + {a}) * {a} + {a} * ({a} + {a} + 1);");
    assert_eq!(wrapped(&sum, 4), broken);
}

#[test]
fn no_line_is_broken_within_a_templates_arguments() {
    let call = "tma_load_multicast_partial<PARTIAL_BOX_ROWS, TILE_N / CLUSTER>(smem_w[stage.index] + multicast_rank * (W_BYTES / CLUSTER), w, full.at);";
    let broken = [
        "                    tma_load_multicast_partial<PARTIAL_BOX_ROWS, TILE_N / CLUSTER>(smem_w[stage.index]",
        "                        + multicast_rank * (W_BYTES / CLUSTER), w, full.at);",
    ];
    assert_eq!(wrapped(call, 20), broken);
}

#[test]
fn a_comment_that_has_no_room_stands_above() {
    let words = " words of a comment";
    let line = format!("const u32 one = 1;  //{}", words.repeat(8));
    let broken = [
        format!("    //{}", words.repeat(6)),
        format!("    //{}", words.repeat(2)),
        "    const u32 one = 1;".into(),
    ];
    assert_eq!(wrapped(&line, 4), broken);
}
