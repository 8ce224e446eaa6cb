//! The page for who comes from TransformerEngine.

/// The quoted code of a table's second column.
fn ours(page: &str) -> Vec<&str> {
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1);
    let rows = rows.take_while(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_matches('|').split(" | ").nth(1));
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    quoted.collect()
}

#[test]
fn each_row_is_in_the_program_that_is_compiled() {
    let page = include_str!("../../../docs/transformer-engine.md");
    let program = page.split("```rust").nth(1).expect("a program");
    let program = program.split("```").next().expect("its end");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("| Mega"));
    let ours = ours(page);
    assert!(rows.count() >= 20 && ours.len() >= 20, "{ours:?}");
    // A comment calls nothing.
    let code: Vec<&str> = program
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect();
    let code = code.join("\n");
    for call in ours {
        assert!(code.contains(call), "`{call}` is not in the program");
    }
}
