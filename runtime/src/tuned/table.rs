//! Tables of measured winners: the package's and the user's.

use super::choices::{choices, moves};
use crate::draft;
use crate::error::Error;
use crate::jit::Cache;
use crate::trust;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::program::{Program, Setting};
use counterflow_codegen::variant::{Scales, Tensors, Variant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Winners that come with the package, a file for each GPU, in the format of `bench --sweep`.
const EMBEDDED: [(&str, &str); 2] = [
    ("h100.toml", include_str!("../../tuned/h100.toml")),
    ("h200.toml", include_str!("../../tuned/h200.toml")),
];
/// The user's file, in the cache folder.
const FILE: &str = "tuned.toml";
/// The most bytes of such a file: some ten thousand winners.
const LONGEST: u64 = 16 << 20;
/// Factor by which a shape may be off the measured one in each dimension.
const NEAR: f64 = std::f64::consts::SQRT_2;

/// Key of a winner in a table, without the shape.
///
/// ```
/// use counterflow::{Dtype, Scales, Variant, schedules::gemm, tuned::Key};
///
/// let key = Key::new("NVIDIA H200", &gemm(), &Variant::new(4).dtype(Dtype::F16));
/// assert_eq!((&key.op[..], &key.dtype[..], &key.layout[..]), ("gemm", "f16", "nt"));
/// assert_eq!(key.world, 1, "its ranks do not communicate");
/// let scaled = Variant::new(4).dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3).scales(Scales::PerRow);
/// let key = Key::new("NVIDIA H200", &gemm(), &scaled);
/// let [second, output, scales] = [key.second, key.output, key.scales].map(Option::unwrap_or_default);
/// assert_eq!([&key.dtype[..], &second, &output, &scales], ["e5m2", "e4m3", "bf16", "rows"]);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Key {
    /// The GPU, as its driver names it.
    pub gpu: String,
    /// The schedule's name.
    pub op: String,
    /// Ranks.
    pub world: u32,
    /// The name of the first tensor's element type.
    pub dtype: String,
    /// Type of products' second operands, where the variant has another for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<String>,
    /// Type of the first output, where it is not the first tensor's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The kind of scales that FP8 operands have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<String>,
    /// True if sums of FP8 products are promoted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub promote: bool,
    /// True if launches make scales of outputs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_scales: bool,
    /// True if partial sums travel in FP8.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// True if outputs have amaxes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub amax: bool,
    /// The operands' layout's name.
    pub layout: String,
}

/// The best variant for one shape.
///
/// ```
/// use counterflow::tuned::Winner;
/// use counterflow::{Program, Variant};
///
/// fn variant(winner: &Winner, program: &Program) -> Option<Variant> {
///     let choices = winner.settings(program)?; // none if the schedule no longer offers them
///     Some(Variant { choices, ..Variant::new(winner.key.world) })
/// }
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Winner {
    /// Key of the winner.
    #[serde(flatten)]
    pub key: Key,
    /// Rows over all ranks.
    pub m: u32,
    /// Columns on one rank.
    pub n: u32,
    /// Depth on one rank.
    pub k: u32,
    /// Median time of a launch in microseconds.
    pub microseconds: f64,
    /// 10th percentile, in microseconds.
    pub p10: f64,
    /// 90th percentile, in microseconds.
    pub p90: f64,
    /// cuBLASLt's median for the product alone, in the same run. 0 where an op measured its own candidates: cuBLASLt is not there.
    pub cublaslt: f64,
    /// The choices, as `--set` takes them; of a [family](crate::family), its `schedule`, too, and those of one of several stages
    /// begin with its name: `gemm/tiles`. The winner counts as long as the schedule offers them; sweep again to have
    /// options tried that came later. Of a choice that came later the first option is what there was before.
    pub choices: BTreeMap<String, String>,
}

