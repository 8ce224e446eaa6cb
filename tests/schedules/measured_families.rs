//! The model against what was measured of families: how far its times are off, fused or not.

use crate::measured::is_held_out;
use counterflow::codegen::lower::lower;
use counterflow::codegen::model::{self, Band};
use counterflow::codegen::plan::Plan;
use counterflow::codegen::program::Setting;
use counterflow::codegen::verify::{self, Checked};
use counterflow::family::{Candidate, Family, SCHEDULE, Stage};
use counterflow::tuned::{self, Tuned};
use counterflow::{Kernel, Machine, Program, Shape, Variant, families, schedules};
use std::collections::{BTreeMap, BTreeSet};

/// Every candidate of two families in two variants, of up to 256 rows, on two H200s.
const FEW: &str = include_str!("../../notes/bench/few_rows.csv");
const FEW_WORLD: u32 = 2;

/// Choices of a stage, by the names of its schedule.
type Choices = BTreeMap<String, Setting>;

/// Seconds of a kernel by the model.
type Seconds = fn(&Checked<Kernel>, &Checked<Plan>, &Machine) -> f64;

/// The model's microseconds of stages with these choices, one launch behind the other, by `seconds` of each kernel.
fn predicted(
    machine: &Machine,
    world: u32,
    shape: &Shape,
    stages: &[(&Stage, Choices)],
    seconds: Seconds,
) -> f64 {
    let each = stages.iter().map(|(stage, choices)| {
        // It has no kernel that the timeline knows.
        if let Some(seconds) = stage.seconds(world, shape, machine) {
            return seconds;
        }
        let shape = stage.shape(shape);
        let variant = Variant {
            choices: choices.clone(),
            ..Variant::new(world)
        };
        let kernel = lower(stage.program(), &variant).and_then(verify::kernel);
        let kernel = kernel.expect("legal");
        let plan = verify::plan(&kernel, &shape, machine).expect("a plan");
        seconds(&kernel, &plan, machine)
    });
    each.sum::<f64>() * 1e6
}

/// As `predict` says: on a cool GPU.
fn cool(kernel: &Checked<Kernel>, plan: &Checked<Plan>, machine: &Machine) -> f64 {
    model::seconds(kernel, plan, machine).expect("it ends")
}

/// A row's choices of each stage. A table names them behind the stage's name if there are several.
fn choices_of(candidate: &Candidate, row: &BTreeMap<String, String>) -> Vec<Choices> {
    let several = candidate.stages().len() > 1;
    let each = candidate.stages().iter().map(|stage| {
        let prefix = format!("{}/", stage.program().name);
        let own = row.iter().filter(|(name, _)| *name != SCHEDULE);
        let own = own.filter_map(|(name, text)| {
            let name = match several {
                true => name.strip_prefix(&prefix)?,
                false => name,
            };
            Some((name.to_owned(), Setting::parse(text).expect("a setting")))
        });
        own.collect()
    });
    each.collect()
}

/// Measured over predicted times.
#[derive(Default)]
struct Ratios(Vec<(String, f64)>);

impl Ratios {
    /// The share of them that is within that factor.
    fn within(&self, factor: f64) -> f64 {
        let near = |ratio: f64| ratio.ln().abs() <= factor.ln();
        let count = self.0.iter().filter(|(_, ratio)| near(*ratio)).count();
        count as f64 / self.0.len() as f64
    }

    fn told(&self, of: &str) {
        let (n, logs) = (self.0.len() as f64, self.0.iter().map(|(_, it)| it.ln()));
        let mean = (logs.clone().sum::<f64>() / n).exp();
        let off = (logs.map(|log| log * log).sum::<f64>() / n).sqrt();
        println!(
            "{of}: {n} rows, measured {mean:.3} of predicted in the mean, off by {off:.3}, {:.2} within 15 %, {:.2} within 30 %",
            self.within(1.15),
            self.within(1.3)
        );
    }
}

/// A card's winners of families.
struct Won {
    machine: Machine,
    /// What the winners took over what the model says of a GPU at its power limit: all, and of shapes that were held out.
    all: Ratios,
    held_out: Ratios,
    /// Of those of one kernel, what they took over what the model says of a cool one.
    fused: Vec<f64>,
    /// What the model says of its error in these.
    bands: BTreeSet<Option<[u64; 3]>>,
}

fn won(machine: Machine) -> Won {
    let table = Tuned::embedded().expect("whole");
    let mut won = Won {
        machine,
        all: Ratios::default(),
        held_out: Ratios::default(),
        fused: Vec::new(),
        bands: BTreeSet::new(),
    };
    for family in families::ALL.map(|family| family()) {
        for world in 2..=4 {
            let key = family.key(&won.machine.gpu, &Variant::new(world));
            for winner in table.winners().filter(|winner| winner.key == key) {
                let named = &winner.choices[SCHEDULE];
                let mut candidates = family.candidates().iter();
                let candidate = candidates.find(|candidate| candidate.name() == *named);
                let candidate = candidate.expect("offered");
                let size = [winner.m, winner.n, winner.k];
                let shape = Shape::new(winner.m, winner.n, winner.k);
                let choices = choices_of(candidate, &winner.choices);
                let stages: Vec<_> = candidate.stages().iter().zip(choices).collect();
                let of = |seconds| {
                    let predicted = predicted(&won.machine, world, &shape, &stages, seconds);
                    winner.microseconds / predicted
                };
                let ratio = of(tuned::predicted);
                if let [stage] = candidate.stages() {
                    won.fused.push(of(cool));
                    let kernel = lower(stage.program(), &Variant::new(world));
                    let band = model::band(&kernel.expect("a meaning"), &won.machine);
                    let bits =
                        |band: Band| [band.low.to_bits(), band.high.to_bits(), band.rows.into()];
                    won.bands.insert(band.map(bits));
                }
                let told = format!("{named} of {world} ranks at {shape}");
                println!("{told}: {ratio:.3}");
                if is_held_out(size) {
                    won.held_out.0.push((told.clone(), ratio));
                }
                won.all.0.push((told, ratio));
            }
        }
    }
    won.all.told(&format!("{}, all", won.machine.name));
    won.held_out.told("held out");
    won
}

