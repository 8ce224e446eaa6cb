//! Suites of measurements: single shapes, the layers of models, or rows that fill no tile.

use counterflow_runtime::Error;

/// Division of a layer over ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// By columns of the product: its input is gathered.
    Columns,
    /// By depth: its output is summed.
    Depth,
}

/// A product of a model: columns and depth over all ranks.
struct Layer(&'static str, Side, u32, u32);

use Side::{Columns, Depth};

/// `gate_up` is both matrices at once, `up` one of them.
const LLAMA_70B: &[Layer] = &[
    Layer("qkv", Columns, 10240, 8192),
    Layer("gate_up", Columns, 57344, 8192),
    Layer("up", Columns, 28672, 8192),
    Layer("o_proj", Depth, 8192, 8192),
    Layer("down", Depth, 8192, 28672),
];
const LLAMA_405B: &[Layer] = &[
    Layer("qkv", Columns, 18432, 16384),
    Layer("up", Columns, 53248, 16384),
    Layer("o_proj", Depth, 16384, 16384),
    Layer("down", Depth, 16384, 53248),
];
const GPT3_175B: &[Layer] = &[
    Layer("qkv", Columns, 36864, 12288),
    Layer("fc1", Columns, 49152, 12288),
    Layer("proj", Depth, 12288, 12288),
    Layer("fc2", Depth, 12288, 49152),
];
const MODELS: [(&str, &[Layer]); 3] = [
    ("llama70b", LLAMA_70B),
    ("llama405b", LLAMA_405B),
    ("gpt3", GPT3_175B),
];
const RANKS: [u32; 3] = [2, 4, 8];
const ROWS: [u32; 6] = [512, 1024, 2048, 4096, 8192, 16384];
const SQUARES: [u32; 3] = [2048, 4096, 8192];
/// All models on all ranks.
const ALL: &str = "all";
const RAGGED: &str = "ragged";
/// Rows that leave one tile partly filled, or overflow into one.
const RAGGED_ROWS: [u32; 7] = [1, 7, 127, 129, 1000, 1025, 4097];
/// Columns and depth of ragged products.
const RAGGED_SIZES: [[u32; 2]; 2] = [[8192, 8192], [7168, 8192]];
const FP8: &str = "fp8";
/// Large products of FP8, DeepSeek-V3's among them.
const FP8_LARGE: [[u32; 3]; 9] = [
    [4096, 7168, 16384],
    [4096, 4096, 7168],
    [4096, 7168, 2048],
    [4096, 24576, 1536],
    [4096, 32768, 512],
    [8192, 8192, 8192],
    [2048, 14336, 8192],
    [8192, 8192, 7168],
    [2048, 8192, 2048],
];
/// Rows, and columns by depth, of small ones, as inference has them.
const FP8_ROWS: [u32; 4] = [1, 16, 64, 128];
const FP8_SIZES: [[u32; 2]; 2] = [[4096, 7168], [7168, 2048]];
/// Rows of a full tile, as most tiles have.
const FULL: u32 = 128;

/// A product to measure: its name, and its rows, columns and depth on one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub layer: String,
    pub size: [u32; 3],
    /// Suites that have the case.
    pub suites: Vec<String>,
}

impl Case {
    fn new(layer: &str, size: [u32; 3], suite: &str) -> Case {
        Case {
            layer: layer.into(),
            size,
            suites: Vec::from_iter((!suite.is_empty()).then(|| suite.into())),
        }
    }

    /// In the ragged suite: the product whose rows fill the tiles that this one's do not.
    pub(crate) fn full(&self) -> Option<[u32; 3]> {
        let [m, n, k] = self.size;
        let full = m.next_multiple_of(FULL);
        let ragged = self.suites.iter().any(|suite| suite == RAGGED);
        (ragged && full != m).then_some([full, n, k])
    }