/// Winners by key and shape.
///
/// ```
/// use counterflow::tuned::{Key, Tuned, Winner};
/// use counterflow::{Variant, schedules::gemm};
/// use std::path::Path;
///
/// let program = gemm();
/// let key = Key::new("NVIDIA H200", &program, &Variant::new(1));
/// let embedded = Tuned::embedded()?;
/// for winner in embedded.near(&key, [8192, 8192, 8192]) {
///     println!("{} us: {:?}", winner.microseconds, winner.settings(&program));
/// }
/// let mut mine = Tuned::read(Path::new("no such file"))?; // no file, no winners
/// assert!(mine.is_empty());
/// let nearest: Option<&Winner> = embedded.near(&key, [8192, 8192, 8192]).into_iter().next();
/// mine.put(nearest.expect("a winner").clone());
/// assert_eq!(mine.len(), 1);
/// assert_eq!(mine.gpus()["NVIDIA H200"], 1);
/// assert!(mine.winners().all(|winner| winner.key.op == "gemm"));
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// The user's own table is in a file:
///
/// ```no_run
/// # use counterflow::tuned::Tuned;
/// let mine = Tuned::of_user()?;
/// if let Some(path) = Tuned::place() {
///     mine.write(&path)?;
/// }
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Tuned {
    #[serde(default)]
    winner: Vec<Winner>,
}

impl Key {
    /// The key of a schedule's variant on a GPU, with the types that its tensors have in the end.
    pub fn new(gpu: &str, program: &Program, variant: &Variant) -> Key {
        let elements = program.elements(variant);
        let dtype = elements.first().map_or("", |dtype| dtype.name());
        let mut tensors = program.tensors.iter().zip(&elements);
        let output = tensors.find(|(tensor, _)| tensor.usage.is_output());
        let output = output.map(|(_, dtype)| dtype.name());
        Key {
            gpu: gpu.into(),
            op: program.name.clone(),
            // Without communication the number of ranks does not matter.
            world: if moves(program) { variant.world } else { 1 },
            dtype: dtype.into(),
            second: (variant.asked(&Tensors::Rhs).element).map(|second| second.name().into()),
            output: output.filter(|output| *output != dtype).map(Into::into),
            scales: variant.operand_scales().map(|scales| scales.name().into()),
            promote: variant.promotes(),
            output_scales: variant.output_rule().is_some(),
            partial: variant.partial_rule().is_some(),
            amax: variant.asked(&Tensors::Outputs).amax,
            layout: variant.layout.name().into(),
        }
    }

    /// Keys of ops that move as many bytes and multiply as much: of the other 16-bit type, and of FP8 those whose
    /// scales come after the product, too, or that have none. Measured on an H200: with winners of scales of the
    /// whole, scales of rows reached 0.97 of cuBLASLt's speed with the same in nine large products.
    /// Last of those with amaxes, or whose launches make scales or send partial sums in FP8: the same without, which
    /// is measured more often.
    pub(super) fn twins(&self) -> Vec<Key> {
        let [bf16, f16] = [Dtype::Bf16, Dtype::F16].map(Dtype::name);
        let after = [Some(Scales::PerTensor), Some(Scales::PerRow), None];
        let after = after.map(|scales| scales.map(|scales| scales.name().to_owned()));
        let fp8 = Dtype::from_name(&self.dtype).is_some_and(Dtype::is_fp8);
        let halves = [(bf16, f16), (f16, bf16)].into_iter();
        let halves = halves.filter(|(own, _)| *own == self.dtype);
        let halves = halves.map(|(_, dtype)| Key {
            dtype: dtype.into(),
            ..self.clone()
        });
        let scaled = after.iter().filter(|_| fp8 && after.contains(&self.scales));
        let scaled = scaled.map(|scales| Key {
            scales: scales.clone(),
            ..self.clone()
        });
        let mut twins: Vec<_> = halves.chain(scaled.filter(|key| key != self)).collect();
        if self.amax || self.output_scales || self.partial {
            let all = std::iter::once(self).chain(&twins);
            let without = all.map(|key| Key {
                output_scales: false,
                partial: false,
                amax: false,
                ..key.clone()
            });
            twins.extend(without.collect::<Vec<_>>());
        }
        twins
    }
}

impl Winner {
    /// Settings of a winner, if the schedule offers them all, and the first option of each choice that it does not
    /// name.
    pub fn settings(&self, program: &Program) -> Option<BTreeMap<String, Setting>> {
        let offered = choices(program);
        let offers = |name: &str, setting: &Setting| {
            let options = offered.get(name);
            options.is_some_and(|options| options.contains(setting))
        };
        let named = self.choices.iter().map(|(name, text)| {
            let renamed = name == "pieces" && !offered.contains_key("pieces"); // in older tables
            let name = if renamed { "chunks" } else { name };
            let setting = Setting::parse(text).filter(|setting| offers(name, setting))?;
            Some((name.to_owned(), setting))
        });
        let named: BTreeMap<_, _> = named.collect::<Option<_>>()?;
        let since = offered.iter();
        let since =
            since.filter_map(|(name, options)| Some(((*name).to_owned(), *options.first()?)));
        Some(since.chain(named).collect())
    }

