//! Tune your GPU and keep the table: measure, keep the winners in a file of your own, build ops of them.
//!
//! `cargo run --release --example tune -- winners.toml` measures `gemm` on a GPU, if there is one, as `bench --sweep --tuned
//! winners.toml` does. Without a GPU it keeps what the model likes best, and says so. Programs read that file at start.

use counterflow::schedules::gemm;
use counterflow::tuned::{self, Choice, Key, Tuned, Winner};
use counterflow::{Device, Error, Shape, Variant, cuda::Gpu, machines};
use counterflow_workbench::{GOOD, Surroundings, run_with};
use std::path::{Path, PathBuf};

const SIZE: [u32; 3] = [2048, 8192, 8192];

fn main() -> Result<(), Error> {
    let named = std::env::args_os().nth(1).map(PathBuf::from);
    let folder = std::env::temp_dir().join(format!("counterflow-tune-{}", std::process::id()));
    let table = named.clone().unwrap_or_else(|| folder.join("winners.toml"));
    let gpu = Device::Cuda.open().and_then(|_| Gpu::open(0));
    let gpu = gpu.map_or("no GPU".to_owned(), |gpu| gpu.name().to_owned());
    if gpu == "no GPU" {
        keep_a_guess(&table)?;
    } else {
        measure(&table)?;
    }

    // What a program does at start: its own winners count first.
    let tables = [Tuned::read(&table)?, Tuned::embedded()?];
    let Choice { variant, measured } = choose(&tables, &gpu)?;
    println!(
        "{} winners in {}: {variant}",
        tables[0].len(),
        table.display()
    );
    assert!(measured, "the table was not used");
    if named.is_none() {
        _ = std::fs::remove_dir_all(&folder);
    }
    Ok(())
}

fn choose(tables: &[Tuned], gpu: &str) -> Result<Choice, Error> {
    let [m, n, k] = SIZE;
    let (shape, base) = (Shape::new(m, n, k), Variant::new(1));
    let machine = machines::machine(gpu)?;
    tuned::select(tables, gpu, &gemm(), &base, &shape, &machine)
}

/// The model's six favourites, beside cuBLASLt.
fn measure(table: &Path) -> Result<(), Error> {
    let [m, n, k] = SIZE;
    let words =
        format!("tune bench gemm --shape {m}x{n}x{k} --sweep --variants 6 --samples 10 --tuned");
    let words = words
        .split(' ')
        .map(Into::into)
        .chain([table.as_os_str().to_owned()]);
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let code = run_with(
        words,
        &[gemm],
        &Surroundings::of_process(),
        &mut out,
        &mut err,
    );
    assert_eq!(code, GOOD, "`bench` says why; `doctor` may know more");
    Ok(())
}

/// A row without times, as a measurement would have put it there.
fn keep_a_guess(table: &Path) -> Result<(), Error> {
    let [m, n, k] = SIZE;
    let guess = choose(&[], "no GPU")?;
    let settings = guess.variant.choices.iter();
    let mut winners = Tuned::default();
    winners.put(Winner {
        key: Key::new("no GPU", &gemm(), &guess.variant),
        m,
        n,
        k,
        microseconds: 0.0,
        p10: 0.0,
        p90: 0.0,
        cublaslt: 0.0,
        choices: settings
            .map(|(name, setting)| (name.clone(), setting.to_string()))
            .collect(),
    });
    println!("no GPU: nothing was measured, the model's favourite is kept");
    winners.write(table)
}