    /// Multiplications and additions.
    pub(crate) fn flop(&self) -> f64 {
        2.0 * self.size.iter().copied().map(f64::from).product::<f64>()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [m, n, k] = self.size;
        if !self.layer.is_empty() {
            write!(f, "{} ", self.layer)?;
        }
        write!(f, "{m}x{n}x{k}")
    }
}

/// A product of those sizes.
pub(crate) fn single(size: [u32; 3]) -> Case {
    Case::new("", size, "")
}

/// Each product once, in order of first mention, with the names of all its layers and suites.
pub(crate) fn distinct(cases: impl IntoIterator<Item = Case>) -> Vec<Case> {
    let mut found: Vec<Case> = Vec::new();
    for case in cases {
        let Some(known) = found.iter_mut().find(|known| known.size == case.size) else {
            found.push(case);
            continue;
        };
        if !known.layer.split(',').any(|layer| layer == case.layer) && !case.layer.is_empty() {
            let comma = if known.layer.is_empty() { "" } else { "," };
            known.layer = format!("{}{comma}{}", known.layer, case.layer);
        }
        for suite in case.suites {
            if !known.suites.contains(&suite) {
                known.suites.push(suite);
            }
        }
    }
    found
}

/// Names and layers of all suites, for `--help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Suites, columns x depth over all ranks:\n");
    for (model, layers) in MODELS {
        let layers = layers.iter().map(|Layer(name, divided, n, k)| {
            let by = match divided {
                Columns => "columns",
                Depth => "depth",
            };
            format!("{name} {n}x{k} by {by}")
        });
        let layers: Vec<_> = layers.collect();
        text.push_str(&format!(
            "  {model}-tp2, -tp4, -tp8: {}\n",
            layers.join(", ")
        ));
    }
    let list = |numbers: &[u32]| {
        numbers
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let [one, other] = RAGGED_SIZES.map(|[n, k]| format!("{n}x{k}"));
    let [few, fewer] = FP8_SIZES.map(|[n, k]| format!("{n}x{k}"));
    text.push_str(&format!(
        "  {ALL}: these nine; of a schedule for several ranks, those for as many\n  \
         squares: {}\n  \
         {RAGGED}: rows {} and the next multiple of {FULL}, by {one} and {other}\n  \
         {FP8}: large products up to 8192x8192x8192, and rows {} by {few} and {fewer}\n\
         Rows, where --rows says no others: {}. A product that is in several suites is measured once.",
        list(&SQUARES),
        list(&RAGGED_ROWS),
        list(&FP8_ROWS),
        list(&ROWS),
    ));
    text
}

fn ragged(rows: &[u32]) -> Vec<Case> {
    let rows = if rows.is_empty() { &RAGGED_ROWS } else { rows };
    let sizes = RAGGED_SIZES.into_iter().flat_map(|[n, k]| {
        let each = rows.iter().map(move |m| [*m, n, k]);
        each.flat_map(|[m, n, k]| [[m, n, k], [m.next_multiple_of(FULL), n, k]])
    });
    sizes.map(|size| Case::new("", size, RAGGED)).collect()
}

/// The large products, then the small ones, each with a mean of their own.
fn fp8(rows: &[u32]) -> Vec<Case> {
    let large = FP8_LARGE.map(|size| Case::new("", size, "fp8, large"));
    let rows = if rows.is_empty() { &FP8_ROWS } else { rows };
    let few = rows
        .iter()
        .flat_map(|m| FP8_SIZES.map(|[n, k]| Case::new("", [*m, n, k], "fp8, few rows")));
    large.into_iter().chain(few).collect()
}