    /// Distance of a shape from the measured one: the sum of its dimensions' distances; none if one is too far.
    fn distance(&self, size: [u32; 3]) -> Option<f64> {
        let own = [self.m, self.n, self.k];
        let each = own.into_iter().zip(size).map(|(own, other)| {
            let ratio = f64::from(own.max(other)) / f64::from(own.min(other).max(1));
            (ratio <= NEAR).then(|| ratio.ln())
        });
        each.sum()
    }
}

impl Tuned {
    /// The tables that come with the package.
    ///
    /// # Errors
    /// [`Error::File`] only if the package is broken; a test reads it.
    pub fn embedded() -> Result<Tuned, Error> {
        // They are read once: every op that is built asks for them.
        static READ: OnceLock<Tuned> = OnceLock::new();
        if let Some(read) = READ.get() {
            return Ok(read.clone());
        }
        let mut all = Tuned::default();
        for (name, text) in EMBEDDED {
            all.winner
                .extend(Tuned::parse(text, Path::new(name))?.winner);
        }
        Ok(READ.get_or_init(|| all).clone())
    }

    /// The user's file, if there is one.
    ///
    /// # Errors
    /// As [`Tuned::read`].
    pub fn of_user() -> Result<Tuned, Error> {
        match Tuned::place() {
            Some(path) => Tuned::read(&path),
            None => Ok(Tuned::default()),
        }
    }

    /// Path of the user's table: beside the compiled kernels.
    pub fn place() -> Option<PathBuf> {
        Cache::of_user().dir().map(|dir| dir.join(FILE))
    }

