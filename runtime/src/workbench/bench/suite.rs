//! What is measured: shapes one by one, or the layers of a model.

use crate::error::Error;

/// How a layer is divided over ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
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

/// A product to measure: what it is called, and its rows, columns and depth on one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Case {
    pub layer: String,
    pub size: [u32; 3],
}

impl Case {
    fn new(layer: &str, size: [u32; 3]) -> Case {
        Case {
            layer: layer.into(),
            size,
        }
    }

    /// Multiplications and additions.
    pub(super) fn flop(&self) -> f64 {
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
pub(super) fn single(size: [u32; 3]) -> Case {
    Case::new("", size)
}

/// The products of a named suite: `squares`, or a model and its ranks, such as `llama70b-tp4`, with `rows` instead of
/// the suite's. Where only one side can be computed, only its layers.
///
/// # Errors
/// [`Error::Usage`] for a name that is none, or a suite for other ranks than `world`, if that matters.
pub(super) fn named(
    name: &str,
    rows: &[u32],
    side: Option<Side>,
    world: Option<u32>,
) -> Result<Vec<Case>, Error> {
    if name == "squares" {
        return Ok(SQUARES.map(|size| Case::new("", [size; 3])).to_vec());
    }
    let found = name.rsplit_once("-tp").and_then(|(model, ranks)| {
        let (_, layers) = MODELS.iter().find(|(known, _)| *known == model)?;
        let ranks = ranks.parse::<u32>().ok()?;
        RANKS.contains(&ranks).then_some((layers, ranks))
    });
    let Some((layers, ranks)) = found else {
        return Err(Error::Usage {
            what: format!("`{name}` is no suite"),
            legal: format!(
                "squares, or {} with -tp2, -tp4 or -tp8",
                MODELS.map(|(model, _)| model).join(", ")
            ),
        });
    };
    if let Some(world) = world.filter(|world| *world != ranks) {
        return Err(Error::Usage {
            what: format!("{name} is for {ranks} ranks, and there are {world}"),
            legal: format!("--world {ranks}, or the suite -tp{world}"),
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
            rows.iter().map(move |m| Case::new(layer, [*m, n, k]))
        })
        .collect())
}

/// `4096x8192x1024` as rows, columns and depth.
pub(super) fn size(text: &str) -> Result<[u32; 3], String> {
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

const SIZE: &str = "it is rows, columns and depth on a rank, such as 4096x8192x1024";

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