/// The products of a named suite: `squares`, `ragged`, `fp8`, a model with its ranks, such as `llama70b-tp4`, or `all` of
/// those. `rows` replaces the suite's rows. If the schedule computes only one division, only its layers.
///
/// # Errors
/// [`Error::Usage`] for an unknown name, or a suite for other ranks than `world`, if that matters.
pub(crate) fn named(
    name: &str,
    rows: &[u32],
    side: Option<Side>,
    world: Option<u32>,
) -> Result<Vec<Case>, Error> {
    match name {
        "squares" => return Ok(SQUARES.map(|size| Case::new("", [size; 3], name)).to_vec()),
        RAGGED => return Ok(ragged(rows)),
        FP8 => return Ok(fp8(rows)),
        ALL => {
            let known = world.is_none_or(|world| RANKS.contains(&world));
            let ranks = RANKS
                .into_iter()
                .filter(|ranks| world.is_none_or(|world| world == *ranks));
            let names = MODELS.iter().flat_map(|(model, _)| {
                let ranks = ranks.clone();
                ranks.map(move |ranks| format!("{model}-tp{ranks}"))
            });
            if known {
                let each: Result<Vec<_>, _> =
                    names.map(|name| named(&name, rows, side, world)).collect();
                return Ok(each?.concat());
            }
        }
        _ => {}
    }
    let found = name.rsplit_once("-tp").and_then(|(model, ranks)| {
        let (_, layers) = MODELS.iter().find(|(known, _)| *known == model)?;
        let ranks = ranks.parse::<u32>().ok()?;
        RANKS.contains(&ranks).then_some((layers, ranks))
    });
    let Some((layers, ranks)) = found else {
        return Err(Error::Usage {
            what: format!("`{name}` is not a suite"),
            legal: format!(
                "squares, {RAGGED}, {FP8}, {ALL} (for 2, 4 or 8 ranks), or {} with -tp2, -tp4 or -tp8",
                MODELS.map(|(model, _)| model).join(", ")
            ),
        });
    };
    if let Some(world) = world.filter(|world| *world != ranks) {
        return Err(Error::Usage {
            what: format!("{name} is for {ranks} ranks, but there are {world}"),
            legal: format!("use --world {ranks}, or the suite -tp{world}"),
        });
    }
    let rows = if rows.is_empty() { &ROWS } else { rows };
    let layers = layers
        .iter()
        .filter(|Layer(_, divided, ..)| side.is_none_or(|side| side == *divided));
    Ok(layers
        .flat_map(|Layer(layer, divided, n, k)| {
            let (n, k) = match divided {
                Columns => (n / ranks, *k),
                Depth => (*n, k / ranks),
            };
            rows.iter().map(move |m| Case::new(layer, [*m, n, k], name))
        })
        .collect())
}

/// `4096x8192x1024` as rows, columns and depth.
pub(crate) fn size(text: &str) -> Result<[u32; 3], String> {
    let numbers: Vec<u32> = text
        .split('x')
        .map_while(|part| part.parse().ok())
        .collect();
    match <[u32; 3]>::try_from(numbers) {
        Ok(size) if size.iter().all(|number| (1..=1 << 24).contains(number)) => {
            let parts = text.split('x').count();
            if parts == 3 {
                Ok(size)
            } else {
                Err(SIZE.into())
            }
        }
        _ => Err(SIZE.into()),
    }
}