    /// Reads that file. No file means no winners. It is this user's or root's, in a folder that nobody else may write, and
    /// no link.
    ///
    /// # Errors
    /// [`Error::File`] if it is not such a file, if others may write it, or if it cannot be read.
    pub fn read(path: &Path) -> Result<Tuned, Error> {
        let text = trust::read(path, LONGEST)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
        match text {
            Ok(text) => Tuned::parse(&text, path),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Tuned::default()),
            Err(source) => Err(Error::File {
                path: path.into(),
                source,
            }),
        }
    }

    /// Adds winners to a file, and gives all that it has then. Programs that do so at once lose none of theirs: each reads
    /// and writes under the file's lock.
    ///
    /// ```
    /// use counterflow::Error;
    /// use counterflow::tuned::{Tuned, Winner};
    ///
    /// /// Makes what this program measured known to the user's next programs.
    /// fn known(measured: Vec<Winner>) -> Result<(), Error> {
    ///     let Some(path) = Tuned::place() else { return Ok(()) };
    ///     println!("{} winners", Tuned::keep(&path, measured)?.len());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] as [`Tuned::read`] and [`Tuned::write`], or if another program holds the file for seconds.
    pub fn keep(path: &Path, winners: impl IntoIterator<Item = Winner>) -> Result<Tuned, Error> {
        let _alone = draft::alone(path).map_err(|source| Error::File {
            path: path.into(),
            source,
        })?;
        let mut tuned = Tuned::read(path)?;
        winners.into_iter().for_each(|winner| tuned.put(winner));
        tuned.write(path)?;
        Ok(tuned)
    }

    fn parse(text: &str, path: &Path) -> Result<Tuned, Error> {
        toml::from_str(text).map_err(|error| Error::File {
            path: path.into(),
            source: std::io::Error::new(
                ErrorKind::InvalidData,
                format!("it is no file of winners: {}", error.message()),
            ),
        })
    }

    /// Writes the file atomically, and its folder if there is none.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File {
            path: path.into(),
            source,
        };
        let text = self
            .text()
            .map_err(|error| failed(std::io::Error::other(error)))?;
        draft::write(path, text.as_bytes()).map_err(failed)
    }

    /// The file's text: a row for each winner.
    fn text(&self) -> Result<String, toml::ser::Error> {
        let mut text = String::from("winner = [\n");
        for winner in &self.winner {
            text.push_str("    ");
            winner.serialize(toml::ser::ValueSerializer::new(&mut text))?;
            text.push_str(",\n");
        }
        text.push_str("]\n");
        Ok(text)
    }

    /// Adds a winner, in place of the previous one for its key and shape.
    pub fn put(&mut self, winner: Winner) {
        let place = |winner: &Winner| (winner.key.clone(), winner.n, winner.k, winner.m);
        self.winner.retain(|known| place(known) != place(&winner));
        self.winner.push(winner);
        self.winner.sort_by_key(place);
    }

    /// The winners near that shape, the nearest first.
    pub fn near(&self, key: &Key, size: [u32; 3]) -> Vec<&Winner> {
        let known = self.winner.iter().filter(|winner| winner.key == *key);
        let mut near: Vec<_> = known
            .filter_map(|winner| Some((winner.distance(size)?, winner)))
            .collect();
        near.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        near.into_iter().map(|(_, winner)| winner).collect()
    }

    /// All winners.
    pub fn winners(&self) -> impl Iterator<Item = &Winner> {
        self.winner.iter()
    }

    /// Winners by the GPU that they were measured on.
    pub fn gpus(&self) -> BTreeMap<&str, usize> {
        let mut gpus = BTreeMap::new();
        for winner in &self.winner {
            *gpus.entry(&winner.key.gpu[..]).or_default() += 1;
        }
        gpus
    }

    /// Number of winners.
    pub fn len(&self) -> usize {
        self.winner.len()
    }

    /// True without winners.
    pub fn is_empty(&self) -> bool {
        self.winner.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn winner(m: u32, n: u32, tiles: &str) -> Winner {
        Winner {
            key: Key {
                gpu: "a GPU".into(),
                op: "gemm".into(),
                world: 1,
                dtype: "bf16".into(),
                second: None,
                output: None,
                scales: None,
                promote: false,
                output_scales: false,
                partial: false,
                amax: false,
                layout: "nt".into(),
            },
            m,
            n,
            k: 8192,
            microseconds: 100.0,
            p10: 99.0,
            p90: 102.0,
            cublaslt: 101.0,
            choices: BTreeMap::from([("tiles".into(), tiles.into())]),
        }
    }

    #[test]
    fn what_comes_with_the_package_can_be_read() {
        let mut rows = 0;
        for (name, text) in EMBEDDED {
            let table = Tuned::parse(text, Path::new(name));
            let table = table.unwrap_or_else(|error| panic!("{error}"));
            rows += table.len();
            // It is what `bench --sweep` writes, below a comment.
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            assert_eq!(
                table.text().expect("text").lines().collect::<Vec<_>>(),
                lines.collect::<Vec<_>>(),
                "{name}"
            );
        }
        assert_eq!(Tuned::embedded().expect("tables").len(), rows);
    }

    #[test]
    fn the_nearest_within_half_an_octave_is_found() {
        let mut tuned = Tuned::default();
        tuned.put(winner(2048, 4096, "128x256"));
        tuned.put(winner(4096, 4096, "128x128"));
        let key = winner(1, 1, "").key;
        let tiles = |size| Some(tuned.near(&key, size).first()?.choices["tiles"].clone());
        assert_eq!(tiles([2300, 4096, 8192]).as_deref(), Some("128x256"));
        assert_eq!(tiles([3000, 4096, 8192]).as_deref(), Some("128x128"));
        assert_eq!(tiles([1000, 4096, 8192]), None, "rows are too far");
        assert_eq!(tiles([2048, 4096, 2048]), None, "depth is too far");
        let other = Key {
            world: 4,
            ..key.clone()
        };
        assert!(tuned.near(&other, [2048, 4096, 8192]).is_empty());
        let other = |change: fn(&mut Key)| {
            let mut other = key.clone();
            change(&mut other);
            tuned.near(&other, [2048, 4096, 8192]).is_empty()
        };
        assert!(other(|key| key.second = Some("e5m2".into())));
        assert!(other(|key| key.output = Some("f32".into())));
        assert!(other(|key| key.scales = Some("rows".into())));
        let scales = |scales: Option<&str>| {
            let key = Key {
                dtype: "e4m3".into(),
                scales: scales.map(Into::into),
                ..key.clone()
            };
            let twins = key.twins();
            assert!(twins.iter().all(|twin| twin.dtype == "e4m3"));
            twins
                .into_iter()
                .map(|twin| twin.scales)
                .collect::<Vec<_>>()
        };
        assert_eq!(scales(Some("rows")), [Some("whole".into()), None]);
        assert_eq!(scales(None), [Some("whole".into()), Some("rows".into())]);
        assert!(scales(Some("of another kind")).is_empty());
        assert_eq!(key.twins().len(), 1, "f16");
        assert!(other(|key| key.promote = true));
        assert!(other(|key| key.amax = true));
        assert!(other(|key| key.output_scales = true));
        assert!(other(|key| key.partial = true));
        let made = Key {
            output_scales: true,
            ..key.clone()
        };
        let twins = made
            .twins()
            .into_iter()
            .map(|twin| (twin.dtype, twin.output_scales));
        let twins: Vec<_> = twins.collect();
        let each = [("f16", true), ("bf16", false), ("f16", false)];
        assert_eq!(twins, each.map(|(dtype, made)| (dtype.to_owned(), made)));
        let measured = Key {
            dtype: "e4m3".into(),
            scales: Some("rows".into()),
            amax: true,
            ..key.clone()
        };
        let twins = measured.twins().into_iter();
        let twins: Vec<_> = twins.map(|twin| (twin.scales, twin.amax)).collect();
        let each = |amax| move |scales: Option<&str>| (scales.map(Into::into), amax);
        let with = [Some("whole"), None].map(each(true));
        let without = [Some("rows"), Some("whole"), None].map(each(false));
        assert_eq!(twins, [&with[..], &without[..]].concat());
        assert!(!other(|_| {}));
    }

    #[test]
    fn a_new_measurement_replaces_the_old_one() {
        let mut tuned = Tuned::default();
        tuned.put(winner(2048, 4096, "128x256"));
        tuned.put(winner(2048, 4096, "128x128"));
        assert_eq!(tuned.len(), 1);
        let mut scaled = winner(2048, 4096, "128x128");
        scaled.key.dtype = "e4m3".into();
        scaled.key.second = Some("e5m2".into());
        scaled.key.output = Some("bf16".into());
        scaled.key.scales = Some("whole".into());
        tuned.put(scaled);
        assert_eq!(tuned.len(), 2, "another key");
        let dir = std::env::temp_dir().join(format!("counterflow-tuned-{}", std::process::id()));
        let path = dir.join("deep/tuned.toml");
        tuned.write(&path).expect("written");
        assert_eq!(Tuned::read(&path).expect("read"), tuned);
        std::fs::write(&path, "winner = 3").expect("written");
        assert_eq!(Tuned::read(&path).expect_err("no such file").kind(), "file");
        let _ = std::fs::remove_dir_all(&dir);
        assert!(Tuned::read(&path).expect("none").is_empty());
    }

    #[test]
    fn programs_that_keep_winners_at_once_lose_none() {
        let dir = std::env::temp_dir().join(format!("counterflow-kept-{}", std::process::id()));
        let path = dir.join("tuned.toml");
        std::thread::scope(|scope| {
            for who in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for m in 0..8 {
                        let own = winner(1024 * who + m, 4096, "128x128");
                        Tuned::keep(path, [own]).expect("kept");
                    }
                });
            }
        });
        assert_eq!(Tuned::read(&path).expect("read").len(), 32);
        std::fs::remove_dir_all(&dir).expect("gone");
    }

    #[test]
    fn a_file_that_others_may_write_and_what_is_no_file_are_refused_at_once() {
        use rustix::fs::{CWD, Mode, mkfifoat};
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir =
            std::env::temp_dir().join(format!("counterflow-odd-table-{}", std::process::id()));
        let path = dir.join("tuned.toml");
        let none = Tuned::default();
        none.write(&path).expect("written");
        assert_eq!(Tuned::read(&path).expect("read"), none);
        let refused = |wanted: &str| {
            let error = Tuned::read(&path).expect_err("refused");
            assert_eq!(error.kind(), "file");
            assert!(error.to_string().contains(wanted), "{error}");
            // Measured anew, it takes that one's place.
            none.write(&path).expect("written");
            assert_eq!(Tuned::read(&path).expect("read"), none);
            std::fs::remove_file(&path).expect("gone");
        };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("set");
        refused("others may write it");
        mkfifoat(CWD, &path, Mode::RWXU).expect("a pipe");
        refused("it is no file");
        symlink("/dev/zero", &path).expect("a link");
        refused("it is a link");
        let large = std::fs::File::create(&path).expect("a file");
        large.set_len(3 << 30).expect("set");
        refused("3221225472 bytes");
        std::fs::remove_dir_all(&dir).expect("gone");
    }
}