/// What families' winners took where they won, of the shapes that were held out and of all; and what `predict` says of its own error.
#[test]
fn winners_of_families_take_about_as_long_as_the_model_says() {
    for (machine, rows) in [(Machine::h100(), 30), (Machine::h200(), 3)] {
        let Won {
            machine,
            all,
            held_out,
            mut fused,
            bands,
        } = won(machine);
        assert_eq!(all.within(1.3), 1.0, "{}", machine.name);
        assert!(held_out.0.len() > rows, "{}", machine.name);
        assert!(held_out.within(1.15) >= 0.8, "{}", machine.name);
        fused.sort_by(f64::total_cmp);
        let at = |share: f64| fused[(share * (fused.len() - 1) as f64).round() as usize];
        let (low, high, rows) = (at(0.05), at(0.95), fused.len());
        println!("band of fused schedules: {low:.3} to {high:.3} of {rows} rows");
        let band: Vec<_> = bands.into_iter().collect();
        let [Some([own_low, own_high, own_rows])] = band[..] else {
            panic!("{}: {band:?}", machine.name);
        };
        let own = [own_low, own_high].map(f64::from_bits);
        assert!(
            (own[0] - low).abs() < 0.005 && (own[1] - high).abs() < 0.005,
            "{}: {own:?}",
            machine.name
        );
        assert_eq!(own_rows as usize, rows, "{}", machine.name);
        let never = lower(&schedules::ag_gemm_slabs(), &Variant::new(2)).expect("a meaning");
        assert_eq!(model::band(&never, &machine), None, "it won nowhere");
    }
}

/// The candidate and the choices of each stage that a contender's name says, such as
/// `all_gather chunks=64, then gemm tiles=128x80`.
fn contender(family: &Family, name: &str) -> Option<(Vec<Stage>, Vec<Choices>, u32)> {
    let parts: Vec<Vec<&str>> = (name.split(", then "))
        .map(|part| part.split(' ').collect())
        .collect();
    let names: Vec<&str> = parts.iter().map(|words| words[0]).collect();
    let of = |candidate: &&Candidate| candidate.name() == names.join("+");
    let (stages, world) = match family.candidates().iter().find(of) {
        Some(candidate) => (candidate.stages().to_vec(), FEW_WORLD),
        None if name.ends_with(" alone") => (vec![Stage::new(schedules::gemm())], 1),
        // One that the family had when it was measured.
        None => {
            let of = |schedule: &fn() -> Program| schedule().name == names[0];
            let schedule = schedules::ALL.iter().find(|schedule| of(schedule))?;
            (vec![Stage::new(schedule())], FEW_WORLD)
        }
    };
    let choices = parts.iter().map(|words| {
        let settings = words.iter().filter_map(|word| word.split_once('='));
        let parsed = settings.map(|(name, text)| {
            let setting = Setting::parse(text).expect("a setting");
            (name.to_owned(), setting)
        });
        parsed.collect()
    });
    Some((stages, choices.collect(), world))
}

/// Also those that did not win, on the other card. Its rows are no whole tiles and no whole chunks.
#[test]
fn candidates_of_few_rows_take_about_as_long_as_the_model_says() {
    let machine = Machine::h200();
    let mut kinds: BTreeMap<String, Ratios> = BTreeMap::new();
    for line in FEW.lines().skip(1) {
        let words: Vec<&str> = line.split('"').collect();
        let [row, name, times] = words[..] else {
            panic!("a row: {line}");
        };
        let sizes: Vec<&str> = row.split(',').collect();
        let [m, n, k] = [1, 2, 3].map(|at| sizes[at].parse().expect("a size"));
        let family = match sizes[0] {
            "all_gather_gemm" => families::all_gather_gemm(),
            "gemm_all_reduce" => families::gemm_all_reduce(),
            other => panic!("no family {other}"),
        };
        let median: f64 = times
            .split(',')
            .nth(1)
            .expect("a time")
            .parse()
            .expect("it");
        let Some((stages, choices, world)) = contender(&family, name) else {
            assert!(name.contains("cuBLASLt"), "{name}");
            continue;
        };
        let stages: Vec<_> = stages.iter().zip(choices).collect();
        let shape = Shape::new(m, n, k);
        let ratio = median / predicted(&machine, world, &shape, &stages, tuned::predicted);
        println!("{m}x{n}x{k} {name}: {ratio:.3}");
        let kind = match (stages.len(), world) {
            (_, 1) => "product alone",
            (1, _) => "fused",
            _ => "not fused",
        };
        let all = kinds.entry(kind.into()).or_default();
        all.0.push((line.into(), ratio));
    }
    // No number is fitted to these rows.
    for (kind, least) in [("fused", 0.8), ("not fused", 0.75), ("product alone", 1.0)] {
        kinds[kind].told(kind);
        assert!(kinds[kind].within(1.3) >= least, "{kind}");
    }
}