const SIZE: &str = "expected rows, columns and depth on a rank, such as 4096x8192x1024";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_has_the_layers_of_one_rank() {
        let all = named("llama70b-tp4", &[512, 2048], None, None).expect("a suite");
        let sizes: Vec<String> = all.iter().map(Case::to_string).collect();
        for known in [
            "qkv 512x2560x8192",
            "gate_up 2048x14336x8192",
            "up 512x7168x8192",
            "o_proj 2048x8192x2048",
            "down 512x8192x7168",
        ] {
            assert!(sizes.contains(&known.to_owned()), "no {known} in {sizes:?}");
        }
        let summed = named("gpt3-tp2", &[], Some(Depth), Some(2)).expect("a suite");
        assert_eq!(summed.len(), 2 * ROWS.len());
        assert!(summed.iter().all(|case| case.size[1] == 12288));
    }

    #[test]
    fn all_has_every_model_on_every_number_of_ranks() {
        let all = named("all", &[], None, None).expect("suites");
        assert_eq!(all.len(), (5 + 4 + 4) * 3 * ROWS.len());
        let distinct = distinct(all.clone());
        for [n, k] in [
            [14336, 8192],
            [2560, 8192],
            [8192, 7168],
            [8192, 2048],
            [12288, 12288],
            [16384, 13312],
        ] {
            for m in [512, 1024, 2048, 4096, 8192, 16384] {
                let found = distinct.iter().filter(|case| case.size == [m, n, k]);
                assert_eq!(found.count(), 1, "{m}x{n}x{k}");
            }
        }
        let suites: std::collections::BTreeSet<_> =
            distinct.iter().flat_map(|case| &case.suites).collect();
        assert_eq!(suites.len(), 9);
        let four = named("all", &[512], Some(Columns), Some(4)).expect("suites");
        assert!(four.iter().all(|case| case.suites[0].ends_with("-tp4")));
        assert_eq!(four.len(), 3 + 2 + 2);
        let three = named("all", &[], Some(Columns), Some(3)).expect_err("no suite");
        assert_eq!(three.kind(), "usage");
    }

    #[test]
    fn a_product_of_several_suites_is_measured_once() {
        let mut all = named("llama70b-tp2", &[512], None, None).expect("a suite");
        all.extend(named("llama70b-tp4", &[512], None, None).expect("a suite"));
        let distinct = distinct(all);
        let twice = distinct.iter().find(|case| case.size == [512, 14336, 8192]);
        let twice = twice.expect("up on two ranks is gate and up on four");
        assert_eq!(twice.layer, "up,gate_up");
        assert_eq!(twice.suites, ["llama70b-tp2", "llama70b-tp4"]);
        assert_eq!(distinct.len(), 9);
    }

    #[test]
    fn ragged_products_stand_beside_full_ones() {
        let all = distinct(named("ragged", &[], None, None).expect("a suite"));
        let sizes: Vec<_> = all.iter().map(|case| case.size).collect();
        for case in &all {
            if let Some(full) = case.full() {
                assert!(sizes.contains(&full), "{case}");
            }
        }
        let full = all.iter().filter(|case| case.full().is_none());
        assert_eq!(full.count(), 2 * 5, "128, 256, 1024, 1152, 4224");
        assert_eq!(single([7, 8, 8]).full(), None);
        let other = named("ragged", &[100], None, None).expect("a suite");
        assert_eq!(other[0].full(), Some([128, 8192, 8192]));
    }

    #[test]
    fn large_and_small_products_of_fp8_have_means_of_their_own() {
        let all = named("fp8", &[], None, None).expect("a suite");
        assert_eq!(distinct(all.clone()).len(), 9 + 8);
        let few = all.iter().filter(|case| case.suites == ["fp8, few rows"]);
        assert!(few.clone().all(|case| case.size[0] <= 128) && few.count() == 8);
        let fewer = named("fp8", &[32], None, None).expect("a suite");
        assert_eq!(fewer.len(), 9 + 2);
    }

    #[test]
    fn other_names_and_ranks_are_refused() {
        for (name, world) in [
            ("llama7b-tp4", None),
            ("gpt3", None),
            ("gpt3-tp3", None),
            ("gpt3-tp2", Some(4)),
        ] {
            let error = named(name, &[], None, world).expect_err("refused");
            assert_eq!(error.kind(), "usage", "{name}");
        }
    }

    #[test]
    fn sizes_are_three_numbers() {
        assert_eq!(size("512x7168x8192"), Ok([512, 7168, 8192]));
        for wrong in [
            "512",
            "512x7168",
            "0x1x1",
            "1x2x3x4",
            "1x2x3x",
            "ax1x1",
            "99999999x1x1",
        ] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
