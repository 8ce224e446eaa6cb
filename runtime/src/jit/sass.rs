//! The machine instructions of a cubin, by NVIDIA's disassembler. Only tests and the workbench use them.

use crate::draft;
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names the disassembler.
const VARIABLE: &str = "COUNTERFLOW_NVDISASM";

/// The instructions of a cubin, in order.
///
/// ```
/// use counterflow::jit::sass::Sass;
///
/// let sass = Sass::parse("/*0000*/ @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8] ;\n/*0010*/ EXIT ;");
/// assert_eq!(Sass::name(&sass.instructions[0]), "HGMMA.64x256x16.F32.BF16");
/// assert_eq!((sass.count("HGMMA"), sass.count("LDL")), (1, 0));
/// ```
///
/// With NVIDIA's disassembler:
///
/// ```no_run
/// # use counterflow::jit::{Compiler, Source, Target, sass::Sass};
/// let kernel = Compiler::find()?.compile(&Source::new("nothing", "__global__ void nothing() {}"), Target::Sm90a)?;
/// println!("{} instructions", Sass::of(kernel.cubin())?.instructions.len());
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sass {
    /// One instruction each: predicate, name and operands, without its address.
    pub instructions: Vec<String>,
}

impl Sass {
    /// Disassembles.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if there is no disassembler, or it fails.
    pub fn of(cubin: &[u8]) -> Result<Sass, Error> {
        let tool = tool()?;
        let file = scratch();
        let told = std::fs::write(&file, cubin)
            .and_then(|()| Command::new(&tool).arg("-c").arg(&file).output())
            .map_err(|source| Error::File {
                path: tool.clone(),
                source,
            });
        let _ = std::fs::remove_file(&file);
        let told = told?;
        if !told.status.success() {
            return Err(Error::Toolkit {
                what: format!(
                    "{}: {}",
                    tool.display(),
                    String::from_utf8_lossy(&told.stderr).trim()
                ),
                help: format!(
                    "{VARIABLE} may name another nvdisasm; `.ci/cuda.sh` fetches one into .cuda/"
                ),
            });
        }
        Ok(Sass::parse(&String::from_utf8_lossy(&told.stdout)))
    }

    /// From the disassembler's text: a line `/*0010*/  @P0 NAME operands ;` is an instruction.
    pub fn parse(text: &str) -> Sass {
        let instructions = text
            .lines()
            .filter_map(|line| {
                let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
                let address =
                    address.len() >= 4 && address.bytes().all(|byte| byte.is_ascii_hexdigit());
                let rest = rest.split(';').next()?.trim();
                (address && !rest.is_empty()).then(|| rest.to_owned())
            })
            .collect();
        Sass { instructions }
    }

    /// An instruction's name with its dotted parts: `HGMMA.64x256x16.F32.BF16`.
    pub fn name(instruction: &str) -> &str {
        let mut words = instruction.split_whitespace();
        words.find(|word| !word.starts_with('@')).unwrap_or("")
    }

    /// How many instructions have that name, whatever dotted parts follow.
    pub fn count(&self, name: &str) -> usize {
        let same = |instruction: &&String| {
            Sass::name(instruction)
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.instructions.iter().filter(same).count()
    }
}

/// A file that nobody else writes.
fn scratch() -> PathBuf {
    std::env::temp_dir().join(format!("counterflow-{}.cubin", draft::unique()))
}

/// The disassembler: named, in `.cuda/` here or above, in a toolkit, or on the path.
fn tool() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return Ok(named.into());
    }
    let here = std::env::current_dir().unwrap_or_default();
    let mut places: Vec<PathBuf> = here
        .ancestors()
        .map(|dir| dir.join(".cuda/nvidia/cu13/bin"))
        .collect();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        places.extend(std::env::var_os(name).map(|root| Path::new(&root).join("bin")));
    }
    places.push("/usr/local/cuda/bin".into());
    places.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    places
        .into_iter()
        .map(|dir| dir.join("nvdisasm"))
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Toolkit {
            what: "nvdisasm is in no .cuda/, toolkit or folder of PATH".into(),
            help: format!(
                "`.ci/cuda.sh` puts it into .cuda/ (or `pip install --no-deps --target .cuda nvidia-cuda-nvdisasm==13.2.86`); or set {VARIABLE}"
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_read_without_addresses_and_encodings() {
        let text = "\t.section x\n        /*0000*/                   LDC R1, c[0x0][0x28] ;  /* 0x00 */\n .L_x_0:\n        /*0010*/              @!P0 BRA.U.ANY `(.L_x_0) ;\n  /* 0x000fc8 */\n";
        let sass = Sass::parse(text);
        assert_eq!(
            sass.instructions,
            ["LDC R1, c[0x0][0x28]", "@!P0 BRA.U.ANY `(.L_x_0)"]
        );
        assert_eq!(
            (
                sass.count("BRA"),
                sass.count("BRA.U.ANY"),
                sass.count("LD"),
                sass.count("LDC")
            ),
            (1, 1, 0, 1)
        );
    }
}
