//! A cubin's facts about its kernels, read from the ELF file, without NVIDIA's tools.

use crate::error::Error;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};

/// The resources of one kernel.
///
/// ```
/// use counterflow::jit::{Compiled, Facts};
///
/// fn spills(compiled: &Compiled) -> Vec<&str> {
///     let spilled = compiled.facts.iter().filter(|facts: &&Facts| facts.frame > 0);
///     spilled.map(|facts| &facts.name[..]).collect()
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Name of the kernel.
    pub name: String,
    /// Registers a thread has at entry. With `setmaxnreg` that is the ceiling of the launch bounds.
    pub registers: u32,
    /// Bytes of stack a thread needs: above zero if registers spill.
    pub frame: u32,
    /// Bytes of static shared memory, with what the system reserves.
    pub shared: u32,
    /// Bytes of parameters.
    pub parameters: u32,
    /// Number of parameters.
    pub parameter_count: u32,
    /// The most threads of a CTA, if the text bounds them.
    pub threads: Option<u32>,
    /// CTAs of a cluster, if the text fixes them.
    pub cluster: Option<[u32; 3]>,
}

/// Attributes of `.nv.info` records.
mod attribute {
    pub const MAX_THREADS: u8 = 0x05;
    pub const FRAME: u8 = 0x11;
    pub const PARAMETER: u8 = 0x17;
    pub const PARAMETERS: u8 = 0x19;
    pub const REGISTERS: u8 = 0x2f;
    pub const CLUSTER: u8 = 0x3d;
}

/// The facts of every kernel in a cubin, by name.
pub(super) fn read(cubin: &[u8]) -> Result<Vec<Facts>, Error> {
    parse(cubin).ok_or_else(|| Error::Toolkit {
        what: "NVRTC returned something that is not a cubin".into(),
        help: "only machine code can be loaded: compile for a real architecture such as sm_90a"
            .into(),
    })
}

/// True if the machine code has a variable or a kernel of that name. The driver can be asked too, but sanitizers report
/// a question whose answer is no as an error.
pub(crate) fn defines(cubin: &[u8], name: &str) -> bool {
    let file: Result<ElfFile64<'_>, _> = ElfFile64::parse(cubin);
    file.is_ok_and(|file| file.symbols().any(|symbol| symbol.name() == Ok(name)))
}

fn parse(cubin: &[u8]) -> Option<Vec<Facts>> {
    let file: ElfFile64<'_> = ElfFile64::parse(cubin).ok()?;
    let mut all: Vec<Facts> = Vec::new();
    for section in file.sections() {
        if let Some(name) = section.name().ok()?.strip_prefix(".nv.info.") {
            let mut facts = Facts {
                name: name.into(),
                ..Facts::default()
            };
            for record in records(section.data().ok()?) {
                match (record.attribute, record.words()) {
                    (attribute::MAX_THREADS, words) => {
                        facts.threads = words.iter().copied().reduce(|a, b| a * b.max(1))
                    }
                    (attribute::CLUSTER, words) => facts.cluster = words.try_into().ok(),
                    (attribute::PARAMETER, _) => facts.parameter_count += 1,
                    (attribute::PARAMETERS, _) => facts.parameters = u32::from(record.half),
                    _ => {}
                }
            }
            let shared = file.section_by_name(&format!(".nv.shared.{name}"));
            facts.shared = shared.map_or(0, |section| section.size() as u32);
            all.push(facts);
        }
    }
    let info = file.section_by_name(".nv.info")?;
    for record in records(info.data().ok()?) {
        let [symbol, value] = record.words()[..] else {
            continue;
        };
        let Ok(symbol) = file.symbol_by_index(object::SymbolIndex(symbol as usize)) else {
            continue;
        };
        let Ok(name) = symbol.name() else { continue };
        let Some(facts) = all.iter_mut().find(|facts| facts.name == name) else {
            continue;
        };
        match record.attribute {
            attribute::REGISTERS => facts.registers = value,
            attribute::FRAME => facts.frame = value,
            _ => {}
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Some(all)
}

/// One record: a format byte, an attribute byte, and sixteen bits that are the value or, in format 4, the length of
/// what follows.
struct Record<'a> {
    attribute: u8,
    half: u16,
    payload: &'a [u8],
}

impl Record<'_> {
    fn words(&self) -> Vec<u32> {
        let words = self.payload.chunks_exact(4);
        words
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect()
    }
}

fn records(mut bytes: &[u8]) -> impl Iterator<Item = Record<'_>> {
    std::iter::from_fn(move || {
        let [format, attribute, low, high, rest @ ..] = bytes else {
            return None;
        };
        let half = u16::from_le_bytes([*low, *high]);
        let length = if *format == 4 { usize::from(half) } else { 0 };
        let (payload, rest) = rest.split_at_checked(length)?;
        bytes = rest;
        Some(Record {
            attribute: *attribute,
            half,
            payload,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_a_cut_one_ends_the_list() {
        let bytes = [
            4, 0x2f, 8, 0, 5, 0, 0, 0, 168, 0, 0, 0, 3, 0x19, 0x40, 1, 4, 0x11, 8, 0, 1,
        ];
        let all: Vec<_> = records(&bytes)
            .map(|r| (r.attribute, r.half, r.words()))
            .collect();
        assert_eq!(all, [(0x2f, 8, vec![5, 168]), (0x19, 0x140, vec![])]);
    }

    #[test]
    fn what_is_no_cubin_is_refused() {
        assert_eq!(read(b".version 9.0").expect_err("PTX").kind(), "toolkit");
    }
}
