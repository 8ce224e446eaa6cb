//! A chart of what `bench` measured, as an SVG on standard output: times over those of the product alone.
//!
//! `cargo run --release --example chart > chart.svg` draws the README's. Your own: `bench ag_gemm --world 2 --nccl --json`
//! for each schedule; put the objects in a list, each with a `card`, and give the file's name.

use counterflow::Error;

fn main() -> Result<(), Error> {
    let ours = include_str!("../notes/bench/peers.json").to_owned();
    let named = std::env::args().nth(1);
    let results = named.map(|path| match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(error) => Err(Error::Usage {
            what: format!("{path}: {error}"),
            legal: "a file of results of `bench --json`".into(),
        }),
    });
    let results = results.transpose()?.unwrap_or(ours);
    print!("{}", counterflow_workbench::chart(&results)?);
    Ok(())
}
